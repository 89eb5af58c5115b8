"""From slices to figures: efficiency, where the rest goes, ratios and verdicts. Pure."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, TypeVar

from bench.training.campaign import Record
from bench.training.marks import Span
from bench.training.measure import Outcome
from bench.training.stats import Interval, bootstrap, paired_ratios
from bench.training.targets import TRAILING, Arrival, arrival, times_as_fast
from bench.training.workloads import WORKLOADS, Workload

V = TypeVar("V")
RECOVERED = 0.95


@dataclass(frozen=True, slots=True)
class Split:
    """Shares of the cohort's power (the sum of solo rates); they sum to 1.

    Attributes:
        useful: committed work at solo speed; this is E_rate.
        slowed: compute that took longer than alone: contention, or a change of speed between the slices. May be
            negative.
        data: waiting for data.
        comm: inside the averaging, without waiting for late ranks.
        wait: waiting for others and all the rest.
        measured: whether compute was timed; else it is taken from the solo rates, and ``slowed`` is part of ``comm``.
    """

    useful: float
    slowed: float
    data: float
    comm: float
    wait: float
    measured: bool

    @property
    def busy(self) -> float:
        """E_busy: share of the power spent in compute."""
        return self.useful + self.slowed


def split(span: Span, solo: Sequence[float]) -> Split:
    """Where a slice's time went.

    Each rank's shares of the wall time are weighted with its part of the sum of solo rates.

    Args:
        span: committed work.
        solo: solo rates, samples a second by rank.
    """
    power, wall = sum(solo), span.seconds
    parts = [rate / power for rate in solo]
    alone = [samples / rate / wall for samples, rate in zip(span.samples, solo, strict=True)]
    useful = sum(part * share for part, share in zip(parts, alone, strict=True))
    if not span.compute:
        longest = max(alone)
        return Split(useful, 0.0, 0.0, 1.0 - longest, longest - useful, measured=False)
    busy = sum(part * seconds / wall for part, seconds in zip(parts, span.compute, strict=True))
    data = sum(part * seconds / wall for part, seconds in zip(parts, span.data, strict=True)) if span.data else 0.0
    comm = span.comm / wall
    return Split(useful, busy - useful, data, comm, 1.0 - busy - data - comm, measured=True)


def windows_to_recover(rates: Sequence[tuple[float, float]], swap_at: float) -> int | None:
    """Windows after a swap until the rate is back at 95 % of the median before it; 0 is the window of the swap itself.

    The sum of the rates is the same before and after, so that the rate before is the optimum after. None: not within
    what was measured, or there was no window before.

    Args:
        rates: (end, samples a second) of each window, in order.
        swap_at: moment of the swap.
    """
    before = [rate for at, rate in rates if at <= swap_at]
    after = [rate for at, rate in rates if at > swap_at]
    if not before:
        return None
    wanted = RECOVERED * median(before)
    return next((number for number, rate in enumerate(after) if rate >= wanted), None)


@dataclass(frozen=True, slots=True)
class Result:
    """A method in a scenario.

    Attributes:
        method: name.
        efficiency: E_rate by round: the method's rate over the sum of the solo rates of the same round.
        interval: its median and bootstrap interval.
        split: medians of the parts, or None for ranks that train alone.
        rounds: rates by round.
        anchor: median anchor; 0 where there is none.
        syncs: median averages a second.
        recovery: windows to recover from the swap, by round.
        failures: reasons of slices without figures.
        arrivals: when each round's slice came to the workload's target loss.
        time: median of those seconds and its interval; a slice that did not get there counts with its length.
    """

    method: str
    efficiency: dict[int, float]
    interval: Interval | None
    split: Split | None
    rounds: dict[int, float]
    anchor: float
    syncs: float
    recovery: tuple[int | None, ...]
    failures: tuple[str, ...]
    arrivals: dict[int, Arrival]
    time: Interval | None


@dataclass(frozen=True, slots=True)
class Ratio:
    """One method's rate over another's, paired by round."""

    method: str
    other: str
    interval: Interval


@dataclass(frozen=True)
class Analysis:
    """All of one scenario.

    Attributes:
        scenario: cohort and workload.
        results: of the methods.
        ratios: of rates, of fdl over each other method.
        solo: median rates of the ranks that train alone, samples a second.
        target: training loss for the times.
        times: how many times as fast fdl was at that loss as each other method.
    """

    scenario: str
    results: tuple[Result, ...]
    ratios: tuple[Ratio, ...]
    solo: tuple[float, ...]
    target: float
    times: tuple[Ratio, ...]

    def result(self, method: str) -> Result | None:
        """Of a method, if it was measured."""
        return next((result for result in self.results if result.method == method), None)

    def ratio(self, method: str, other: str) -> Interval | None:
        """Of two methods, if both were measured in one round."""
        return next((ratio.interval for ratio in self.ratios if (ratio.method, ratio.other) == (method, other)), None)


def analyse(records: Sequence[Record]) -> list[Analysis]:
    """Figures of all scenarios, in the order in which they first appear."""
    by_scenario: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_scenario[record.scenario].append(record)
    return [_scenario(name, found) for name, found in sorted(by_scenario.items())]


def _scenario(name: str, records: Sequence[Record]) -> Analysis:
    solo = {record.round: record.outcome.rates for record in records if _good(record, "solo")}
    by_method: dict[str, dict[int, Outcome]] = defaultdict(dict)
    for record in records:
        by_method[record.outcome.method][record.round] = record.outcome
    workload = WORKLOADS[name.split(", ")[1]]
    results = [_result(method, outcomes, solo, workload) for method, outcomes in sorted(by_method.items())]
    rates = {result.method: result.rounds for result in results}
    arrivals = {result.method: result.arrivals for result in results}
    typical = tuple(median(values) for values in zip(*solo.values(), strict=True)) if solo else ()
    return Analysis(
        scenario=name,
        results=tuple(results),
        ratios=_ratios(rates, paired_ratios),
        solo=typical,
        target=workload.target,
        times=_ratios(arrivals, times_as_fast),
    )


def _ratios(values: Mapping[str, V], compare: Callable[[V, V], list[float]]) -> tuple[Ratio, ...]:
    """Of each of fdl's methods over each other one, but for the ranks that train side by side."""
    return tuple(
        Ratio(method, other, bootstrap(found))
        for method in values
        if method.startswith("fdl")
        for other in values
        if other not in (method, "solo") and (found := compare(values[method], values[other]))
    )


