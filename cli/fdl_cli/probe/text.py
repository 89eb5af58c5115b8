"""A survey as a table with the problems below, and as JSON. Pure; colours are taken away where there is no terminal."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fdl_api.report import SEVERITIES, Report, Severity
from fdl_cli import screen
from fdl_cli.probe.rows import Problem, Row, Survey, natural, span
from fdl_cli.screen import named, printable, words

STATES: Final = {"ready": "green", "not ready": "red", "stale": "red", "no report": "red", "not probed": "dim"}
SEVERITY_STYLES: Final = {"fail": "bold red", "unknown": "magenta", "warn": "yellow", "pass": "green"}
MAX_NAMED: Final = 6
"""Nodes that a problem names."""
GIB: Final = 1 << 30


def table(survey: Survey, width: int) -> RenderableType:
    """The nodes, one line each where ``width`` characters have room for it."""
    shown = screen.table(width)
    shown.add_column("NODE", overflow="fold", min_width=16)
    for name in ("STATE", "DEVICES", "ARCH", "NCCL"):
        shown.add_column(name, no_wrap=True)
    shown.add_column("VARIANTS", overflow="fold", min_width=14)
    shown.add_column("REPORT", justify="right", no_wrap=True)
    for row in survey.rows:
        shown.add_row(
            words(row.name),
            words(row.state, style=STATES[row.state]),
            words(devices(row)),
            words(_short(row.archs)),
            words(_short(sorted(set(row.nccl.values()), key=natural))),
            words(", ".join(f"{name} {value}" for name, value in row.variants.items()) or "-"),
            words(span(row.age) if row.age is not None else "never"),
        )
    return shown


def devices(row: Row) -> str:
    """Working devices by vendor; none of a vendor whose devices are plugged in and do not work."""
    told = ", ".join(f"{number} {vendor}" for vendor, number in row.devices.items())
    if told:
        return told + (" sim" if row.simulated else "")
    return f"0 {row.plugged}" if row.plugged in ("nvidia", "amd", "mixed") else "-"


def _short(values: Sequence[str]) -> str:
    """The first of some values, with the number of the others."""
    if not values:
        return "-"
    return values[0] if len(values) == 1 else f"{values[0]} +{len(values) - 1}"


def summary(survey: Survey) -> Text:
    """One line with the figures."""
    meant = [row for row in survey.rows if row.state != "not probed"]
    ready = sum(row.state == "ready" for row in meant)
    kinds = {vendor: sum(row.devices.get(vendor, 0) for row in meant) for vendor in ("nvidia", "amd")}
    told = " and ".join(f"{number} {vendor}" for vendor, number in kinds.items() if number)
    groups = [severity for severity, *_ in grouped(survey.problems)]
    counts = [
        (groups.count("fail"), "problem", "problems"),
        (groups.count("unknown"), "unknown", "unknown"),
        (groups.count("warn"), "warning", "warnings"),
    ]
    found = ", ".join(f"{number} {one if number == 1 else many}" for number, one, many in counts if number)
    text = words(f"{ready} of {len(meant)} nodes ready", style="green" if survey.good else "bold red")
    noun = "device" if sum(kinds.values()) == 1 else "devices"
    text.append(f"; {told or 'no'} {noun}; {found or 'no problems'}", style="default")
    return text


def grouped(
    problems: Iterable[Problem],
) -> list[tuple[Severity, Problem, list[str], list[str]]]:
    """The same thing on several nodes told once: severity, one of them, the nodes, and the subjects; worst first."""
    groups: dict[tuple[str, ...], tuple[Problem, list[str], list[str]]] = {}
    for problem in problems:
        key = (problem.check, problem.severity, problem.message, _common(problem))
        _, nodes, subjects = groups.setdefault(key, (problem, [], []))
        if problem.node and problem.node not in nodes:
            nodes.append(problem.node)
        if problem.subject and problem.subject not in subjects:
            subjects.append(problem.subject)
    told = [(problem.severity, problem, nodes, subjects) for problem, nodes, subjects in groups.values()]
    told.sort(key=lambda group: (-SEVERITIES.index(group[0]), bool(group[2]), -len(group[2])))
    return told


def _common(problem: Problem) -> str:
    """What must agree for two problems to be one; ages and pods differ from node to node, and are no difference."""
    return "" if problem.check in ("report-age", "report-missing") else problem.remedy


def problems(found: Iterable[Problem]) -> RenderableType:
    """The problems, each with its remedy below."""
    blocks: list[RenderableType] = []
    for severity, problem, nodes, subjects in grouped(found):
        head = Text()
        head.append(f"{severity.upper():<8}", style=SEVERITY_STYLES[severity])
        head.append(printable(problem.check), style="bold")
        head.append(printable(f"/{problem.reason}") if problem.reason else "")
        head.append(f"  {named(nodes, MAX_NAMED)}" if nodes else "  the cluster", style="cyan")
        head.append(printable(f"  ({named(subjects, MAX_NAMED)})") if subjects else "")
        blocks.append(head)
        blocks.append(Padding(words(problem.message), (0, 0, 0, 8), expand=False))
        if problem.remedy:
            more = "" if len(nodes) < 2 or _common(problem) else f" (on {nodes[0]})"
            blocks.append(Padding(words(f"-> {problem.remedy}{more}", style="green"), (0, 0, 0, 8), expand=False))
    return Group(*blocks)


def page(survey: Survey, width: int) -> RenderableType:
    """Everything: nodes, figures, problems."""
    parts: list[RenderableType] = [table(survey, width), Text(""), summary(survey)]
    if survey.problems:
        parts += [Text(""), problems(survey.problems)]
    return Group(*parts)


def facts(report: Report, *, passed_only: bool = False) -> RenderableType:
    """What a report says of one machine: drivers, devices, host, and every check.

    ``passed_only`` leaves out the checks that found something, which are told elsewhere.
    """
    grid = Table.grid(padding=(0, 2, 0, 0))
    for name, value in _facts(report):
        grid.add_row(words(name, style="bold"), words(value))
    checks = screen.table(screen.NARROW)
    for column in ("", "CHECK", "ABOUT"):
        checks.add_column(column, no_wrap=True)
    checks.add_column("FOUND", overflow="fold")
    told = [check for check in report.checks if check.severity == "pass" or not passed_only]
    for check in sorted(told, key=lambda each: -SEVERITIES.index(each.severity)):
        found = words(check.message)
        if check.remedy:
            found.append(printable(f"\n-> {check.remedy}"), style="green")
        severity = words(check.severity.upper(), style=SEVERITY_STYLES[check.severity])
        checks.add_row(severity, words(check.name), words(check.subject or "-"), found)
    return Group(grid, Text(""), checks)


def _facts(report: Report) -> Iterator[tuple[str, str]]:
    for vendor, driver in report.drivers.items():
        runtime = f", runtime {driver.runtime}" if driver.runtime else ""
        yield "driver", f"{vendor} {driver.version or driver.state}{runtime}"
    for device in report.devices:
        memory = f"{device.memory_bytes / GIB:.0f} GiB" if device.memory_bytes else "memory unknown"
        parts = (device.name, device.arch or "architecture unknown", memory, device.pci)
        yield f"{device.vendor} {device.index}", "  ".join(part for part in parts if part)
    host = report.host
    yield "host", f"{host.cpus} CPUs, {host.memory_bytes / GIB:.0f} GiB, kernel {host.kernel or 'unknown'}"
    for interface in host.interfaces:
        speed = f" {interface.speed_mbps} Mbit/s" if interface.speed_mbps else ""
        state = "" if interface.up else " down"
        yield "network", f"{interface.name} {' '.join(interface.addresses) or 'no address'}{speed}{state}"


def as_json(survey: Survey) -> dict[str, Any]:
    """The survey for programs."""
    return {
        "ready": survey.good,
        "nodesTotal": len(survey.rows),
        "nodesReady": sum(row.state == "ready" for row in survey.rows),
        "nodes": [_row(row) for row in survey.rows],
        "problems": [asdict(problem) for problem in survey.problems if not problem.node],
    }


def _row(row: Row) -> Mapping[str, Any]:
    return {
        "name": row.name,
        "state": row.state,
        "devices": dict(row.devices),
        "gpuVendor": row.plugged,
        "archs": list(row.archs),
        "nccl": dict(row.nccl),
        "variants": dict(row.variants),
        "simulated": row.simulated,
        "reportAgeSeconds": None if row.age is None else int(row.age),
        "problems": [asdict(problem) for problem in row.problems],
    }
