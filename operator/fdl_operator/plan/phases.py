"""Phase, conditions and the prepared strings: what a run's status says for people and tools."""

from fdl_api.reasons import ConditionType, Progress
from fdl_api.run import CohortStatus, Counters, FdlRunStatus, MemberPhase, RunPhase, Summary
from fdl_api.termination import Cause
from fdl_api.wire import Outcome
from fdl_operator import clock
from fdl_operator.model import PodRecord
from fdl_operator.plan import budgets, network, waiting
from fdl_operator.plan.coordinator import lost
from fdl_operator.plan.draft import Draft, seat_name
from fdl_operator.plan.members import living, takes_part

SILENCE_STEPS = (2.0, 10.0, 30.0, 60.0)
"""Seconds of silence of all ranks that are told."""
MAX_LINE = 200
"""Characters of a sentence in a column."""
STREAM_PATIENCE = 15.0
"""A stream that is away this long while its coordinator looks well does not change the phase (operator restarts)."""


def describe(draft: Draft) -> None:
    """Phase and conditions of a run that has not ended."""
    _placeable(draft)
    if draft.phase is RunPhase.SUSPENDED:
        _at_rest(draft, Progress.SUSPENDED)
    elif draft.attempt_start is None:
        draft.phase = RunPhase.PENDING
        _at_rest(draft, Progress.WAITING_FOR_MEMBERS)
    else:
        _formed(draft)
        _coordinator_ready(draft)
        draft.phase = _phase(draft)
        _progressing(draft)
    durable(draft)
    draft.condition(ConditionType.COMPLETE, False, Progress.RUNNING)
    if not draft.give_up:
        draft.condition(ConditionType.FAILED, False, Progress.AS_EXPECTED)
    if not draft.spec.run_policy.suspend and not draft.is_true(ConditionType.SUSPENDED):
        old = draft.conditions.get(ConditionType.SUSPENDED)
        reason = old.reason if old is not None and old.status == "False" else Progress.NOT_SUSPENDED
        draft.condition(ConditionType.SUSPENDED, False, reason)


def _at_rest(draft: Draft, reason: str) -> None:
    draft.condition(ConditionType.COORDINATOR_READY, False, reason)
    problem = _refused_child(draft)
    if problem is not None:
        draft.condition(ConditionType.PROGRESSING, False, *problem)
    else:
        draft.condition(ConditionType.PROGRESSING, False, reason)
    if draft.phase is RunPhase.SUSPENDED or ConditionType.FORMED not in draft.conditions:
        draft.condition(ConditionType.FORMED, False, reason)


def _placeable(draft: Draft) -> None:
    if draft.unplaced:
        reason = next(iter(draft.unplaced.values()))[0]
        draft.condition(
            ConditionType.PLACEABLE, False, reason, " | ".join(message for _, message in draft.unplaced.values())
        )
        return
    unscheduled = [pod for pod in living(draft) if pod.unschedulable and not pod.node]
    if unscheduled:
        found = waiting.trouble(unscheduled[0], draft.now)
        pods = "a pod finds" if len(unscheduled) == 1 else f"{len(unscheduled)} pods find"
        sentence = f"{pods} no place; {found.sentence if found else unscheduled[0].name}"
        draft.condition(ConditionType.PLACEABLE, False, Progress.NOT_SCHEDULED, sentence)
        return
    draft.condition(ConditionType.PLACEABLE, True, Progress.AS_EXPECTED)


