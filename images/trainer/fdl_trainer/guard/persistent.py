"""Persistent divergence: copies that stay far apart, window after window, end in a rollback.

The limit is ten times the level guard's threshold. The first window above it stops the growth of the anchor, the
second halves it, and the third calls for a rollback to the last checkpoint. The first three measured windows of a
training do not count: copies start far apart.

A rollback ends every rank at the same boundary; successors start from the newest checkpoint, as after any death of all
(:meth:`fdl_trainer.windows.Windows`). So that it is of before the divergence, none is taken by the clock in windows
above the limit.
"""

from fdl_trainer.guard.verdict import STABLE, Judgement, Verdict

HARD_LIMIT = 10.0
"""Times the threshold above which a window counts."""
IGNORED = 3
"""First measured windows of a training that do not count."""
HALF = 0.5
"""What a nudge or a rollback leaves of the anchor."""


def persistent(hot: int, divergence: float, threshold: float, measured: int) -> tuple[int, Judgement]:
    """Windows in a row above the limit, with this one, and what that means.

    Args:
        hot: windows in a row above the limit until now.
        divergence: D of this window; must have been measured.
        threshold: the level guard's threshold, not scaled.
        measured: windows with a D until now, without this one.
    """
    limit = HARD_LIMIT * threshold
    if measured < IGNORED or divergence <= limit:
        return 0, STABLE
    hot += 1
    if hot == 1:
        why = f"Divergence {divergence:.3g} is above the hard limit of {limit:.3g}."
        return hot, Judgement(Verdict.SUPPRESS_GROWTH, "persistent", why)
    why = f"Divergence {divergence:.3g} is above the hard limit of {limit:.3g} for the window {hot} in a row."
    if hot == 2:
        return hot, Judgement(Verdict.NUDGE_DOWN, "persistent", why, HALF)
    return 0, Judgement(Verdict.ROLLBACK, "persistent", why, HALF)
