"""Whether the ranks' copies stay close enough for the anchor to grow.

The level guard looks at D, the largest relative distance between a rank's parameters before an averaging and the
average, and holds growth while D keeps rising above a threshold (research: floDl's LevelGuard).
"""

import itertools
import math
from collections.abc import Sequence
from enum import StrEnum

LEVEL_RING = 5
"""Values of D that the level guard remembers."""
LEVEL_RISES = 3
"""Newest values that must rise strictly before the level guard speaks."""


class Verdict(StrEnum):
    """What a guard says after a window."""

    STABLE = "stable"
    """Staged growth of the anchor may be committed."""
    SUPPRESS_GROWTH = "suppressGrowth"
    """Staged growth is dropped, and the anchor stays until enough stable windows follow."""
    NUDGE_DOWN = "nudgeDown"
    """Staged growth is dropped and the anchor shrinks at once."""


def remember(ring: Sequence[float], divergence: float) -> tuple[float, ...]:
    """The guard's ring with one more D; a value that is not finite or not measured (<= 0) is left out."""
    if not math.isfinite(divergence) or divergence <= 0.0:
        return tuple(ring)
    return (*ring, divergence)[-LEVEL_RING:]


def level(ring: Sequence[float], threshold: float) -> Verdict:
    """Verdict over the ring, oldest first: never a nudge, and stable with fewer than three values."""
    newest = ring[-LEVEL_RISES:]
    rising = len(newest) == LEVEL_RISES and all(a < b for a, b in itertools.pairwise(newest))
    return Verdict.SUPPRESS_GROWTH if rising and newest[-1] > threshold else Verdict.STABLE
