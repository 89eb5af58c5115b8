"""Time to target: seconds from the first batch until the training loss has come down to a given value. Pure.

Samples a second alone mean little for methods that average seldom: their copies drift apart, and a sample may teach
less. All methods train with the same batch size a rank and the same learning rate. The loss is that of the batches
that were trained, before their step, as each rank sees it; it counts from the commit on in which its samples are.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

TRAILING = 32
"""Batches of the workload's size over which the loss is averaged, at least: one batch alone says little."""

Point = tuple[float, int, float]
"""Of a loss curve: seconds, samples so far, mean loss since the point before."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """When a slice came to its target.

    Attributes:
        seconds: from the first batch; where the target was not reached, how long the slice was watched.
        reached: whether it was.
    """

    seconds: float
    reached: bool


def arrival(curve: Sequence[Point], target: float, trailing: int) -> Arrival | None:
    """The first commit at which the mean loss of the newest samples is at most the target; None without a curve.

    Args:
        curve: points in order.
        target: the loss.
        trailing: samples that are averaged over, at least. More where the newest commit has more.
    """
    if not curve:
        return None
    kept: deque[tuple[int, float]] = deque()
    samples, total, before = 0, 0.0, 0
    for seconds, so_far, loss in curve:
        new = so_far - before
        before = so_far
        kept.append((new, loss))
        samples, total = samples + new, total + new * loss
        while samples - kept[0][0] >= trailing:
            old, its = kept.popleft()
            samples, total = samples - old, total - old * its
        if samples >= trailing and total / samples <= target:
            return Arrival(seconds, reached=True)
    return Arrival(curve[-1][0], reached=False)


def times_as_fast(own: Mapping[int, Arrival], other: Mapping[int, Arrival]) -> list[float]:
    """How many times as fast one method was at its target as another, round by round.

    Never in favour of the first: where the other one did not get there, its time is what it was watched for; where the
    first did not, the ratio is 0. Rounds in which neither did say nothing.
    """
    ratios = []
    for number in sorted(own.keys() & other.keys()):
        mine, theirs = own[number], other[number]
        if mine.reached:
            ratios.append(theirs.seconds / mine.seconds)
        elif theirs.reached:
            ratios.append(0.0)
    return ratios
