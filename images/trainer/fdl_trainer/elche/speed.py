"""How fast a rank is: the mean of its last five windows, in milliseconds a batch.

A sample is a rank's cost of a window over its batches (floDl's "trust window"). What the plain mean lacks is added:
after two samples in a row that are off by more than 20 % in one direction the ring is flushed, because a mean of five
takes five windows to see that two devices swapped their speeds; and one such sample alone is an outlier. Of a window
within which the speed changed, the mean of both speeds is no sample of the new one.

*Cost* is of one kind for all ranks of a window (:func:`cost_kind`): mixing kinds would invert the ranking.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from fdl_trainer.elche.knobs import Policy
from fdl_trainer.exact import mean

RING = 5
"""Windows over which a rank's speed is averaged."""
STEP_CHANGE = 0.2
"""Relative distance from the mean at which a sample is suspect; two in one direction are a change of speed."""
ALIKE = 0.1
"""Relative distance within which samples are of one speed."""
FAR, TELLING = 3.0, 4
"""How far a sample stands out of noise: its ratio to the mean, beyond 1, in such of the accepted samples' extremes; and
how many they must be to tell. Of five normal samples the extremes are 2.3 standard deviations apart on average."""
EMPTY_LIMIT = 5
"""Empty windows in a row after which a rank's speed is no longer known."""


@dataclass(frozen=True)
class RankReport:
    """What a rank did in a committed window, from the reduced tail.

    Args:
        uid: the rank.
        batches: micro-batches that it contributed.
        compute_ms: milliseconds that it spent on them without waiting for data.
        wait_ms: milliseconds that it waited for data, the first batch of the window left out: that one's excess is
            the loader's fill, a fixed cost of the window and not of its batches.
    """

    uid: str
    batches: int
    compute_ms: float
    wait_ms: float


class Cost(StrEnum):
    """What a batch is taken to cost."""

    COMPUTE = "compute"
    """Training alone."""
    DELIVERED = "delivered"
    """Training and waiting for data: what a rank really delivers."""


@dataclass(frozen=True)
class RankSpeed:
    """What is known of one rank.

    Args:
        ring: newest accepted samples, milliseconds a batch, oldest first.
        suspect: a sample far from the mean that waits for the next one; 0 when there is none.
        reports: windows in which the rank moved. The first one warms caches and is never a sample.
        empty: windows in a row in which it did not move.
        quota: batches planned for its window; 0 before the first plan.
        lease: batches that it is given, at least the quota; more where it stops by time (:mod:`..elche.deadline`).
    """

    ring: tuple[float, ...] = ()
    suspect: float = 0.0
    reports: int = 0
    empty: int = 0
    quota: int = 0
    lease: int = 0

    @property
    def ms_per_batch(self) -> float:
        """Mean of the ring in milliseconds a batch; 0 when the speed is not known."""
        return mean(self.ring)


def cost_kind(known: Sequence[RankSpeed], reports: Sequence[RankReport], policy: Policy) -> Cost:
    """The one kind of cost at which all ranks of a window are measured.

    Delivered cost needs a wait of every rank that counts, and the first batch's does not count, so each must have done
    at least two batches. In sync modes ranks wait for each other after every batch, so that only compute tells them
    apart.
    """
    if policy is Policy.SYNC:
        return Cost.COMPUTE
    counted = [report for speed, report in zip(known, reports, strict=True) if report.batches > 0 and speed.reports > 0]
    whole = all(report.batches > 1 and math.isfinite(report.wait_ms) and report.wait_ms >= 0.0 for report in counted)
    return Cost.DELIVERED if whole else Cost.COMPUTE


def sample(known: RankSpeed, report: RankReport, kind: Cost) -> float:
    """Milliseconds a batch that a report tells, or 0 when it tells nothing."""
    if report.batches <= 0 or known.reports == 0:
        return 0.0
    cost_ms = report.compute_ms / report.batches
    if kind is Cost.DELIVERED:
        cost_ms += report.wait_ms / (report.batches - 1)
    return cost_ms if math.isfinite(cost_ms) and report.compute_ms > 0.0 else 0.0


def learn(known: RankSpeed, batches: int, sample_ms: float) -> RankSpeed:
    """One rank's memory after a window with ``batches`` batches and a sample (0: none)."""
    if batches <= 0:
        empty = known.empty + 1
        return replace(known, empty=empty, ring=() if empty >= EMPTY_LIMIT else known.ring)
    known = replace(known, empty=0, reports=known.reports + 1)
    return _push(known, sample_ms) if sample_ms > 0.0 else known


def stands_out(known: RankSpeed, sample_ms: float) -> bool:
    """Whether a sample that is off by more than :data:`STEP_CHANGE` is further off than noise explains.

    It is where the accepted samples are of one speed, or lie far closer to each other than to it. Ratios are compared,
    so that faster and slower count alike. The ratio of the extremes of a few samples says too little.
    """
    usual, ring = known.ms_per_batch, known.ring
    if not ring or max(ring) - min(ring) <= ALIKE * usual:
        return True
    ratio = max(sample_ms / usual, usual / sample_ms)
    return len(ring) >= TELLING and ratio - 1.0 >= FAR * (max(ring) / min(ring) - 1.0)


def _push(known: RankSpeed, sample_ms: float) -> RankSpeed:
    """Take a sample in: a lone outlier is left out, two in one direction replace the ring."""
    usual = known.ms_per_batch
    if not known.ring or abs(sample_ms - usual) <= STEP_CHANGE * usual:
        return replace(known, ring=(*known.ring, sample_ms)[-RING:], suspect=0.0)
    if known.suspect == 0.0:
        return replace(known, suspect=sample_ms)
    if (known.suspect > usual) == (sample_ms > usual):
        # Where the second goes further, the speed has changed within the first one's window, which tells of neither.
        further = abs(sample_ms - usual) > abs(known.suspect - usual) + ALIKE * sample_ms
        within = further and stands_out(known, sample_ms)
        return replace(known, ring=(sample_ms,) if within else (known.suspect, sample_ms), suspect=0.0)
    if stands_out(known, sample_ms) and not stands_out(known, known.suspect):
        return replace(known, ring=(*known.ring, known.suspect)[-RING:], suspect=sample_ms)
    # One above and one below are jitter, which the mean has to see.
    return replace(known, ring=(*known.ring, known.suspect, sample_ms)[-RING:], suspect=0.0)
