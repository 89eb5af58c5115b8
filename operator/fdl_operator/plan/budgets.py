"""How many deaths a run survives, how long a seat stays empty after one, and who pays for it."""

import math

from fdl_api.reasons import Ended
from fdl_api.run import FailurePolicySpec, MemberPhase, SeatCounters
from fdl_api.termination import Cause
from fdl_operator.model import PodRecord
from fdl_operator.plan.deaths import SEAT_ONLY, Death
from fdl_operator.plan.draft import Draft, Seat, seat_name
from fdl_operator.settings import Limits

STEADY_SECONDS = 600.0
"""A member that ran this long is not crash-looping: its seat's waiting starts from the beginning."""
_BILLED = (Cause.APP, Cause.INFRASTRUCTURE, Cause.PREEMPTION)


def bill(draft: Draft, seat: Seat, death: Death) -> None:
    """Charge a death to the budget of its cause, once."""
    if death.cause not in _BILLED:
        return
    entry = draft.counters.get(seat) or SeatCounters(seat=seat_name(seat))
    field = str(death.cause)
    draft.counters[seat] = entry.model_copy(update={field: getattr(entry, field) + 1})


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
            last = next((f"; last: {death.message}" for death in draft.deaths.values() if death.cause == name), "")
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
    """Whether a refused seat has had as many tries as the app budget allows; it then stays empty."""
    entry = draft.counters.get(seat)
    return death.refused and entry is not None and entry.app > draft.spec.failure_policy.budgets.app


def due(
    entry: SeatCounters | None,
    death: Death | None,
    pod: PodRecord | None,
    limits: Limits,
    now: float,
    *,
    looping: bool = True,
) -> float:
    """When a seat may be filled again (seconds since 1970).

    Program failures wait ``app_backoff`` x 2^(n-1). Infrastructure deaths are replaced at once, unless the holder never
    came to train: from the second one on that waits, too. Preempted and fenced members are replaced at once.

    Args:
        entry: deaths of the seat so far.
        death: the last one.
        pod: the pod that died, while it is still there.
        limits: the figures.
        now: seconds since 1970.
        looping: False when the holder took part in training.
    """
    if entry is None or death is None or pod is None:
        return now
    ended = pod.finished_at if pod.finished_at is not None else now
    steady = pod.created_at > 0 and ended - pod.created_at > STEADY_SECONDS
    if death.cause is Cause.APP:
        count = 1 if steady else max(1, entry.app)
        return ended + min(limits.app_backoff * 2.0 ** min(count - 1, 16), limits.app_backoff_max)
    looping = looping and not steady and death.cause is Cause.INFRASTRUCTURE and death.reason != Ended.NODE_LOST
    if looping and entry.infrastructure > 1:
        wait = limits.infrastructure_backoff * 2.0 ** min(entry.infrastructure - 2, 16)
        return ended + min(wait, limits.app_backoff_max)
    return now
