"""Quotas: how many batches each rank trains in the next window.

floDl rounds ``A m_s / m_r`` to the nearest whole number, with A the anchor and m_s, m_r the milliseconds a batch of the
anchor rank and of rank r. Then the rank that was rounded up most makes all others wait. Here the window's *length* is
chosen: between A and A + 1/2 batches of the anchor rank, where the batches that fit, ``floor(length / m_r)``, are most
a millisecond. Where a length fits all ranks exactly, both give the same ([115, 50] at m = [4, 9.2] and A = 50); on
average over random speeds of 8 ranks at A = 10 it is 0.9 % faster, of 32 ranks 1.5 %. A search over larger anchors
(A .. 1.2 A) brought no more than the larger anchor itself, so there is none.

The plan is left as it is while no quota would move by more than the dead zone; never against a new anchor or a new
anchor rank, where a dead zone on each step would leave [113, 49] where [115, 50] is right.
"""

import heapq
import itertools
from collections.abc import Mapping, Sequence

from fdl_api.spec_policy import RATIO_CAP
from fdl_trainer.elche import hints
from fdl_trainer.elche.hints import FIRST_QUOTA
from fdl_trainer.elche.knobs import ElcheKnobs, Policy
from fdl_trainer.elche.state import ElcheState
from fdl_trainer.ledger import apportion


def wanted(state: ElcheState, members: Sequence[str], spec: ElcheKnobs, policy: Policy) -> dict[str, int]:
    """Quota of each member before the window cap."""
    first = first_quotas(state, members, members, policy)
    slow_ms = state.ms_per_batch(state.anchor_rank)
    if policy is Policy.SYNC or slow_ms <= 0.0:
        return first
    speeds = {uid: ms for uid in members if (ms := state.ms_per_batch(uid)) > 0.0}
    if spec.max_batch_diff == 0:
        return {**first, **dict.fromkeys(speeds, state.anchor)}
    targets = best_window(speeds, state.anchor, slow_ms)
    before = {uid: state.ranks[uid].quota for uid in speeds}
    if not state.moved and all(abs(targets[uid] - held) <= spec.dead_zone * held for uid, held in before.items()):
        targets = before
    if spec.max_batch_diff is not None:
        targets = {uid: _step(before[uid], target, spec.max_batch_diff) for uid, target in targets.items()}
    return {**first, **targets}


def best_window(speeds: Mapping[str, float], anchor: int, slow_ms: float) -> dict[str, int]:
    """Batches of each rank in the window with most batches a millisecond; of equals, the shortest.

    Args:
        speeds: milliseconds a batch by rank.
        anchor: batches of the anchor rank, A.
        slow_ms: its milliseconds a batch, m_s. The window is from ``A m_s`` to below ``(A + 1/2) m_s`` long, or as long
            as one batch of a rank that is slower still.

    Returns:
        From 1 to 64 A batches for each rank.
    """
    least, most = anchor * slow_ms, (anchor + 0.5) * slow_ms
    quotas: dict[str, int] = {}
    further: list[tuple[float, int, str]] = []
    for place, (uid, ms) in enumerate(speeds.items()):
        fit = int(least / ms)
        fit += (fit + 1) * ms <= least  # the division may have been rounded down
        quotas[uid] = min(max(fit, 1), RATIO_CAP * anchor)
        more = range(quotas[uid] + 1, RATIO_CAP * anchor + 1)
        further += itertools.takewhile(lambda end: end[0] < most, ((count * ms, place, uid) for count in more))
    further.sort()
    length = max([least, *(quotas[uid] * ms for uid, ms in speeds.items())])
    total = sum(quotas.values())
    best, taken = total / length, 0
    for count, (end, _, _) in enumerate(further, start=1):
        length = max(length, end)
        if (total + count) / length > best:
            best, taken = (total + count) / length, count
    for _, _, uid in further[:taken]:
        quotas[uid] += 1
    return quotas


def _step(before: int, target: int, most: int) -> int:
    """A quota on its way to a target, by at most so many batches; the first one may be any."""
    return max(1, min(max(target, before - most), before + most)) if before else target


def first_quotas(state: ElcheState, joiners: Sequence[str], members: Sequence[str], policy: Policy) -> dict[str, int]:
    """Quotas of ranks of unknown speed; in sync modes, of any.

    Two batches, or in proportion to what is believed of their speeds while nothing is measured; in sync modes the
    anchor, or fixed shares by the user's ratios.

    Args:
        state: the state, for the anchor, the shares and whether speeds are known.
        joiners: ranks to give a quota to.
        members: all ranks of the window.
        policy: sync or cadence.
    """
    shares = [state.shares.get(uid, 0.0) for uid in members]
    if not shares or min(shares) <= 0.0 or (policy is not Policy.SYNC and state.anchor_rank):
        return dict.fromkeys(joiners, first_quota(state, policy))
    batches = hints.fixed_shares(shares) if policy is Policy.SYNC else hints.whole_batches(shares, FIRST_QUOTA)
    quotas = dict(zip(members, batches, strict=True))
    return {uid: quotas[uid] for uid in joiners}


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
