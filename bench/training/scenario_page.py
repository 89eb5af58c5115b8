"""The page's part about one scenario. Pure."""

from collections.abc import Sequence
from html import escape

from bench.training import svg
from bench.training.analysis import Analysis, Ratio, Result
from bench.training.campaign import Record
from bench.training.catalog import BY_NAME, METHODS
from bench.training.cohorts import COHORTS
from bench.training.targets import TRAILING
from bench.training.wording import figure
from bench.training.workloads import WORKLOADS

PARTS = ("useful", "slower than alone", "data", "averaging", "waiting and the rest")


def section(analysis: Analysis, records: Sequence[Record]) -> str:
    """All plots of a scenario.

    Args:
        analysis: its figures.
        records: all slices of the run.
    """
    cohort_name, workload = analysis.scenario.split(", ")
    cohort = COHORTS[cohort_name]
    solo = ", ".join(f"{rate:.0f}" for rate in analysis.solo)
    order = {method.name: number for number, method in enumerate(METHODS)}
    results = sorted(analysis.results, key=lambda result: order[result.method])
    own = [record for record in records if record.scenario == analysis.scenario]
    parts = [
        f"<h2>{escape(cohort_name)} &middot; {escape(workload)}</h2>",
        f'<p class="small">{escape(WORKLOADS[workload].about)}. Solo rates side by side: {solo} samples/s (median). '
        f"Equal batches in lock step cannot exceed {cohort.lock_step_bound:.2f} (dashed).</p>",
        "<h3>E_rate: committed samples over the sum of the solo rates</h3>",
        svg.dots(
            [_efficiency(result) for result in results if result.method != "solo"],
            low=0.0,
            high=max(1.1, *(max(result.efficiency.values(), default=0.0) for result in results)),
            lines=[(cohort.lock_step_bound, "bound of lock step")],
            title=f"efficiency in {analysis.scenario}",
            unit="share of 1",
        ),
    ]
    parts += _ratios(analysis) + _split(results) + _targets(analysis, results, own) + _swap(analysis, own)
    failed = [(result.method, reason) for result in results for reason in dict.fromkeys(result.failures)]
    if failed:
        parts.append("<h3>Slices without figures</h3><ul>")
        parts += [f'<li class="small">{escape(method)}: {escape(reason)}</li>' for method, reason in failed]
        parts.append("</ul>")
    return "\n".join(parts)


def _efficiency(result: Result) -> svg.Row:
    note = figure(result.interval) if result.interval else "no figures"
    family = BY_NAME[result.method].family
    return svg.Row(result.method, tuple(result.efficiency.values()), result.interval, family, note)


def _split(results: Sequence[Result]) -> list[str]:
    rows = [
        (
            result.method + ("" if result.split.measured else " *"),
            (result.split.useful, result.split.slowed, result.split.data, result.split.comm, result.split.wait),
        )
        for result in results
        if result.split is not None
    ]
    if not rows:
        return []
    rounds = max(len(result.rounds) for result in results)
    return [
        "<h3>Where the power goes: shares of the sum of the solo rates</h3>",
        svg.stacks(rows, PARTS, "loss split"),
        f'<p class="small">The median one of the rounds (n = {rounds}). * compute cannot be told from communication '
        "here: taken from the solo rates. Point at a part for its share.</p>",
    ]


def _ratios(analysis: Analysis) -> list[str]:
    own = _own(analysis)
    rows = [_ratio(ratio) for ratio in analysis.ratios if ratio.method == own]
    if not rows:
        return []
    return [
        f"<h3>Samples a second of {escape(own)} over each other method's, paired by round</h3>",
        _ratio_plot(rows, f"ratios in {analysis.scenario}"),
    ]


def _ratio(ratio: Ratio) -> svg.Row:
    return svg.Row(ratio.other, (), ratio.interval, BY_NAME[ratio.other].family, figure(ratio.interval, "x"))


def _ratio_plot(rows: Sequence[svg.Row], title: str) -> str:
    high = max(1.2, *(row.interval.high * 1.05 for row in rows if row.interval))
    return svg.dots(rows, low=0.0, high=high, lines=[(1.0, "equal")], title=title, unit="times")


def _own(analysis: Analysis) -> str:
    names = [result.method for result in analysis.results if result.interval]
    own = [name for name in names if name.startswith("fdl") and BY_NAME[name].family == "fdl"]
    return next((name for name in own if name.endswith("cadence")), own[0] if own else "")


def _targets(analysis: Analysis, results: Sequence[Result], records: Sequence[Record]) -> list[str]:
    timed = [result for result in results if result.time is not None]
    if not timed:
        return []
    rows = [_arrivals(result) for result in timed]
    high = max(one.seconds for result in timed for one in result.arrivals.values())
    parts = [
        f"<h3>Seconds from the first batch to a training loss of {analysis.target:g}</h3>",
        svg.dots(
            rows, low=0.0, high=high * 1.05, lines=[], title=f"time to target in {analysis.scenario}", unit="seconds"
        ),
        f'<p class="small">Mean loss of the newest {TRAILING} batches that are committed, or of the newest commit '
        "where it has more; the start of the processes does not count, fdl's small first windows do. A slice that "
        "ended before its target counts with its length, which is too little: how many did stands beside the "
        "figure.</p>",
    ]
    own = _own(analysis)
    ratios = [_ratio(ratio) for ratio in analysis.times if ratio.method == own]
    if ratios:
        parts += [
            f"<h3>How many times as fast {escape(own)} is there, paired by round</h3>",
            _ratio_plot(ratios, f"ratios of times in {analysis.scenario}"),
        ]
    lines = [(result.method, line) for result in timed if (line := _curve(result, records))]
    if lines:
        parts += [
            "<h3>Training loss over time, the round with the median time of each method</h3>",
            svg.curves(lines, target=analysis.target, title=f"loss in {analysis.scenario}", unit="loss"),
        ]
    return parts


def _arrivals(result: Result) -> svg.Row:
    assert result.time is not None
    missed = sum(1 for one in result.arrivals.values() if not one.reached)
    note = figure(result.time, " s") + (f"; {missed} not" if missed else "")
    values = tuple(one.seconds for one in result.arrivals.values())
    return svg.Row(result.method, values, result.time, BY_NAME[result.method].family, note)


def _curve(result: Result, records: Sequence[Record]) -> list[tuple[float, float]]:
    ordered = sorted(result.arrivals, key=lambda number: result.arrivals[number].seconds)
    middle = ordered[(len(ordered) - 1) // 2]
    for record in records:
        if (record.round, record.outcome.method) == (middle, result.method):
            return [(seconds, loss) for seconds, _, loss in record.outcome.curve]
    return []


def _swap(analysis: Analysis, records: Sequence[Record]) -> list[str]:
    parts = []
    for result in analysis.results:
        if not result.recovery or not result.method.startswith("fdl"):
            continue
        lines = []
        for record in records:
            outcome = record.outcome
            if outcome.method == result.method and outcome.span:
                power = sum(analysis.solo)
                lines.append([(at - outcome.swap_at, rate / power) for at, rate in outcome.span.rates])
        windows = ", ".join("not yet" if count is None else str(count) for count in result.recovery)
        parts += [
            f"<h3>{escape(result.method)} around the swap: rate of each window over the sum of the solo rates, all "
            "rounds</h3>",
            svg.trace(lines, high=1.2, title="rates around the swap"),
            f'<p class="small">Windows until back at 95 % of the rate before, by round: {windows} '
            "(0 is the window in which the swap falls).</p>",
        ]
    return parts
