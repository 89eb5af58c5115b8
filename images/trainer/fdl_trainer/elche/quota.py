"""Quotas: how many batches each rank trains in the next window.

``b_r = max(1, round(A min(m_s / m_r, 64)))`` with A the anchor, m_s and m_r the milliseconds a batch of the anchor rank
and of rank r; halves round up. A change below the dead zone is left out, but never against a new anchor or a new anchor
rank: there, a dead zone on each step would leave [113, 49] where [115, 50] is right.
"""

import heapq
import math
from collections.abc import Mapping, Sequence

from fdl_trainer.elche import hints
from fdl_trainer.elche.knobs import ElcheKnobs, Policy
from fdl_trainer.elche.speed import RankSpeed
from fdl_trainer.elche.state import ElcheState
from fdl_trainer.ledger import apportion

FIRST_QUOTA = 2
"""Batches of a rank whose speed is not known: few, since everybody waits for it."""
RATIO_CAP = 64.0
"""How many times the anchor a quota may be."""


def wanted(state: ElcheState, members: Sequence[str], spec: ElcheKnobs, policy: Policy) -> dict[str, int]:
    """Quota of each member before the window cap."""
    first = first_quotas(state, members, members, spec, policy)
    if policy is Policy.SYNC:
        return first
    return {uid: _by_speed(state, state.ranks[uid], spec, first[uid]) for uid in members}


def first_quotas(
    state: ElcheState, joiners: Sequence[str], members: Sequence[str], spec: ElcheKnobs, policy: Policy
) -> dict[str, int]:
    """Quotas of ranks of unknown speed; in sync modes, of any.

    Two batches, or in proportion to the user's ratios while nothing is measured; in sync modes the anchor, or fixed
    shares by those ratios.

    Args:
        state: the state, for the anchor and whether speeds are known.
        joiners: ranks to give a quota to.
        members: all ranks of the window, in order: ratio i belongs to member i.
        spec: the run's knobs.
        policy: sync or cadence.
    """
    ratios = hints.usable(spec.partition_ratios, len(members))
    if ratios is not None and policy is Policy.SYNC:
        shares = dict(zip(members, hints.fixed_shares(ratios), strict=True))
    elif ratios is not None and not state.anchor_rank:
        shares = dict(zip(members, hints.whole_batches(ratios, FIRST_QUOTA), strict=True))
    else:
        shares = dict.fromkeys(members, first_quota(state, policy))
    return {uid: shares[uid] for uid in joiners}


def first_quota(state: ElcheState, policy: Policy) -> int:
    """Batches of a rank of unknown speed of which nobody knows anything."""
    return state.anchor if policy is Policy.SYNC else FIRST_QUOTA


def within_epoch(quotas: Mapping[str, int], epoch_batches: int) -> tuple[dict[str, int], bool]:
    """Scale quotas down so that a window does not exceed a data epoch; at least one batch each wins over the cap.

    Returns:
        The quotas, and whether the cap binds.
    """
    if sum(quotas.values()) <= epoch_batches:
        return dict(quotas), False
    shares = dict(zip(quotas, apportion(list(quotas.values()), epoch_batches), strict=True))
    heap = [(-share, place, uid) for place, (uid, share) in enumerate(shares.items())]
    heapq.heapify(heap)
    for uid in [uid for uid, share in shares.items() if share == 0]:
        share, place, largest = heap[0]
        shares[largest] = max(1, shares[largest] - 1)
        heapq.heapreplace(heap, (share + 1, place, largest))
        shares[uid] = 1
    return shares, True


def _by_speed(state: ElcheState, speed: RankSpeed, spec: ElcheKnobs, first: int) -> int:
    """Quota of one rank in a cadence mode; ``first`` while its speed or the anchor rank's is not known."""
    slow_ms = state.ms_per_batch(state.anchor_rank)
    if not speed.ring or slow_ms <= 0.0:
        return first
    if spec.max_batch_diff == 0:
        return state.anchor
    target = max(1, math.floor(state.anchor * min(slow_ms / speed.ms_per_batch, RATIO_CAP) + 0.5))
    if not state.moved and speed.quota and abs(target - speed.quota) <= spec.dead_zone * speed.quota:
        return speed.quota
    if spec.max_batch_diff is not None and speed.quota:
        target = min(max(target, speed.quota - spec.max_batch_diff), speed.quota + spec.max_batch_diff)
    return max(1, target)