def _coordinator_ready(draft: Draft) -> None:
    pod = draft.coordinator_pod()
    kind = ConditionType.COORDINATOR_READY
    if pod is None or lost(draft, pod):
        draft.condition(kind, False, Progress.WAITING_FOR_COORDINATOR, f"pod {draft.coordinator.pod_name} starts")
    elif not pod.ready:
        found = waiting.trouble(pod, draft.now)
        if pod.node and (at := waiting.next_word_at(pod, draft.now)) is not None:
            draft.wakes.append(at)
        sentence = found.sentence if found is not None else f"pod {pod.name} is not ready"
        draft.condition(kind, False, Progress.WAITING_FOR_COORDINATOR, sentence)
    elif draft.snapshot.stream.connected:
        draft.condition(kind, True, Progress.AS_EXPECTED)
    elif _stream_lost(draft):
        error = draft.snapshot.stream.error or "no answer"
        draft.condition(kind, False, Progress.COORDINATOR_UNREACHABLE, f"the operator cannot reach it: {error}")
    elif kind not in draft.conditions:
        draft.condition(kind, False, Progress.WAITING_FOR_COORDINATOR, "the operator dials it")


def _stream_lost(draft: Draft) -> bool:
    stream = draft.snapshot.stream
    if stream.connected or stream.changed_at <= 0:
        return False
    at = stream.changed_at + STREAM_PATIENCE
    if draft.now < at:
        draft.wakes.append(at)
        return False
    return True


def _formed(draft: Draft) -> None:
    state = draft.state
    if state is not None and state.epoch > 0:
        draft.condition(ConditionType.FORMED, True, Progress.FORMED)
    elif not draft.is_true(ConditionType.FORMED) and not _has(draft, ConditionType.FORMED, Progress.KEYS_LOST):
        draft.condition(ConditionType.FORMED, False, Progress.WAITING_FOR_MEMBERS, _readiness(draft))


def _readiness(draft: Draft) -> str:
    """How many members could begin, as the coordinator says, or how many run."""
    state = draft.state
    running = sum(1 for member in draft.members.values() if member.phase is MemberPhase.RUNNING)
    ready = sum(1 for member in state.members if member.state in ("ready", "active")) if state else running
    return f"{ready} of {draft.wanted_total} members are ready"


def _has(draft: Draft, kind: ConditionType, reason: str) -> bool:
    condition = draft.conditions.get(kind)
    return condition is not None and condition.reason == reason


def _phase(draft: Draft) -> RunPhase:
    if not draft.is_true(ConditionType.FORMED):
        return RunPhase.STARTING
    pod = draft.coordinator_pod()
    if pod is None or not pod.ready or lost(draft, pod) or _stream_lost(draft):
        return RunPhase.RECOVERING
    state = draft.live_state
    if state is not None and draft.snapshot.stream.connected:
        training = (Outcome.TRAINING, Outcome.STOPPING, Outcome.SUCCEEDED)
        return RunPhase.RUNNING if state.outcome in training else RunPhase.RECOVERING
    return draft.phase if draft.phase in (RunPhase.RUNNING, RunPhase.RECOVERING) else RunPhase.RECOVERING


def _progressing(draft: Draft) -> None:
    kind = ConditionType.PROGRESSING
    if (problem := _refused_child(draft)) is not None:
        draft.condition(kind, False, *problem)
        return
    if sentence := _not_heard(draft):
        draft.condition(kind, None, Progress.NOT_HEARD, sentence)
        return
    stuck = [member for member in draft.members.values() if member.reason in waiting.REASONS]
    stuck.sort(key=lambda member: waiting.REASONS.index(member.reason))
    if draft.phase is RunPhase.STARTING:
        if stuck:
            draft.condition(kind, False, stuck[0].reason, stuck[0].message)
        else:
            sentence = budgets.wait_sentence(draft) or _readiness(draft)
            draft.condition(kind, False, Progress.WAITING_FOR_MEMBERS, sentence)
        return
    state = draft.live_state
    if state is not None and state.problem:
        draft.condition(kind, draft.phase is RunPhase.RUNNING, Progress.GROUP_FAILS, state.problem)
        return
    if draft.phase is RunPhase.RECOVERING:
        sentence = "; ".join(
            filter(None, ("training recovers; see CoordinatorReady and members", budgets.wait_sentence(draft)))
        )
        draft.condition(kind, False, Progress.STALLED, sentence)
        return
    if refused := budgets.refused_seats(draft):
        seat = min(refused)
        member = draft.members[seat]
        tries = "it is not tried again" if seat in draft.parked else "it is tried again"
        sentence = f"member {seat_name(seat)} is refused ({member.reason}), {tries}: {member.message}"
        draft.condition(kind, True, Progress.MEMBER_REFUSED, sentence)
        return
    away = [seat for seat, member in draft.members.items() if not takes_part(member)]
    if away:
        sentence = f"training goes on without {', '.join(seat_name(seat) for seat in sorted(away)[:8])}"
        suspended = [member for member in draft.members.values() if member.reason == Progress.STALLED]
        for member in (stuck or suspended)[:1]:
            sentence += f"; {member.message}"
        sentence = "; ".join(filter(None, (sentence, budgets.wait_sentence(draft))))
        draft.condition(kind, True, Progress.STALLED if suspended else Progress.REPLACING_MEMBER, sentence)
    else:
        draft.condition(kind, True, Progress.TRAINING)


