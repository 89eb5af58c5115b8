"""How many deaths a run survives, how long a seat stays empty after one, and who pays for it.

A member that is given up for silence was fenced by the run, not killed by its node, and one hiccup of a network may do
that to hundreds at once: the first time in a row it costs nothing but a successor. A node that starves or loses its
members does it to the same seat again and again: from the second in a row on it is billed as infrastructure, and the
seat waits ever longer.
"""

import math

from fdl_api.reasons import Ended
from fdl_api.run import FailurePolicySpec, MemberPhase, SeatCounters
from fdl_api.termination import Cause
from fdl_operator import clock
from fdl_operator.model import PodRecord
from fdl_operator.plan.deaths import SEAT_ONLY, Death
from fdl_operator.plan.draft import Draft, Seat, seat_name
from fdl_operator.settings import Limits

STEADY_SECONDS = 600.0
"""A member that ran this long is not crash-looping: its seat's waiting starts from the beginning."""
_BUDGETS = {
    Cause.APP: "app",
    Cause.INFRASTRUCTURE: "infrastructure",
    Cause.PREEMPTION: "preemption",
    Cause.FENCED: "infrastructure",
}


def lasted(death: Death, pod: PodRecord | None, ended: float, *, committed: bool) -> bool:
    """Whether a holder was worth its seat, so that what came before it does not count any more.

    Work alone proves nothing for one that was given up: a node that starves its members lets each of them commit a
    window or two between two silences. Time proves nothing for one that was refused: building the model may take long.

    Args:
        death: how it ended.
        pod: its pod, while it is still there.
        ended: when it ended (seconds since 1970).
        committed: it has committed a window with work of its own.
    """
    return not death.refused and (_steady(pod, ended) or (committed and not death.given_up))


def _steady(pod: PodRecord | None, ended: float) -> bool:
    return pod is not None and pod.created_at > 0 and ended - pod.created_at > STEADY_SECONDS


def bill(draft: Draft, seat: Seat, death: Death, *, ended: float, lasted: bool) -> int:
    """Charge a death to its budget, once, and count those in a row that did not last.

    Args:
        draft: keeps the counters.
        seat: whose holder died.
        death: how.
        ended: when (seconds since 1970).
        lasted: see :func:`lasted`.

    Returns:
        Holders of the seat in a row that did not last, this one included.
    """
    entry = draft.counters.get(seat) or SeatCounters(seat=seat_name(seat))
    in_a_row = 0 if lasted else entry.in_a_row + _counts(death)
    field = _BUDGETS.get(death.cause)
    if death.cause is Cause.FENCED and in_a_row < 2:
        field = None
    if field is None and in_a_row == entry.in_a_row:
        return in_a_row
    update: dict[str, object] = {"in_a_row": in_a_row, "ended_at": clock.render(ended)}
    if field is not None:
        update[field] = getattr(entry, field) + 1
    draft.counters[seat] = entry.model_copy(update=update)
    return in_a_row


def _counts(death: Death) -> bool:
    """Whether a death says something about seat and node. A lost node does not: the successor goes elsewhere."""
    return death.cause in (Cause.INFRASTRUCTURE, Cause.FENCED) and death.reason != Ended.NODE_LOST


def total(draft: Draft, cause: Cause) -> int:
    """Deaths of a cause over all seats that exist. Scaled-away seats have dropped out (case J10)."""
    return sum(getattr(entry, str(cause)) for entry in draft.counters.values())


def exceeded(draft: Draft) -> str:
    """Sentence that names the budget that is exceeded, or an empty one.

    Replacements of the coordinator count as infrastructure. Deaths of a seat that the coordinator refuses do not fail
    the run: see :func:`is_parked`.
    """
    budgets = draft.spec.failure_policy.budgets
    refused = refused_seats(draft)
    app = sum(entry.app for seat, entry in draft.counters.items() if seat not in refused)
    rows = (
        ("app", app, budgets.app),
        ("infrastructure", total(draft, Cause.INFRASTRUCTURE) + draft.coordinator_restarts, budgets.infrastructure),
        ("preemption", total(draft, Cause.PREEMPTION), budgets.preemption),
    )
    for name, count, limit in rows:
        if limit is not None and count > limit:
            deaths = (death for death in draft.deaths.values() if _BUDGETS.get(death.cause) == name)
            last = next((f"; last: {death.message}" for death in deaths), "")
            return f"{count} deaths by cause {name} exceed spec.failurePolicy.budgets.{name} of {limit}{last}"
    return ""


