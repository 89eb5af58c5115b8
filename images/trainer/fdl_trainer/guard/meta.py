"""The meta controller: shrinks the anchor when the learning rate falls off a cliff, or when guards never rest.

Two watchers (floDl's meta controller):

* *cliff*: the learning rate fell by more than 30 % between two windows: base 0.5. A rise and a smooth decay are silent.
* *pattern*: the last K verdicts of the guards were all other than stable; K and base by phase in :data:`PATTERNS`.

``trend = (A - mean) / mean`` over the last five anchors bends the base: ``factor = base - (1 - base) * trend``, so that
an anchor that was rising is cut deeper and one that was falling less. Both at once multiply.
"""

from dataclasses import dataclass, replace

from fdl_trainer.exact import mean
from fdl_trainer.guard.verdict import STABLE, Judgement, Phase, Verdict

CLIFF = 0.30
"""Relative fall of the learning rate between two windows that is a cliff."""
CLIFF_BASE = 0.5
PATTERNS = {Phase.WARMUP: (5, 0.3), Phase.STABLE: (3, 0.5), Phase.MATURE: (2, 0.7)}
"""Phase -> (verdicts in a row, base); in the probe phase there is no pattern."""
ANCHORS = 5
"""Anchors that the trend looks at, the present one included."""
LEAST, MOST = 0.1, 0.95
"""Bounds of the factor."""


@dataclass(frozen=True)
class MetaMemory:
    """What the meta controller remembers.

    Args:
        unrest: verdicts other than stable in a row.
        anchors: newest anchors, oldest first.
    """

    unrest: int = 0
    anchors: tuple[int, ...] = ()

    @property
    def trend(self) -> float:
        """Relative distance of the newest anchor from the mean; 0 with fewer than two."""
        if len(self.anchors) < 2:
            return 0.0
        usual = mean(self.anchors)
        return (self.anchors[-1] - usual) / usual


def is_cliff(before: float, now: float) -> bool:
    """Whether the learning rate fell by more than 30 %; unknown rates (0) never do."""
    return before > 0.0 and now > 0.0 and before - now > CLIFF * before


def meta(
    memory: MetaMemory, judged: Judgement, *, cliff: bool, anchor: int, phase: Phase
) -> tuple[MetaMemory, Judgement]:
    """Take a window in and judge.

    Args:
        memory: what was known before.
        judged: the guards' own judgement of the window.
        cliff: whether the learning rate fell off a cliff (:func:`is_cliff`).
        anchor: the anchor of the window.
        phase: how far the calibration is.
    """
    unrest = 0 if judged.verdict is Verdict.STABLE else memory.unrest + 1
    memory = MetaMemory(unrest, (*memory.anchors, anchor)[-ANCHORS:])
    factors, reasons = [], []
    if cliff:
        factors.append(_bent(CLIFF_BASE, memory.trend))
        reasons.append(f"the learning rate fell by more than {CLIFF:.0%}")
    patience, base = PATTERNS.get(phase, (0, 1.0))
    if patience and unrest >= patience:
        factors.append(_bent(base, memory.trend))
        reasons.append(f"the guards spoke {unrest} windows in a row")
        memory = replace(memory, unrest=0)
    if not factors:
        return memory, STABLE
    factor = factors[0] if len(factors) == 1 else min(max(factors[0] * factors[1], LEAST), MOST)
    why = " and ".join(reasons)
    return memory, Judgement(Verdict.NUDGE_DOWN, "meta", f"{why[0].upper()}{why[1:]}.", factor)


def _bent(base: float, trend: float) -> float:
    return min(max(base - (1.0 - base) * trend, LEAST), MOST)
