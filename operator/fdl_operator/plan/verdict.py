"""Whether the run is over: what the coordinator reported, what members said last, budgets and deadlines."""

from dataclasses import dataclass

from fdl_api.reasons import ConditionType, Ended
from fdl_api.run import MemberPhase
from fdl_api.termination import Cause
from fdl_api.wire import Outcome
from fdl_operator.plan import budgets, waiting
from fdl_operator.plan.coordinator import lost
from fdl_operator.plan.draft import Draft, seat_name
from fdl_operator.plan.members import living


@dataclass(frozen=True, slots=True)
class Verdict:
    """The run is over."""

    succeeded: bool
    reason: str
    message: str


def judge(draft: Draft) -> Verdict | None:
    """The end of the run, if it has come. Sets ``draft.give_up`` while a run that failed still saves its work."""
    state = draft.state
    if done := _success(draft):
        return done
    giving_up = draft.conditions.get(ConditionType.FAILED)
    if giving_up is not None and giving_up.status == "Unknown":
        return _give_up(draft, giving_up.reason, giving_up.message)
    if state is not None and state.outcome is Outcome.FAILED:
        return Verdict(False, state.reason or Ended.INTERNAL, state.message or "the coordinator gave the run up")
    return _fatal(draft) or (None if draft.spec.run_policy.suspend else _exceeded(draft))


def _success(draft: Draft) -> Verdict | None:
    state = draft.state
    if state is not None and state.outcome is Outcome.SUCCEEDED:
        return Verdict(True, Ended.COMPLETED, state.message or "all samples are trained and the result is saved")
    if any(member.phase is MemberPhase.SUCCEEDED for member in draft.members.values()):
        if (at := _result_due(draft)) > draft.now:
            draft.wakes.append(at)
            return None
        return Verdict(True, Ended.COMPLETED, "a member was told that the run is complete")
    return None


def _result_due(draft: Draft) -> float:
    """Until when the coordinator may say the result, once a member has seen the run through.

    An operator that comes late (it was away at the end) has not heard it yet, and the coordinator stays up to tell it;
    the time counts from when this operator could first have asked.
    """
    coordinator = draft.coordinator_pod()
    if coordinator is None or not coordinator.ready or lost(draft, coordinator):
        return draft.now
    dialled = draft.snapshot.stream.changed_at
    if dialled <= 0 and not draft.snapshot.failures:
        return draft.now + draft.snapshot.limits.finish_timeout
    done = {member.name for member in draft.members.values() if member.phase is MemberPhase.SUCCEEDED}
    ends = [pod.finished_at for pod in draft.pods.values() if pod.name in done and pod.finished_at is not None]
    return max(min(ends), dialled) + draft.snapshot.limits.finish_timeout if ends else draft.now


def _fatal(draft: Draft) -> Verdict | None:
    """Faults after which no try can succeed: a broken script is a failed run, not a crash loop."""
    if draft.forbidden:
        return Verdict(False, Ended.ENVIRONMENT_FORBIDDEN, draft.forbidden)
    for pod in () if draft.has_progress else living(draft):
        if (found := waiting.trouble(pod, draft.now)) is not None and found.permanent:
            return Verdict(False, found.reason, found.sentence)
    apps = {seat: death for seat, death in draft.deaths.items() if death.cause is Cause.APP}
    for seat, death in sorted(apps.items()):
        stops_all = death.reason == Ended.NO_CHECKPOINT
        if death.permanent and not death.refused and (stops_all or not draft.has_progress):
            return Verdict(False, death.reason, f"member {draft.members[seat].name}: {death.message}")
    seats = [(name, ordinal) for name, count in draft.wanted.items() for ordinal in range(count)]
    if seats and not draft.has_progress and all(seat in apps for seat in seats):
        seat = seats[0]
        return Verdict(
            False, apps[seat].reason, f"all {len(seats)} members failed before any progress: {apps[seat].message}"
        )
    left = draft.wanted_total - len(draft.parked)
    if draft.parked and left < draft.spec.join.min_members:
        seat = min(draft.parked)
        sentence = (
            f"{len(draft.parked)} seats are refused for good, so that only {left} of spec.join.minMembers "
            f"{draft.spec.join.min_members} remain; {seat_name(seat)}: {draft.deaths[seat].message}"
        )
        return Verdict(False, draft.deaths[seat].reason, sentence)
    return None


def _exceeded(draft: Draft) -> Verdict | None:
    if sentence := budgets.exceeded(draft) or budgets.too_many_dead(draft):
        return _give_up(draft, Ended.MAX_FAILURES, sentence)
    limit = draft.spec.run_policy.active_deadline_seconds
    if limit is not None and draft.attempt_start is not None:
        at = draft.attempt_start + limit - draft.active_seconds
        if draft.now >= at:
            sentence = f"the run was active for spec.runPolicy.activeDeadlineSeconds of {limit} s"
            return _give_up(draft, Ended.ACTIVE_DEADLINE, sentence)
        draft.wakes.append(at)
    return None


def _give_up(draft: Draft, reason: str, message: str) -> Verdict | None:
    """Let the cohort save first (ShutdownWithSave), but not for ever."""
    state = draft.live_state
    saving = draft.spec.failure_policy.on_exceeded == "ShutdownWithSave" and state is not None and living(draft)
    if not saving or (state is not None and state.outcome is Outcome.FAILED):
        saved = f"; checkpoint at window {draft.durable_step}" if draft.durable_step else "; no checkpoint"
        return Verdict(False, reason, message + saved)
    draft.condition(ConditionType.FAILED, None, reason, message)
    at = draft.since(ConditionType.FAILED) + draft.snapshot.limits.give_up_timeout
    if draft.now >= at:
        return Verdict(
            False, reason, f"{message}; saving took longer than {int(draft.snapshot.limits.give_up_timeout)} s"
        )
    draft.wakes.append(at)
    draft.give_up = reason
    return None