def refused_seats(draft: Draft) -> set[Seat]:
    """Seats whose last holder the coordinator refused, and whose successor has not been admitted yet."""
    return {
        seat
        for seat, member in draft.members.items()
        if member.phase is not MemberPhase.RUNNING and member.reason in SEAT_ONLY
    }


def failure_limit(policy: FailurePolicySpec, wanted: int) -> int | None:
    """Members dead at one time at which the run is given up; percentages are rounded up, and at least 1."""
    if policy.max_failures is None:
        return None
    text = str(policy.max_failures)
    if text.endswith("%"):
        return max(1, math.ceil(wanted * int(text[:-1]) / 100))
    return int(text)


def dead_at_once(draft: Draft) -> int:
    """Seats without a working member because of a death: the dead, and successors that are not training yet."""
    count = 0
    for seat, member in draft.members.items():
        died = member.phase in (MemberPhase.FAILED, MemberPhase.LOST)
        succeeding = member.phase in (MemberPhase.PENDING, MemberPhase.STARTING) and seat in draft.counters
        count += died or succeeding
    return count


def too_many_dead(draft: Draft) -> str:
    """Sentence when spec.failurePolicy.maxFailures is reached, or an empty one."""
    limit = failure_limit(draft.spec.failure_policy, draft.wanted_total)
    if limit is None:
        return ""
    dead = dead_at_once(draft)
    if dead < limit:
        return ""
    return (
        f"{dead} of {draft.wanted_total} members are dead at one time, which reaches "
        f"spec.failurePolicy.maxFailures {draft.spec.failure_policy.max_failures}"
    )


def is_parked(draft: Draft, seat: Seat, death: Death) -> bool:
    """Whether a refused seat has had as many tries as the app budget allows; it then stays empty.

    What a member's image or devices are refused for is billed to infrastructure, where a seat may have died before for
    other reasons: there the tries in a row that did not last are what counts.
    """
    entry = draft.counters.get(seat)
    if not death.refused or entry is None:
        return False
    tries = entry.app if death.cause is Cause.APP else entry.in_a_row
    return tries > draft.spec.failure_policy.budgets.app


def due(entry: SeatCounters | None, death: Death | None, pod: PodRecord | None, limits: Limits, now: float) -> float:
    """When a seat may be filled again (seconds since 1970).

    Program failures wait ``app_backoff`` x 2^(n-1). Deaths by infrastructure and of members that were given up are
    replaced at once; those that are the n-th in a row of a seat without having lasted (:func:`lasted`) wait
    ``infrastructure_backoff`` x 2^(n-2) from the second on. Preempted members are replaced at once.

    Args:
        entry: deaths of the seat so far.
        death: the last one.
        pod: the pod that died, while it is still there.
        limits: the figures.
        now: seconds since 1970.
    """
    ended = clock.parse(entry.ended_at) if entry is not None else None
    if entry is None or death is None or ended is None:
        return now
    if death.cause is Cause.APP:
        count = 1 if _steady(pod, ended) else max(1, entry.app)
        return ended + min(limits.app_backoff * 2.0 ** min(count - 1, 16), limits.app_backoff_max)
    if _counts(death) and entry.in_a_row > 1:
        wait = limits.infrastructure_backoff * 2.0 ** min(entry.in_a_row - 2, 16)
        return ended + min(wait, limits.app_backoff_max)
    return now


def wait_sentence(draft: Draft) -> str:
    """Why seats are not filled at once, and when they will be.

    The first one stands for all; of the others the rows in the status say more.
    """
    if not draft.waits:
        return ""
    first, *others = sorted(draft.waits)
    entry, death, node = draft.counters[first], draft.deaths[first], draft.members[first].node
    where = f" on node {node}" if node else ""
    if death.cause is Cause.APP:
        what = f"its program failed {entry.app} times, the last time{where}"
    else:
        what = f"its last {entry.in_a_row} holders did not last, the newest{where}"
    told = f"seat {seat_name(first)} is filled again at {clock.render(draft.waits[first])}: {what}"
    told = f"{told} ({death.reason}: {death.message[:300]})"
    rows = [
        f"{seat_name(seat)} at {clock.render(draft.waits[seat])} ({draft.deaths[seat].reason})" for seat in others[:8]
    ]
    more = f" and {len(others) - 8} more" if len(others) > 8 else ""
    return f"{told}; later too: {', '.join(rows)}{more}" if rows else told
