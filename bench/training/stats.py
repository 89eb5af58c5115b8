"""Medians and bootstrap intervals. Pure."""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

RESAMPLES = 4000
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its bootstrap interval.

    Attributes:
        value: the estimate of all values.
        low: lower end of the interval.
        high: upper end of the interval.
        count: values that it is made of.
    """

    value: float
    low: float
    high: float
    count: int


def bootstrap(
    values: Sequence[float],
    estimate: Callable[[Sequence[float]], float] = median,
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
    level: float = LEVEL,
) -> Interval:
    """The estimate of the values, with its percentile bootstrap interval (B. Efron, 1979).

    Nothing is discarded. With a handful of values the interval is coarse: its ends are values that were measured.

    Args:
        values: at least one.
        estimate: of a sample; the median when left out.
        seed: of the resampling, so that the same values give the same interval.
        resamples: samples drawn with replacement.
        level: share of the resampled estimates inside the interval.

    Raises:
        ValueError: there is no value, or one is not finite.
    """
    if not values:
        raise ValueError("a bootstrap needs at least one value")
    if not all(math.isfinite(value) for value in values):
        raise ValueError(f"a bootstrap needs finite values, not {list(values)}")
    draw = random.Random(seed)  # noqa: S311 - statistics, not secrets
    estimates = sorted(estimate(draw.choices(values, k=len(values))) for _ in range(resamples))
    tail = (1.0 - level) / 2.0
    low = estimates[math.floor(tail * (resamples - 1))]
    high = estimates[math.ceil((1.0 - tail) * (resamples - 1))]
    return Interval(estimate(values), low, high, len(values))


def paired_ratios(own: dict[int, float], other: dict[int, float]) -> list[float]:
    """Ratios round by round, of the rounds in which both were measured, in order of the rounds."""
    return [own[number] / other[number] for number in sorted(own) if other.get(number, 0.0) > 0.0]


def mean_interval(values: Sequence[float], *, seed: int = 0) -> Interval:
    """The mean with its bootstrap interval."""
    return bootstrap(values, fmean, seed=seed)


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which a share of the values lies, linear between neighbours.

    Raises:
        ValueError: there is no value.
    """
    if not values:
        raise ValueError("a quantile needs at least one value")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)
