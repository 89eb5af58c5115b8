"""The targets, and whether a run reached them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from bench.averaging.report import TARGET
from bench.averaging.shapes import by_tensors
from bench.training.analysis import Analysis, Ratio
from bench.training.cohorts import COHORTS
from bench.training.payload import Cost
from bench.training.stats import Interval

LOWER = "lower bound"
RECOVERY_WINDOWS = 3
FEWEST_ROUNDS = 3
"""Rounds below which nothing is judged: an interval of two values says nothing."""
STATIC_PEERS = ("DDP proportional", "PostLocalSGD", "torchft LocalSGD", "torchft DiLoCo", "hivemind")


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target in a scenario.

    Attributes:
        target: in words.
        scenario: where.
        method: of fdl.
        value: what was measured.
        low: lower end of its interval; ``value`` where there is none.
        high: upper end.
        wanted: the least value that meets the target.
        rounds: that it is made of.
        judged: ``median`` or ``lower bound``: which of them has to reach ``wanted``.
        at_most: the value must not be above ``wanted``, instead of not below.
    """

    target: str
    scenario: str
    method: str
    value: float
    low: float
    high: float
    wanted: float
    rounds: int
    judged: str = "median"
    at_most: bool = False

    @property
    def met(self) -> bool | None:
        """Whether the target is reached; None when there were too few rounds to say."""
        if self.rounds < FEWEST_ROUNDS:
            return None
        return self.short_by == 0.0

    @property
    def short_by(self) -> float:
        """What is missing, in the unit of the value; 0 if met."""
        if self.at_most:
            return max(0.0, self.value - self.wanted)
        return max(0.0, self.wanted - (self.low if self.judged == LOWER else self.value))


def verdicts(analyses: Sequence[Analysis], device: str) -> list[Verdict]:
    """All targets that the measured scenarios can show, for each of fdl's own modes that ran (ablations have none)."""
    found: list[Verdict] = []
    for analysis in analyses:
        cohort = COHORTS[analysis.scenario.split(", ")[0]]
        for result in analysis.results:
            if not is_mode(result.method):
                continue
            found += _efficiency(analysis, result.method, device)
            found += _against_ddp(analysis, result.method, device)
            if cohort.unequal:
                found += _against_static(analysis, result.method)
            found += _recovery(analysis, result.method)
    return found


def cost_verdicts(costs: Sequence[Cost]) -> list[Verdict]:
    """Of the models whose cost has a target."""
    named = {load.name for load in by_tensors(1)}
    return [
        Verdict(
            target=f"a window besides compute costs at most {TARGET} times the floor",
            scenario=one.model,
            method=f"average by {one.wiring}",
            value=one.ratio.value,
            low=one.ratio.low,
            high=one.ratio.high,
            wanted=TARGET,
            rounds=one.ratio.count,
            at_most=True,
        )
        for one in costs
        if one.model in named
    ]


def is_mode(method: str) -> bool:
    """Whether it is one of fdl's modes that share work by speed, and not an ablation or a lock-step mode."""
    return method.startswith("fdl ") and method.endswith(("-cadence", "-async"))


def _efficiency(analysis: Analysis, method: str, device: str) -> list[Verdict]:
    result = analysis.result(method)
    wanted = 0.95 if device == "cuda" else 0.90
    cohorts = ("1:1", "1:2.3") if device == "cuda" else ("1:2.3", "1:1:4")
    if analysis.scenario.split(", ")[0] not in cohorts or result is None or result.interval is None:
        return []
    return [_verdict(analysis, method, result.interval, wanted, target=f"E_rate of at least {wanted:.2f}")]


def _against_ddp(analysis: Analysis, method: str, device: str) -> list[Verdict]:
    interval = analysis.ratio(method, "DDP")
    cohort = analysis.scenario.split(", ")[0]
    if interval is None:
        return []
    if cohort == "1:1":
        return [_verdict(analysis, method, interval, 0.98, target="not slower than DDP at 1:1", judged=LOWER)]
    wanted = {"1:2.3": 1.45, "1:1:4": 1.8}.get(cohort)
    if wanted is None or device != "cpu":
        return []
    return [_verdict(analysis, method, interval, wanted, target=f"at least {wanted} times DDP")]


def _against_static(analysis: Analysis, method: str) -> list[Verdict]:
    found = []
    for peer in STATIC_PEERS:
        interval = analysis.ratio(method, peer)
        if interval is not None:
            found.append(_verdict(analysis, method, interval, 1.0, target=f"ahead of {peer}", judged=LOWER))
    return found


def _recovery(analysis: Analysis, method: str) -> list[Verdict]:
    result = analysis.result(method)
    if result is None or not result.recovery:
        return []
    inside = [windows is not None and windows <= RECOVERY_WINDOWS for windows in result.recovery]
    share = sum(inside) / len(inside)
    text = f"back at 95 % within {RECOVERY_WINDOWS} windows of the swap (share of rounds)"
    return [Verdict(text, analysis.scenario, method, share, share, share, 0.5, len(inside))]


def _verdict(
    analysis: Analysis, method: str, interval: Interval, wanted: float, *, target: str, judged: str = "median"
) -> Verdict:
    return Verdict(
        scenario=analysis.scenario,
        method=method,
        value=interval.value,
        low=interval.low,
        high=interval.high,
        wanted=wanted,
        rounds=interval.count,
        target=target,
        judged=judged,
    )


def losses(analyses: Sequence[Analysis]) -> list[str]:
    """Where fdl's modes lose for certain to a method that is not fdl: the upper end of a ratio is below 1.

    Ratios of rates, and of the times to the target loss.
    """
    found = []
    for analysis in analyses:
        found += [
            f"{analysis.scenario}: {one.method} runs at {_times(one)} the speed of {one.other}, samples over samples"
            for one in _certain(analysis.ratios)
        ]
        found += [
            f"{analysis.scenario}: {one.method} is {_times(one)} as fast as {one.other} at a training loss of "
            f"{analysis.target:g}"
            for one in _certain(analysis.times)
        ]
    return found


def _certain(ratios: Sequence[Ratio]) -> list[Ratio]:
    return [
        one
        for one in ratios
        if one.interval.high < 1.0
        and one.interval.count >= FEWEST_ROUNDS
        and is_mode(one.method)
        and not one.other.startswith("fdl")
    ]


def _times(one: Ratio) -> str:
    found = one.interval
    return f"{found.value:.2f} times ({found.low:.2f} to {found.high:.2f}, n = {found.count})"