def _not_heard(draft: Draft) -> str:
    """A sentence while the coordinator hears no rank that trains. It is no verdict: see docs/protocol.md, Liveness.

    How long is said in steps, so that silence is not a write each second.
    """
    state = draft.live_state
    since = clock.parse(state.unheard_since) if state is not None else None
    if since is None or state is None or not draft.snapshot.stream.connected:
        return ""
    passed = max((step for step in SILENCE_STEPS if draft.now >= since + step), default=SILENCE_STEPS[0])
    draft.wakes.extend(since + step for step in SILENCE_STEPS if draft.now < since + step)
    return (
        f"no rank has been heard since {state.unheard_since}, for more than {passed:.0f} s: all are frozen or starved, "
        "or the network between them and the coordinator is cut; if it lasts for a minute they are given up, and "
        "successors resume from the newest checkpoint"
    )


def _refused_child(draft: Draft) -> tuple[str, str] | None:
    """Reason and sentence when the API server refused a child that is still wanted (case K7)."""
    current = {member.name for member in draft.members.values()} | {draft.coordinator.pod_name}
    for child, failure in sorted(draft.snapshot.failures.items()):
        if child.startswith("podTemplate/"):
            return Progress.POD_TEMPLATE_REFUSED, f"spec.cohorts[].podTemplate: {failure.message}"
        if child in current or "-" not in child:
            return Progress.CHILD_CREATE_FAILED, f"{child}: {failure.message}"
    return None


def durable(draft: Draft) -> None:
    """The condition CheckpointDurable: whether the last checkpoint is, and not whether there once was one that is."""
    kind = ConditionType.CHECKPOINT_DURABLE
    state = draft.state
    if draft.spec.checkpoint is None:
        draft.condition(kind, False, Progress.NO_CLAIM, "set spec.checkpoint.claim so that the run can resume")
    elif state is not None and state.checkpoint_problem:
        draft.condition(kind, False, Progress.CHECKPOINT_FAILED, state.checkpoint_problem)
    elif skipped := _skipped(draft):
        draft.condition(kind, draft.durable_step > 0, Progress.CHECKPOINT_SKIPPED, skipped)
    elif draft.durable_step > 0:
        draft.condition(kind, True, Progress.CHECKPOINT_VERIFIED)
    else:
        draft.condition(kind, False, Progress.NO_CHECKPOINT_YET)


def _skipped(draft: Draft) -> str:
    """Which checkpoints were passed over at the last start, and why; kept until a new one is durable.

    A coordinator that has not heard of any checkpoint has perhaps been replaced meanwhile: what is on record stays.
    """
    state = draft.state
    if state is not None and state.checkpoints_skipped:
        return " | ".join(state.checkpoints_skipped)
    old = draft.conditions.get(ConditionType.CHECKPOINT_DURABLE)
    kept = old is not None and old.reason == Progress.CHECKPOINT_SKIPPED and (state is None or state.checkpoint is None)
    return old.message if old is not None and kept else ""


