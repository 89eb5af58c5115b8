"""The level guard: growth stops while the divergence D keeps rising above a threshold (floDl's LevelGuard)."""

import itertools
import math
from collections.abc import Sequence

from fdl_trainer.guard.verdict import STABLE, Judgement, Verdict

LEVEL_RING = 5
"""Values of D that the level guard remembers."""
LEVEL_RISES = 3
"""Newest values that must rise strictly before the level guard speaks."""


def is_measured(divergence: float) -> bool:
    """Whether a D is a measurement at all: finite and above zero."""
    return math.isfinite(divergence) and divergence > 0.0


def remember(ring: Sequence[float], divergence: float) -> tuple[float, ...]:
    """The guard's ring with one more D; a value that was not measured is left out."""
    return (*ring, divergence)[-LEVEL_RING:] if is_measured(divergence) else tuple(ring)


def level(ring: Sequence[float], threshold: float) -> Judgement:
    """Judgement over the ring, oldest first: never a nudge, and stable with fewer than three values."""
    newest = tuple(ring[-LEVEL_RISES:])
    rising = len(newest) == LEVEL_RISES and all(a < b for a, b in itertools.pairwise(newest))
    if not rising or newest[-1] <= threshold:
        return STABLE
    rise = ", ".join(f"{value:.3g}" for value in newest)
    why = f"Divergence rose three times ({rise}) and is above {threshold:.3g}."
    return Judgement(Verdict.SUPPRESS_GROWTH, "level", why)