def _good(record: Record, method: str) -> bool:
    return record.outcome.method == method and not record.outcome.reason


def _result(
    method: str, outcomes: Mapping[int, Outcome], solo: Mapping[int, Sequence[float]], workload: Workload
) -> Result:
    good = {number: outcome for number, outcome in outcomes.items() if not outcome.reason}
    spans = {number: outcome.span for number, outcome in good.items() if outcome.span is not None}
    efficiency = {number: outcome.rate / sum(solo[number]) for number, outcome in good.items() if number in solo}
    splits = [split(span, solo[number]) for number, span in spans.items() if number in solo]
    trailing = TRAILING * workload.batch_size
    arrivals = {
        number: found
        for number, outcome in good.items()
        if (found := arrival(outcome.curve, workload.target, trailing)) is not None
    }
    return Result(
        method=method,
        efficiency=efficiency,
        interval=bootstrap(list(efficiency.values())) if efficiency else None,
        split=_middle(splits),
        rounds={number: outcome.rate for number, outcome in good.items()},
        anchor=median(span.anchor for span in spans.values()) if spans else 0.0,
        syncs=median(span.syncs / span.seconds for span in spans.values()) if spans else 0.0,
        recovery=tuple(
            windows_to_recover(outcome.span.rates, outcome.swap_at)
            for outcome in good.values()
            if outcome.span is not None and outcome.swap_at
        ),
        failures=tuple(outcome.reason for outcome in outcomes.values() if outcome.reason),
        arrivals=arrivals,
        time=bootstrap([one.seconds for one in arrivals.values()]) if arrivals else None,
    )


def _middle(splits: Sequence[Split]) -> Split | None:
    """The split of the round whose useful share is the median (the lower one of two), so that its parts sum to 1."""
    if not splits:
        return None
    return sorted(splits, key=lambda each: each.useful)[(len(splits) - 1) // 2]


def to_dict(analysis: Analysis) -> dict[str, Any]:
    """For JSON."""
    return asdict(analysis)
