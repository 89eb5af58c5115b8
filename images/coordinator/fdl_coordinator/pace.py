"""Ranks that are slower than work can be shared for. It is told and not judged: late is not dead. Pure."""

from collections.abc import Callable, Sequence

from fdl_api.spec_policy import RATIO_CAP
from fdl_api.wire import RankWindow


def too_slow(ranks: Sequence[RankWindow], who: Callable[[str], str]) -> list[str]:
    """A sentence about the slowest rank, if the others have to wait for it in every window.

    It has no figure that changes from window to window, so that it is said once.

    Args:
        ranks: the ranks of a window; milliseconds a batch are 0 where they are not known.
        who: a rank in words, by its UID.
    """
    known = [rank for rank in ranks if rank.ms_per_batch > 0.0]
    if not known:
        return []
    slowest = max(known, key=lambda rank: rank.ms_per_batch)
    if slowest.ms_per_batch <= RATIO_CAP * min(rank.ms_per_batch for rank in known):
        return []
    return [
        f"{who(slowest.uid)} takes more than {RATIO_CAP} times as long for a batch as the fastest rank: work is "
        "shared up to that, and the others wait for the rest. Find what slows it down (its node's CPU limit, a device "
        "that others use), or leave it out: fewer replicas in its entry of spec.cohorts, or a nodeSelector for others."
    ]
