"""What a guard can say, and what it saw."""

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """What happens to the anchor after a window, mildest first."""

    STABLE = "stable"
    """Staged growth of the anchor may be committed."""
    SUPPRESS_GROWTH = "suppressGrowth"
    """Staged growth is dropped, and the anchor stays until enough stable windows follow."""
    NUDGE_DOWN = "nudgeDown"
    """Staged growth is dropped and the anchor shrinks at once."""
    ROLLBACK = "rollback"
    """The copies stay far apart: the training goes back to its last checkpoint."""

    @property
    def severity(self) -> int:
        """0 for stable, growing with the damage that the verdict averts."""
        return list(Verdict).index(self)


class Phase(StrEnum):
    """How much is known of the ranks' speeds; phases only go forward."""

    PROBE = "probe"
    """No speed is known yet."""
    WARMUP = "warmup"
    """1 to 4 calibrations (windows that gave a speed)."""
    STABLE = "stable"
    """5 to 19."""
    MATURE = "mature"
    """20 and more."""


@dataclass(frozen=True)
class Judgement:
    """A verdict with its reason.

    Args:
        verdict: what happens to the anchor.
        guard: who says so: ``level``, ``growth``, ``persistent`` or ``meta``; empty when all is well.
        why: a sentence with the figures; empty when all is well.
        factor: for a nudge or a rollback, the part of the anchor that is left (0..1).
    """

    verdict: Verdict = Verdict.STABLE
    guard: str = ""
    why: str = ""
    factor: float = 1.0


STABLE = Judgement()
"""All is well."""


def gravest(*judgements: Judgement) -> Judgement:
    """The most severe judgement; of equals, the one that leaves least of the anchor, then the first."""
    return min(judgements, key=lambda judged: (-judged.verdict.severity, judged.factor))


@dataclass(frozen=True)
class Signal:
    """What the guards see of a committed window; equal on all ranks.

    Args:
        window: its number.
        divergence: D, the largest relative distance between a rank's parameters before an averaging and the average,
            ``|W_r - W| / |W|``; of the previous window, since it is measured at the commit. 0 when not measured.
        steps: most batches that a rank did in this window.
        lr: largest learning rate of any rank at the end of the window; 0 when not known.
        anchor: batches of the anchor rank in this window.
        phase: how far the calibration is.
    """

    window: int
    divergence: float
    steps: int
    lr: float
    anchor: int
    phase: Phase
