"""Which rank is the anchor rank: the slowest one, with hysteresis, so that two equal ranks do not take turns.

Ranks at or above 0.85 of the slowest one's time a batch are the *slow cohort* (floDl). The anchor rank stays while it
is in it, unless another rank is slower by more than a tenth; if it has left it, the first of them takes over.
Before the phase is stable the first one elected stays, since early samples mislead.
"""

from collections.abc import Sequence
from dataclasses import replace

from fdl_trainer.elche.state import ElcheState

SLOW_COHORT = 0.85
"""Ranks at or above this part of the slowest rank's time a batch may be the anchor rank."""
CHALLENGE = 1.10
"""A rank takes the anchor over from one in the slow cohort only if it is slower by this factor."""


def elect(state: ElcheState, members: Sequence[str]) -> ElcheState:
    """The state with its anchor rank chosen among the members whose speed is known, in their order."""
    speeds = {uid: ms for uid in members if (ms := state.ms_per_batch(uid)) > 0.0}
    if not speeds:
        return state
    present = speeds.get(state.anchor_rank, 0.0)
    if present and not state.is_settled:
        return state
    slowest = max(speeds.values())
    if present >= SLOW_COHORT * slowest and slowest <= CHALLENGE * present:
        return state
    if present >= SLOW_COHORT * slowest:
        elected = next(uid for uid, ms in speeds.items() if ms == slowest)
    else:
        elected = next(uid for uid, ms in speeds.items() if ms >= SLOW_COHORT * slowest)
    return replace(state, anchor_rank=elected, moved=state.moved or elected != state.anchor_rank)
