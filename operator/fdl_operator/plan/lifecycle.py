"""Starts, suspends, gives seats back, and clears up after the end."""

import hashlib

from fdl_api import labels
from fdl_api.reasons import ConditionType, Ended, Progress
from fdl_api.run import RunPhase
from fdl_api.version import VERSION
from fdl_api.wire import Outcome
from fdl_operator import clock
from fdl_operator.model import DeletePod, DeleteRun, PodRecord, Wake
from fdl_operator.plan import waiting
from fdl_operator.plan.draft import Draft
from fdl_operator.plan.members import living
from fdl_operator.plan.verdict import Verdict


def suspend(draft: Draft) -> None:
    """Bring a run to rest: save first, within a time-out, then free all devices (case J11)."""
    if draft.phase is RunPhase.SUSPENDED:
        _delete_all(draft)
        return
    active = draft.attempt_start is not None and bool(draft.pods or draft.snapshot.created)
    if active and not draft.is_true(ConditionType.SUSPENDED):
        draft.condition(
            ConditionType.SUSPENDED, None, "Stopping", "spec.runPolicy.suspend is set; the cohort saves and stops"
        )
        state = draft.live_state
        at = draft.since(ConditionType.SUSPENDED) + draft.snapshot.limits.suspend_timeout
        stopped = state is not None and state.outcome is Outcome.SUSPENDED
        if draft.is_true(ConditionType.FORMED) and living(draft) and not stopped and draft.now < at:
            draft.wakes.append(at)
            return
    _close_attempt(draft)
    draft.phase = RunPhase.SUSPENDED
    step = draft.durable_step
    where = f"resumes from the checkpoint at window {step}" if step else "there is no checkpoint to resume from"
    draft.condition(ConditionType.SUSPENDED, True, Progress.SUSPENDED, f"spec.runPolicy.suspend is set; {where}")
    _delete_all(draft)


def reopen(draft: Draft) -> None:
    """Take back a suspension; an attempt whose coordinator has already stopped is over."""
    state = draft.live_state
    stopped = draft.attempt_start is not None and state is not None and state.outcome is Outcome.SUSPENDED
    if stopped:
        _close_attempt(draft)
    if stopped or draft.phase is RunPhase.SUSPENDED:
        draft.phase = RunPhase.PENDING
        draft.condition(ConditionType.SUSPENDED, False, Progress.RESUMED)


def renew(draft: Draft, trouble: str) -> None:
    """Close an attempt whose pods cannot work with new ones; the next attempt starts in the same pass."""
    _close_attempt(draft)
    draft.phase = RunPhase.PENDING
    draft.condition(ConditionType.FORMED, False, Progress.KEYS_LOST, trouble)
    draft.event(Progress.KEYS_LOST, trouble, warning=True)


def start(draft: Draft) -> bool:
    """Begin an attempt where none runs. False while there is nothing to start on, or too soon after giving up seats."""
    if draft.attempt_start is not None:
        return True
    at = _restart_at(draft)
    if at > draft.now:
        draft.wakes.append(at)
        return False
    if not draft.options:
        return False
    draft.attempt += 1
    draft.attempt_start = draft.now
    draft.start_time = draft.start_time or clock.render(draft.now)
    draft.stale_pods.extend(draft.pods.values())
    draft.pods = {}
    draft.members = {}
    draft.deaths = {}
    draft.coordinator = draft.coordinator.model_copy(update={"pod_name": "", "pod_uid": "", "node": ""})
    draft.phase = RunPhase.STARTING
    draft.template_hash = hashlib.sha256(draft.spec.model_dump_json().encode()).hexdigest()[:16]
    draft.template_version = VERSION
    formed = draft.conditions.get(ConditionType.FORMED)
    if formed is None or formed.reason != Progress.KEYS_LOST:
        draft.condition(ConditionType.FORMED, False, Progress.WAITING_FOR_MEMBERS, "the members start")
    members = "member" if draft.wanted_total == 1 else "members"
    draft.event("AttemptStarted", f"attempt {draft.attempt} starts with {draft.wanted_total} {members}")
    return True


def give_back(draft: Draft) -> None:
    """Free the seats of a run that could not place enough members, so that two half-placed runs never block each other.

    The run tries again later, after a wait that differs from run to run.
    """
    if draft.attempt_start is None or draft.is_true(ConditionType.FORMED):
        return
    placed = sum(1 for pod in living(draft) if pod.node and _can_start(pod, draft.now))
    limit = draft.spec.run_policy.startup_deadline_seconds
    if placed >= draft.spec.join.min_members:
        return
    at = draft.attempt_start + limit
    if draft.now < at:
        draft.wakes.append(at)
        return
    sentence = (
        f"only {placed} of spec.join.minMembers {draft.spec.join.min_members} members found a node and an image within "
        f"spec.runPolicy.startupDeadlineSeconds of {limit} s; the seats are given back and tried again"
    )
    troubles = (waiting.trouble(pod, draft.now) for pod in living(draft))
    if (first := next(filter(None, troubles), None)) is not None:
        sentence += f". {first.sentence}"
    _close_attempt(draft)
    draft.phase = RunPhase.PENDING
    draft.creates.clear()
    draft.condition(ConditionType.FORMED, None, Ended.STARTUP_DEADLINE, sentence)
    draft.event(Ended.STARTUP_DEADLINE, sentence, warning=True)
    _delete_all(draft)
    draft.wakes.append(_restart_at(draft))