def assemble(draft: Draft) -> FdlRunStatus:
    """The status as it is to be written, without the training part of this pass."""
    run = draft.snapshot.run
    running = [member for member in draft.members.values() if takes_part(member)]
    return FdlRunStatus(
        phase=draft.phase,
        observed_generation=run.generation,
        conditions=tuple(draft.conditions[kind] for kind in ConditionType if kind in draft.conditions),
        replicas=sum(1 for pod in _held(draft)),
        selector=f"fdl.dev/run-uid={run.uid},fdl.dev/role=member",
        attempt=draft.attempt,
        summary=_summary(draft, len(running)),
        members=tuple(draft.members[seat] for seat in sorted(draft.members)),
        cohorts=tuple(_cohorts(draft)),
        counters=Counters(
            app=budgets.total(draft, Cause.APP),
            infrastructure=budgets.total(draft, Cause.INFRASTRUCTURE),
            preemption=budgets.total(draft, Cause.PREEMPTION),
            coordinator=draft.coordinator_restarts,
        ),
        seat_counters=tuple(draft.counters[seat] for seat in sorted(draft.counters)),
        next_incarnations=draft.next_incarnations,
        coordinator=draft.coordinator,
        training=draft.training,
        template_hash=draft.template_hash,
        template_version=draft.template_version,
        start_time=draft.start_time,
        attempt_start_time=clock.render(draft.attempt_start) if draft.attempt_start is not None else None,
        active_seconds=draft.active_seconds,
        completion_time=draft.completion_time,
    )


def _held(draft: Draft) -> list[PodRecord]:
    return [pod for pod in living(draft) if pod.deleted_at is None]


def _summary(draft: Draft, running: int) -> Summary:
    training = draft.training
    progress = f"{int(training.progress * 100)}%" if training is not None and training.total_samples else ""
    goodput = f"{training.goodput:.2f}" if training is not None and training.goodput is not None else ""
    reason, message = word(draft)
    return Summary(
        members=f"{running}/{draft.wanted_total}", progress=progress, goodput=goodput, reason=reason, message=message
    )


def word(draft: Draft) -> tuple[str, str]:
    """Reason and sentence of the condition that says most about where the run stands."""
    for kind, statuses in _TELLING:
        condition = draft.conditions.get(kind)
        if condition is not None and condition.status in statuses:
            line = " ".join(condition.message.split())
            return condition.reason, line if len(line) <= MAX_LINE else f"{line[: MAX_LINE - 1]}\u2026"
    return "", ""


_TELLING = (
    (ConditionType.FAILED, ("True", "Unknown")),
    (ConditionType.COMPLETE, ("True",)),
    (ConditionType.SUSPENDED, ("True", "Unknown")),
    (ConditionType.PLACEABLE, ("False",)),
    (ConditionType.FORMED, ("Unknown",)),
    (ConditionType.PROGRESSING, ("True", "False", "Unknown")),
)
"""Conditions in the order in which they matter to somebody who reads one line, and the statuses that tell something."""


def _cohorts(draft: Draft) -> list[CohortStatus]:
    known = {cohort.name: cohort for cohort in draft.status.cohorts}
    rows = []
    for cohort in draft.spec.cohorts:
        old = known.get(cohort.name)
        options = draft.options.get(cohort.name)
        rows.append(
            CohortStatus(
                name=cohort.name,
                wanted=draft.wanted.get(cohort.name, 0),
                ready=sum(1 for seat, member in draft.members.items() if seat[0] == cohort.name and takes_part(member)),
                variant=options[0].variant if options else (old.variant if old else ""),
                nccl=network.version(draft, cohort.name),
            )
        )
    return rows
