"""The growth guard: acts on the rate at which the divergence D grows a step (floDl's GrowthGuard).

``lambda = ln(D_t / D_{t-1}) / steps`` is smoothed, ``e <- 0.9 e + 0.1 lambda``, and freed of the bias towards its
start at zero, ``e / (1 - 0.9**t)``. Three windows above 1e-3 a step stop the growth of the anchor; three above 1e-2
halve it. A rise of the learning rate explains an equal rise of D, so it is subtracted.
"""

from dataclasses import dataclass, replace

from fdl_trainer.exact import ln
from fdl_trainer.guard.verdict import STABLE, Judgement, Verdict

KEEP = 0.9
"""Weight of what was before in the smoothed rate."""
SLOW_GROWTH, FAST_GROWTH = 1e-3, 1e-2
"""Rates a step above which growth of the anchor stops, and above which the anchor shrinks."""
STREAK = 3
"""Windows in a row that must be above a rate."""
NUDGE_FACTOR = 0.5
"""What fast growth leaves of the anchor."""
SMALLEST = 1e-8
"""At or below this, D says nothing, and the next value has nothing to be compared with."""


@dataclass(frozen=True)
class GrowthMemory:
    """What the growth guard remembers.

    Args:
        divergence: D of the previous window; 0 when there is none to compare with.
        smoothed: e, the biased mean rate a step.
        bias: ``0.9**t`` over the t rates seen, kept as a product because powers differ between machines.
        slow, fast: windows in a row above :data:`SLOW_GROWTH` and :data:`FAST_GROWTH`.
    """

    divergence: float = 0.0
    smoothed: float = 0.0
    bias: float = 1.0
    slow: int = 0
    fast: int = 0

    @property
    def rate(self) -> float:
        """Smoothed growth of ln D a step, corrected for its start; 0 before the first rate."""
        return self.smoothed / (1.0 - self.bias) if self.bias < 1.0 else 0.0


def growth(
    memory: GrowthMemory, divergence: float, steps: int, lr: float = 0.0, lr_before: float = 0.0
) -> tuple[GrowthMemory, Judgement]:
    """Take one D in and judge.

    Args:
        memory: what was known before.
        divergence: D; must be finite.
        steps: most batches that a rank did in the window that D is of.
        lr, lr_before: learning rate now and in the window before, 0 where not known; only a rise counts.
    """
    if divergence <= SMALLEST:
        return replace(memory, divergence=0.0), STABLE
    if memory.divergence == 0.0 or steps <= 0:
        return replace(memory, divergence=divergence), STABLE
    explained = ln(lr) - ln(lr_before) if 0.0 < lr_before < lr else 0.0
    sample = (ln(divergence / memory.divergence) - explained) / steps
    memory = replace(
        memory,
        divergence=divergence,
        smoothed=KEEP * memory.smoothed + (1.0 - KEEP) * sample,
        bias=memory.bias * KEEP,
    )
    rate = memory.rate
    memory = replace(
        memory,
        slow=memory.slow + 1 if rate > SLOW_GROWTH else 0,
        fast=memory.fast + 1 if rate > FAST_GROWTH else 0,
    )
    if memory.fast >= STREAK:
        why = f"Divergence grows by {rate:.2%} a step, above {FAST_GROWTH:.1%} in {STREAK} windows."
        return replace(memory, fast=0), Judgement(Verdict.NUDGE_DOWN, "growth", why, NUDGE_FACTOR)
    if memory.slow >= STREAK:
        why = f"Divergence grows by {rate:.2%} a step, above {SLOW_GROWTH:.1%} in {STREAK} windows."
        return replace(memory, slow=0), Judgement(Verdict.SUPPRESS_GROWTH, "growth", why)
    return memory, STABLE
