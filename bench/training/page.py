"""The report as one HTML file: no scripts, nothing from elsewhere. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from bench.training import scenario_page
from bench.training.analysis import Analysis
from bench.training.campaign import Record
from bench.training.catalog import METHODS
from bench.training.payload import Cost
from bench.training.style import STYLE
from bench.training.verdicts import FEWEST_ROUNDS, Verdict
from bench.training.wording import milliseconds, span

COLUMNS = ("by", "model", "tensors", "n", "bare all-reduce", "GB/s", "window", "over the floor", "tensor by tensor")
BUSY = " Others were at work on this machine: the figures are worth little; repeat the run when it is calm."

FOREIGN = 0.1
"""Share of the machine that others may take before the page says so."""


@dataclass(frozen=True)
class Report:
    """Everything that the page shows.

    Attributes:
        title: of the page.
        command: that made it.
        machine: facts.
        profile: facts.
        analyses: of the scenarios.
        verdicts: of the targets.
        losses: sentences.
        left_out: what is not measured, with reasons.
        sizes: batch sizes that DDP proportional got, by scenario.
        costs: of averages alone.
        records: all slices.
    """

    title: str
    command: str
    machine: dict[str, Any]
    profile: dict[str, Any]
    analyses: Sequence[Analysis]
    verdicts: Sequence[Verdict]
    losses: Sequence[str]
    left_out: Sequence[tuple[str, str]]
    sizes: dict[str, list[int]]
    costs: Sequence[Cost] = ()
    records: Sequence[Record] = field(default_factory=tuple)


def render(report: Report) -> str:
    """The page."""
    body = [
        f"<h1>{escape(report.title)}</h1>",
        f'<p class="lead">{escape(_lead(report))}</p>',
        "<h2>Targets</h2>",
        _verdicts(report.verdicts),
        "<h2>Where fdl loses</h2>",
        _losses(report),
    ]
    body += [scenario_page.section(analysis, report.records) for analysis in report.analyses]
    body += _costs(report.costs)
    body += ["<h2>Methods and their settings</h2>", _methods(report)]
    body += ["<h2>What was not measured</h2>", _left_out(report.left_out)]
    body += ["<h2>How it was measured</h2>", _method(report)]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" '
        f'content="width=device-width"><title>{escape(report.title)}</title><style>{STYLE}</style></head><body>'
        + "\n".join(body)
        + "</body></html>\n"
    )


def _lead(report: Report) -> str:
    machine = report.machine
    return (
        f"{machine['cores']} cores of {machine['cpu']}, torch {machine['torch']}; profile {report.profile['name']}, "
        f"{report.profile['rounds_done']} rounds, {report.profile['minutes']:.0f} minutes; load average at the start "
        f"{machine['load_average']:.1f}. Figures are medians over rounds, in brackets their 95 % bootstrap intervals; "
        "n is the number of rounds." + (BUSY if machine["load_average"] > machine["cores"] / 2 else _others(report))
    )


def _others(report: Report) -> str:
    """What else ran on the machine, seen where a method leaves all cores but one idle."""
    cores = report.machine["cores"]
    taken = [
        record.outcome.load.busy - 1.0 / cores
        for record in report.records
        if record.outcome.method == "fastest alone" and record.outcome.load
    ]
    many = [share for share in taken if share > FOREIGN]
    if not many:
        return ""
    return (
        f" Others were at work: in {len(many)} of the {len(taken)} slices of the fastest rank alone, which leave all "
        f"other cores idle, they took more than {FOREIGN:.0%} of the machine ({max(many):.0%} at most)."
    )


def _verdicts(found: Sequence[Verdict]) -> str:
    if not found:
        return "<p>No target could be judged: see the reasons below.</p>"
    rows = "".join(
        f"<tr><td class=n>{escape(one.scenario)}</td><td class=n>{escape(one.method)}</td>"
        f"<td>{escape(one.target)}</td>"
        f'<td class="n">{one.value:.2f} ({one.low:.2f} to {one.high:.2f})</td><td class="n">{one.rounds}</td>'
        f'<td class="n">{one.judged} {"&le;" if one.at_most else "&ge;"} {one.wanted:g}</td>{_verdict_cell(one)}</tr>'
        for one in found
    )
    head = "<th>scenario</th><th>mode</th><th>target</th><th>measured</th><th>n</th><th>judged by</th><th></th>"
    return f"<table><tr>{head}</tr>{rows}</table>"


def _verdict_cell(one: Verdict) -> str:
    if one.met is None:
        return f'<td class="n">not judged: n &lt; {FEWEST_ROUNDS}</td>'
    if one.met:
        return '<td class="n met">met</td>'
    return f'<td class="n missed">missed by {one.short_by:.3f}</td>'


def _losses(report: Report) -> str:
    judged = [one for one in report.verdicts if one.met is not None]
    missed = [
        f"{one.scenario}: {one.method} misses '{one.target}' by {one.short_by:.3f}: {one.value:.2f} "
        f"({one.low:.2f} to {one.high:.2f}, n = {one.rounds})"
        for one in judged
        if not one.met
    ]
    if not judged:
        return "<p>Too few rounds to say.</p>"
    parts = []
    if missed:
        parts.append("<h3>Targets that are missed</h3>" + _list(missed))
    if report.losses:
        parts.append(
            "<h3>Methods that beat fdl for certain</h3>"
            '<p class="small">The whole interval of the ratio is below 1.</p>' + _list(report.losses)
        )
    if not parts:
        return "<p>In nothing that this run could show: no ratio is below 1 for certain, no target is missed.</p>"
    return "".join(parts)


def _list(items: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def _costs(found: Sequence[Cost]) -> list[str]:
    if not found:
        return []
    head = "".join(f"<th>{name}</th>" for name in COLUMNS)
    rows = "".join(
        f"<tr><td>{escape(one.wiring)}</td><td class=n>{escape(one.model)}</td><td class=n>{one.tensors}</td>"
        f"<td class=n>{one.ratio.count}</td><td>{milliseconds(one.all_reduce_ms)}</td>"
        f"<td class=n>{one.gigabytes_a_second:.2f}</td><td>{milliseconds(one.window_ms)}</td>"
        f"<td>{span(one.ratio, 'x')}</td><td>{span(one.singly, 'x') if one.singly else '-'}</td></tr>"
        for one in found
    )
    return [
        "<h2>What an average costs besides compute</h2>",
        f'<div class="wide"><table><tr>{head}</tr>{rows}</table></div>',
        '<p class="small">Two ranks. The window is everything between two batches: packing, tail, reduce, guard, '
        "commit. The floor is the bare fused all-reduce and eight passes over memory, each measured alone. Tensor by "
        "tensor is one all-reduce for each tensor over one for all of them, without anything else. GB/s: payload over "
        "time. Here n is the number of turns.</p>",
    ]


def _methods(report: Report) -> str:
    used = {result.method for analysis in report.analyses for result in analysis.results}
    rows = [
        f"<tr><td class=n>{escape(method.name)}</td><td>{escape(method.about)}</td></tr>"
        for method in METHODS
        if method.name in used
    ]
    sizes = "; ".join(f"{name}: {' + '.join(map(str, found))}" for name, found in report.sizes.items())
    note = f'<p class="small">Batch sizes of DDP proportional by rank: {escape(sizes)}.</p>' if sizes else ""
    return f"<table>{''.join(rows)}</table>{note}"


def _left_out(found: Sequence[tuple[str, str]]) -> str:
    rows = "".join(f"<tr><td class=n>{escape(what)}</td><td>{escape(why)}</td></tr>" for what, why in found)
    return f"<table>{rows}</table>"


def _method(report: Report) -> str:
    loads = [record.outcome.load for record in report.records if record.outcome.load]
    steal = max((load.steal for load in loads), default=0.0)
    average = max((load.average for load in loads), default=0.0)
    return (
        f"<p>Command: <code>{escape(report.command)}</code>. Every round runs every method once, in an order that "
        "changes, with solo in the middle; all of a round's figures are divided by the solo rates of the same round, "
        "which were measured with all ranks at work. Ranks have one thread each and a core of their own where there "
        "are enough cores; else the slowest share one. A slow rank does extra forward and backward passes, or has a "
        "CPU quota with a period of 10 ms; nobody sleeps. Counted is what lies between two commits. fdl runs as in a "
        "cluster: coordinator, agents and ranks, TLS and all, of which the coordinator takes its time from the ranks "
        "here. Points are rounds, the bar is their median, the line its 95 % bootstrap interval; nothing is "
        "discarded.</p>"
        f'<p class="small">Kernel {escape(str(report.machine["kernel"]))}, Python '
        f"{escape(str(report.machine['python']))}. Highest steal of a slice {steal:.1%}, highest load average "
        f"{average:.1f}: well above the number of ranks, others were at work and the figures are worth less.</p>"
    )
