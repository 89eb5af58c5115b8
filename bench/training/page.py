"""The report as one HTML file: no scripts, nothing from elsewhere. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from bench.training import svg
from bench.training.analysis import Analysis, Result
from bench.training.campaign import Record
from bench.training.catalog import BY_NAME, METHODS
from bench.training.cohorts import COHORTS
from bench.training.stats import Interval
from bench.training.verdicts import Verdict
from bench.training.workloads import WORKLOADS

STYLE = """
:root{--ink:#1d2733;--quiet:#8a96a3;--line:#dfe4ea;--paper:#fff;--own:#0b6bcb;--own-soft:#7db3e8;--peer:#c4661f;
--good:#1a7f4b;--bad:#b3261e;--soft:#f5f7f9}
@media (prefers-color-scheme:dark){:root{--ink:#e6ebf0;--quiet:#8493a3;--line:#303b47;--paper:#14191f;--own:#5aa9f5;
--own-soft:#2f6ca8;--peer:#e59a5c;--good:#58c48a;--bad:#f28b82;--soft:#1b222a}}
body{font:15px/1.55 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:860px;margin:2.5rem auto;
padding:0 1.2rem}
h1{font-size:1.7rem;margin:0 0 .3rem}h2{font-size:1.25rem;margin:2.6rem 0 .5rem}h3{font-size:1rem;margin:1.4rem 0 .3rem}
p.lead,.small{color:var(--quiet)}.small{font-size:13px}table{border-collapse:collapse;width:100%;font-size:14px}
th{text-align:left;font-weight:600;color:var(--quiet);border-bottom:1px solid var(--line)}
td,th{padding:.32rem .8rem .32rem 0;vertical-align:top}tr+tr td{border-top:1px solid var(--line)}
td.n{font-variant-numeric:tabular-nums;white-space:nowrap}.met{color:var(--good);font-weight:600}
.missed{color:var(--bad);font-weight:600}svg{display:block;max-width:100%;height:auto;margin:.2rem 0 .8rem}
svg text{font:13px system-ui,sans-serif;fill:var(--ink)}svg .tick{font-size:12px;fill:var(--quiet)}
svg .value{font-variant-numeric:tabular-nums;font-size:12.5px}.grid{stroke:var(--line)}
.mark{stroke:var(--peer);stroke-dasharray:4 3;stroke-width:1.5}.part0{fill:var(--own)}.part1{fill:#9aa7b4}
.part2{fill:#d9b44a}.part3{fill:var(--peer)}.part4{fill:#d9dee4}code{background:var(--soft);padding:.1rem .3rem}
@media (prefers-color-scheme:dark){.part4{fill:#3a4653}}
"""


BUSY = " Others were at work on this machine: the figures are worth little; repeat the run when it is calm."


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
        skipped: reasons by method.
        sizes: batch sizes that DDP proportional got, by scenario.
        records: all slices.
    """

    title: str
    command: str
    machine: dict[str, Any]
    profile: dict[str, Any]
    analyses: Sequence[Analysis]
    verdicts: Sequence[Verdict]
    losses: Sequence[str]
    skipped: dict[str, str]
    sizes: dict[str, list[int]]
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
    body += [_scenario(analysis, report) for analysis in report.analyses]
    body += ["<h2>Methods and their settings</h2>", _methods(report), "<h2>How it was measured</h2>", _method(report)]
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
        f"{machine['load_average']:.1f}." + (BUSY if machine["load_average"] > machine["cores"] / 2 else "")
    )


def _verdicts(found: Sequence[Verdict]) -> str:
    if not found:
        return "<p>No target could be judged: see the reasons below.</p>"
    rows = "".join(
        f"<tr><td class=n>{escape(one.scenario)}</td><td class=n>{escape(one.method)}</td>"
        f"<td>{escape(one.target)}</td>"
        f'<td class="n">{one.value:.2f} ({one.low:.2f} to {one.high:.2f})</td>'
        f'<td class="n">{one.judged} &ge; {one.wanted:g}</td>{_verdict_cell(one)}</tr>'
        for one in found
    )
    head = "<th>scenario</th><th>mode</th><th>target</th><th>measured</th><th>judged by</th><th></th>"
    return f"<table><tr>{head}</tr>{rows}</table>"


def _verdict_cell(one: Verdict) -> str:
    if one.met is None:
        return f'<td class="n">not judged: {one.rounds} rounds</td>'
    if one.met:
        return '<td class="n met">met</td>'
    return f'<td class="n missed">missed by {one.short_by:.2f}</td>'


def _losses(report: Report) -> str:
    items = list(report.losses)
    items += [
        f"{one.scenario}: {one.method} misses '{one.target}' by {one.short_by:.2f}"
        for one in report.verdicts
        if one.met is False
    ]
    if not any(one.met is not None for one in report.verdicts):
        return "<p>Too few rounds to say.</p>"
    if not items:
        return "<p>In nothing that this run could show: no ratio is below 1 for certain, no target is missed.</p>"
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def _scenario(analysis: Analysis, report: Report) -> str:
    cohort_name, workload = analysis.scenario.split(", ")
    cohort = COHORTS[cohort_name]
    solo = ", ".join(f"{rate:.0f}" for rate in analysis.solo)
    order = {method.name: number for number, method in enumerate(METHODS)}
    results = sorted(analysis.results, key=lambda result: order[result.method])
    parts = [
        f"<h2>{escape(cohort_name)} &middot; {escape(workload)}</h2>",
        f'<p class="small">{escape(WORKLOADS[workload].about)}. Solo rates side by side: {solo} samples/s (median). '
        f"Equal batches in lock step cannot exceed {cohort.lock_step_bound:.2f} (dashed).</p>",
        "<h3>E_rate: committed samples over the sum of the solo rates</h3>",
        svg.dots(
            [_row(result) for result in results if result.method != "solo"],
            low=0.0,
            high=max(1.1, *(max(result.efficiency.values(), default=0.0) for result in results)),
            lines=[(cohort.lock_step_bound, "bound of lock step")],
            title=f"efficiency in {analysis.scenario}",
        ),
    ]
    parts += _split(results) + _ratios(analysis) + _swap(analysis, report)
    failed = [(result.method, reason) for result in results for reason in dict.fromkeys(result.failures)]
    if failed:
        parts.append("<h3>Without figures</h3><ul>")
        parts += [f'<li class="small">{escape(method)}: {escape(reason)}</li>' for method, reason in failed]
        parts.append("</ul>")
    return "\n".join(parts)


def _row(result: Result) -> svg.Row:
    interval = result.interval
    note = f"{interval.value:.2f}  ({_range(interval)})" if interval else "no figures"
    family = BY_NAME[result.method].family
    return svg.Row(result.method, tuple(result.efficiency.values()), interval, family, note)


def _split(results: Sequence[Result]) -> list[str]:
    rows = [
        (result.method + ("" if result.split.measured else " *"), _shares(result))
        for result in results
        if result.split is not None
    ]
    if not rows:
        return []
    names = ("useful", "slower than alone", "data", "averaging", "waiting and the rest")
    return [
        "<h3>Where the power goes</h3>",
        svg.stacks(rows, names, "loss split"),
        '<p class="small">The median round. * compute cannot be told from communication here: taken from the solo '
        "rates. Point at a part for its share.</p>",
    ]


def _shares(result: Result) -> tuple[float, ...]:
    one = result.split
    assert one is not None
    return (one.useful, one.slowed, one.data, one.comm, one.wait)


def _ratios(analysis: Analysis) -> list[str]:
    rows = [
        svg.Row(ratio.other, (), ratio.interval, BY_NAME[ratio.other].family, _note(ratio.interval))
        for ratio in analysis.ratios
        if ratio.method == _own(analysis) and ratio.interval.count
    ]
    if not rows:
        return []
    high = max(1.2, *(row.interval.high * 1.05 for row in rows if row.interval))
    return [
        f"<h3>{escape(_own(analysis))} over each other method, paired by round</h3>",
        svg.dots(rows, low=0.0, high=high, lines=[(1.0, "equal")], title=f"ratios in {analysis.scenario}"),
    ]


def _note(interval: Interval) -> str:
    return f"{interval.value:.2f}x ({_range(interval)})"


def _range(interval: Interval) -> str:
    return "1 round" if interval.count == 1 else f"{interval.low:.2f} to {interval.high:.2f}"


def _own(analysis: Analysis) -> str:
    names = [result.method for result in analysis.results if result.interval]
    own = [name for name in names if name.startswith("fdl") and BY_NAME[name].family == "fdl"]
    return next((name for name in own if name.endswith("cadence")), own[0] if own else "")


def _swap(analysis: Analysis, report: Report) -> list[str]:
    parts = []
    for result in analysis.results:
        if not result.recovery or not result.method.startswith("fdl"):
            continue
        lines = []
        for record in report.records:
            outcome = record.outcome
            if record.scenario == analysis.scenario and outcome.method == result.method and outcome.span:
                power = sum(analysis.solo)
                lines.append([(at - outcome.swap_at, rate / power) for at, rate in outcome.span.rates])
        windows = ", ".join("not yet" if count is None else str(count) for count in result.recovery)
        parts += [
            f"<h3>{escape(result.method)} around the swap: rate of each window over the sum of the solo rates</h3>",
            svg.trace(lines, high=1.2, title="rates around the swap"),
            f'<p class="small">Windows until back at 95 % of the rate before: {windows} '
            "(0 is the window in which the swap falls).</p>",
        ]
    return parts


def _methods(report: Report) -> str:
    used = {result.method for analysis in report.analyses for result in analysis.results}
    rows = [
        f"<tr><td class=n>{escape(method.name)}</td><td>{escape(method.about)}</td></tr>"
        for method in METHODS
        if method.name in used
    ]
    rows += [
        f"<tr><td class=n>{escape(name)}</td><td><b>left out:</b> {escape(reason)}</td></tr>"
        for name, reason in report.skipped.items()
    ]
    sizes = "; ".join(f"{name}: {' + '.join(map(str, found))}" for name, found in report.sizes.items())
    note = f'<p class="small">Batch sizes of DDP proportional by rank: {escape(sizes)}.</p>' if sizes else ""
    return f"<table>{''.join(rows)}</table>{note}"


def _method(report: Report) -> str:
    loads = [record.outcome.load for record in report.records if record.outcome.load]
    steal = max((load.steal for load in loads), default=0.0)
    average = max((load.average for load in loads), default=0.0)
    return (
        f"<p>Command: <code>{escape(report.command)}</code>. Every round runs every method once, in an order that "
        "changes; all of a round's figures are divided by the solo rates of the same round, which were measured with "
        "all ranks at work. Ranks have one thread each and a core of their own where there are enough cores; else the "
        "slowest share one. A slow rank does extra forward and backward passes, or has a CPU quota with a period of "
        "10 ms; nobody sleeps. Counted is what lies between two commits. fdl runs as in a cluster: coordinator, "
        "agents and ranks, TLS and all, of which the coordinator takes its time from the ranks here. Points are "
        "rounds, the bar is their median, the line its 95 % bootstrap interval; nothing is discarded.</p>"
        f'<p class="small">Kernel {escape(str(report.machine["kernel"]))}, Python '
        f"{escape(str(report.machine['python']))}. Highest steal of a slice {steal:.1%}, highest load average "
        f"{average:.1f}: well above the number of ranks, others were at work and the figures are worth less.</p>"
    )
