"""Figures with their targets, as a table and as JSON. Pure."""

import json
import platform
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured figure.

    Attributes:
        name: what it is.
        value: measured value; ``None`` when it could not be measured, and ``note`` says why.
        unit: of value and target.
        target: what it should be; ``better`` says on which side.
        better: ``lower`` or ``higher``.
        samples: the single measurements that it is made of.
        note: how it was measured.
    """

    name: str
    value: float | None
    unit: str
    target: float
    better: str = "lower"
    samples: tuple[float, ...] = ()
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the target is met."""
        if self.value is None:
            return None
        return self.value <= self.target if self.better == "lower" else self.value >= self.target


def middle(name: str, samples: Sequence[float], unit: str, target: float, note: str) -> Figure:
    """The median of measurements, lower being better; ``None`` when there are none."""
    value = round(median(samples), 3) if samples else None
    return Figure(name, value, unit, target, samples=tuple(round(sample, 3) for sample in samples), note=note)


def table(figures: Iterable[Figure]) -> str:
    """The figures as aligned text."""
    rows = [("figure", "value", "target", "", "how")]
    for figure in figures:
        sign = "<=" if figure.better == "lower" else ">="
        value = "-" if figure.value is None else f"{figure.value:g} {figure.unit}"
        verdict = {True: "met", False: "MISSED", None: "not measured"}[figure.met]
        rows.append((figure.name, value, f"{sign} {figure.target:g} {figure.unit}", verdict, figure.note))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)) + "  " + row[4] for row in rows
    )


def to_json(figures: Iterable[Figure], machine: dict[str, Any]) -> str:
    """The figures and the machine as JSON."""
    return json.dumps({"machine": machine, "figures": [asdict(figure) | {"met": figure.met} for figure in figures]})


def machine(cores: int) -> dict[str, Any]:
    """What the figures were measured on."""
    return {"cores": cores, "kernel": platform.release(), "python": platform.python_version()}


def read_commits(lines: Iterable[str]) -> list[tuple[int, int, frozenset[str]]]:
    """(membership epoch, window, UIDs of contributing ranks) of each commit line of an audit log."""
    found = []
    for line in lines:
        if '"k":"commit"' not in line or not line.endswith("}"):
            continue
        record = json.loads(line)
        contributors = frozenset(uid for uid, batches in record["contributions"].items() if batches)
        found.append((int(record["epoch"]), int(record["window"]), contributors))
    return found


def resident(status: str) -> float:
    """Resident memory in MB of 1024 * 1024 bytes from ``/proc/PID/status``; 0 when it does not say."""
    match = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    return int(match[1]) / 1024 if match else 0.0


def operator_calls(lines: Iterable[str], user: str) -> list[str]:
    """Requests of a user in an API server's audit log (JSON lines), without watches and its Lease."""
    calls = []
    for line in lines:
        try:
            event = json.loads(line)
        except ValueError:
            continue
        reference = event.get("objectRef") or {}
        if event.get("user", {}).get("username") != user or event.get("stage") != "ResponseComplete":
            continue
        if event.get("verb") == "watch" or reference.get("resource") == "leases":
            continue
        calls.append(f"{event['verb']} {reference.get('resource')}/{reference.get('name', '')}")
    return calls