def _can_start(pod: PodRecord, now: float) -> bool:
    """Whether a pod that has a node runs there, or may still come to (a slow pull is no fault)."""
    found = waiting.trouble(pod, now)
    return found is None or found.reason in waiting.FINE


def finish(draft: Draft, verdict: Verdict) -> None:
    """Write the end down. Nothing is created from here on (cases K8, K15)."""
    draft.phase = RunPhase.SUCCEEDED if verdict.succeeded else RunPhase.FAILED
    draft.completion_time = clock.render(draft.now)
    if draft.attempt_start is not None:
        draft.active_seconds += int(draft.now - draft.attempt_start)
    draft.creates.clear()
    draft.condition(ConditionType.COMPLETE, verdict.succeeded, verdict.reason, verdict.message)
    if verdict.succeeded:
        draft.condition(ConditionType.FAILED, False, Progress.AS_EXPECTED)
    else:
        draft.condition(ConditionType.FAILED, True, verdict.reason, verdict.message)
    draft.condition(ConditionType.PROGRESSING, False, Progress.FINISHED)
    draft.condition(ConditionType.FORMED, False, Progress.FINISHED)
    draft.condition(ConditionType.COORDINATOR_READY, False, Progress.FINISHED)
    draft.condition(ConditionType.SUSPENDED, False, Progress.NOT_SUSPENDED)
    # The run's own Event names the member and its words: those of the deaths that decided it would say it twice.
    draft.events = [note for note in draft.events if note.reason != verdict.reason]
    draft.event(verdict.reason, verdict.message, warning=not verdict.succeeded)


def clear_up(draft: Draft) -> None:
    """After the end: delete members that do not end by themselves (case D6), then the coordinator, then the run."""
    done_at = clock.parse(draft.completion_time) or draft.now
    policy = draft.spec.run_policy.clean_pod_policy
    state = draft.state
    orderly = state is not None and state.outcome in (Outcome.SUCCEEDED, Outcome.FAILED)
    deadline = done_at + (draft.snapshot.limits.finish_timeout if orderly or draft.phase is RunPhase.SUCCEEDED else 0)
    running = [pod for pod in draft.snapshot.pods if pod.role == labels.ROLE_MEMBER and not pod.ended]
    overdue = draft.now >= deadline
    if running and not overdue:
        draft.wakes.append(deadline)
    for pod in draft.snapshot.pods:
        member = pod.role == labels.ROLE_MEMBER
        if member and (policy == "None" or (pod.ended and policy != "All")):
            continue
        if overdue or not running or pod.ended:
            _delete(draft, pod)
    ttl = draft.spec.run_policy.ttl_seconds_after_finished
    if ttl is not None:
        if draft.now >= done_at + ttl:
            draft.deletes.append(DeleteRun())
        else:
            draft.wakes.append(done_at + ttl)


def _restart_at(draft: Draft) -> float:
    """When a run that gave its seats back tries again: doubling, spread by a hash of the run so that rivals differ."""
    condition = draft.conditions.get(ConditionType.FORMED)
    if condition is None or condition.status != "Unknown":
        return draft.now
    limits = draft.snapshot.limits
    base = min(limits.restart_backoff * 2.0 ** min(max(draft.attempt - 1, 0), 16), limits.restart_backoff_max)
    seed = hashlib.sha256(f"{draft.snapshot.run.uid}/{draft.attempt}".encode()).digest()
    return draft.since(ConditionType.FORMED) + base * (0.5 + int.from_bytes(seed[:4], "big") / 2**32)


def _close_attempt(draft: Draft) -> None:
    if draft.attempt_start is not None:
        draft.active_seconds += int(draft.now - draft.attempt_start)
    draft.attempt_start = None
    draft.coordinator = draft.coordinator.model_copy(update={"pod_name": "", "pod_uid": "", "node": ""})
    draft.members = {}
    draft.deaths = {}


def _delete_all(draft: Draft) -> None:
    for pod in draft.snapshot.pods:
        _delete(draft, pod)


def _delete(draft: Draft, pod: PodRecord) -> None:
    action = DeletePod(name=pod.name, uid=pod.uid)
    if pod.deleted_at is None and action not in draft.deletes:
        draft.deletes.append(action)


def earliest(draft: Draft) -> list[Wake]:
    """The next time at which a rule may decide otherwise than now."""
    return [Wake(max(min(draft.wakes), draft.now))] if draft.wakes else []
