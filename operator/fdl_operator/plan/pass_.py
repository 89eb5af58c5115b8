"""One pass over one run: the policies in their order, then the actions in theirs."""

from fdl_api import labels, placement
from fdl_api.reasons import ConditionType, Progress
from fdl_api.run import FdlRunStatus, RunPhase
from fdl_api.wire import Hint
from fdl_operator.model import (
    Action,
    CreateMember,
    EventNote,
    PodRecord,
    SendHint,
    Snapshot,
    WriteStatus,
)
from fdl_operator.plan import (
    coordinator,
    environment,
    keys,
    lifecycle,
    members,
    network,
    objects,
    phases,
    training,
    verdict,
    waiting,
)
from fdl_operator.plan.draft import DEAD, Draft

TEMPLATE_CHILD = "podTemplate/"
"""Start of the names under which refusals of templates are remembered."""


def plan(snapshot: Snapshot, now: float) -> list[Action]:
    """What to do for a run.

    Args:
        snapshot: everything that is known about the run.
        now: seconds since 1970.

    Returns:
        Actions in the order in which they must happen; the status is written before anything is created, and nothing
        after it happens when that fails. Empty when there is nothing to do.
    """
    run = snapshot.run
    # In a phase that is not known nothing is known to be right: it may be an end, and terminal is terminal.
    if run.deleting or not run.phase_known:
        return []
    if run.spec is None:
        return _unreadable(snapshot, now)
    draft = Draft.of(snapshot, run.spec, now)
    if run.unknown and run.status.observed_generation != run.generation:
        told = ", ".join(run.unknown)
        draft.event(Progress.FIELDS_NOT_KNOWN, f"this release of the operator goes on without {told}", warning=True)
    if draft.phase is not None and draft.phase.is_terminal:
        draft.wanted = members.wanted(draft.spec)
        members.close(draft)
        lifecycle.clear_up(draft)
        return _actions(draft)
    draft.wanted = members.wanted(draft.spec)
    members.account(draft)
    environment.describe(draft)
    end = verdict.judge(draft)
    if end is not None:
        lifecycle.finish(draft, end)
        phases.durable(draft)
        lifecycle.clear_up(draft)
    elif run.spec.run_policy.suspend:
        lifecycle.suspend(draft)
        phases.describe(draft)
    else:
        _run(draft)
        phases.describe(draft)
    return _actions(draft)


def _run(draft: Draft) -> None:
    """A run that should train: place, fill, keep."""
    lifecycle.reopen(draft)
    if trouble := keys.lost(draft):
        lifecycle.renew(draft, trouble)
    _place(draft)
    if not lifecycle.start(draft):
        members.tidy(draft)
        return
    objects_before = draft.coordinator.incarnation
    coordinator.ensure(draft)
    if not draft.give_up:
        members.replan(draft)
        members.fill(draft)
    _check_template(draft)
    objects.ensure(draft)
    members.tidy(draft)
    if objects_before == draft.coordinator.incarnation:
        coordinator.tidy(draft)
    lifecycle.give_back(draft)


def _place(draft: Draft) -> None:
    snapshot = draft.snapshot
    cluster = placement.Cluster(
        snapshot.nodes,
        snapshot.variants,
        snapshot.limits.report_age,
        draft.now,
        snapshot.quarantined,
        snapshot.fabric,
        snapshot.tolerations,
    )
    needy = members.needs_pods(draft)
    variants = {cohort.name: cohort.variant for cohort in draft.status.cohorts}
    for cohort in draft.spec.cohorts:
        if cohort.name not in needy:
            continue
        found = placement.options(
            cohort,
            draft.spec.trainer,
            cluster,
            keep=variants.get(cohort.name, ""),
            communicator=network.asked(draft, cohort),
        )
        if isinstance(found, placement.Unplaced):
            draft.unplaced[cohort.name] = (found.reason, found.message)
        else:
            draft.options[cohort.name] = found


def _check_template(draft: Draft) -> None:
    """Try the first pod of each cohort with a template before anything is created for it."""
    if draft.snapshot.template_checked:
        return
    templated = {cohort.name for cohort in draft.spec.cohorts if cohort.pod_template}
    first: dict[str, CreateMember] = {}
    for action in draft.creates:
        if isinstance(action, CreateMember) and action.cohort in templated:
            first.setdefault(action.cohort, action)
    if not first:
        return
    draft.creates.clear()
    for cohort, action in first.items():
        failure = draft.snapshot.failures.get(TEMPLATE_CHILD + cohort)
        if failure is not None and failure.retry_at > draft.now:
            draft.wakes.append(failure.retry_at)
            continue
        draft.creates.append(
            CreateMember(
                name=action.name,
                cohort=action.cohort,
                ordinal=action.ordinal,
                incarnation=action.incarnation,
                attempt=action.attempt,
                placement=action.placement,
                dry_run=True,
            )
        )


def _actions(draft: Draft) -> list[Action]:
    actions: list[Action] = []
    hint = _hint(draft)
    if hint is not None and hint != draft.snapshot.stream.sent:
        actions.append(SendHint(hint))
    write = _write(draft)
    if write is not None:
        actions.append(write)
    actions.extend(keys.ensure(draft))
    if objects.refused(draft):
        draft.creates.clear()
    actions.extend(draft.applies)
    actions.extend(draft.creates)
    actions.extend(draft.deletes)
    actions.extend(lifecycle.earliest(draft))
    return actions


def _hint(draft: Draft) -> Hint | None:
    """What the coordinator should know; ``None`` while there is none to tell."""
    if draft.attempt_start is None or draft.coordinator.pod_name == "":
        return None
    pods = [pod for pod in draft.pods.values() if pod.role == labels.ROLE_MEMBER]
    gone = {pod.uid for pod in pods if pod.ended}
    gone |= {member.uid for member in draft.members.values() if member.uid and member.phase in DEAD}
    return Hint(
        wanted_members=max(0, draft.wanted_total - len(draft.parked)),
        gone=sorted(gone),
        expected=sorted({pod.uid for pod in pods if not pod.ended} - gone),
        placed=sorted({pod.uid for pod in pods if _comes_up(pod)} - gone),
        suspend=draft.spec.run_policy.suspend,
        give_up=draft.give_up,
        save=draft.snapshot.run.save_now,
    )


def _comes_up(pod: PodRecord) -> bool:
    """Whether a pod is on a node, and nothing that a person has to mend keeps it from running there."""
    kept = pod.waiting_reason in waiting.IMAGE_PROBLEMS | waiting.CONFIG_PROBLEMS
    return bool(pod.node) and not pod.ended and pod.deleted_at is None and not kept


def _write(draft: Draft) -> WriteStatus | None:
    """The one status write of this pass, or ``None`` when nothing has changed."""
    old = draft.status
    status = phases.assemble(draft)
    heard = draft.state
    fresh = None
    if heard is not None:
        told = training.render(heard, draft.snapshot.stream.heard_at)
        fresh = training.carry(old.training, told, heard.checkpoints_skipped)
    behind = fresh is not None and not training.same(old.training, fresh)
    if status != old:
        if behind:
            draft.training = fresh
            status = phases.assemble(draft)
        return WriteStatus(status, tuple(draft.events) + _transitions(old, status))
    if not behind:
        return None
    allowed, at = training.may_write(old.training, draft.now, draft.snapshot.limits.training_interval)
    final = draft.phase is not None and draft.phase.is_terminal
    if (allowed and draft.snapshot.training_budget) or final:
        draft.training = fresh
        return WriteStatus(phases.assemble(draft), training=True)
    draft.wakes.append(at if not allowed else draft.now + 1.0)
    return None


def _transitions(old: FdlRunStatus, new: FdlRunStatus) -> tuple[EventNote, ...]:
    """Events for the transitions between two statuses that people should see."""
    notes = []
    if new.phase != old.phase and new.phase is not None and not new.phase.is_terminal:
        warning = new.phase is RunPhase.RECOVERING
        notes.append(EventNote(str(new.phase), f"the run is {new.phase}", warning))
    before = {condition.type: condition for condition in old.conditions}
    for condition in new.conditions:
        was = before.get(condition.type)
        if condition.reason not in _WARNINGS:
            continue
        if was is None or was.reason != condition.reason:
            notes.append(EventNote(condition.reason, condition.message or condition.reason, True))
    return tuple(notes)


_WARNINGS = frozenset(
    {
        Progress.NO_FITTING_NODE,
        Progress.REPORT_TOO_OLD,
        Progress.FABRIC_UNKNOWN,
        Progress.ENVIRONMENT_DOUBTFUL,
        Progress.NOT_SCHEDULED,
        Progress.CHILD_CREATE_FAILED,
        Progress.POD_TEMPLATE_REFUSED,
        Progress.COORDINATOR_UNREACHABLE,
        Progress.CHECKPOINT_FAILED,
        Progress.CHECKPOINT_SKIPPED,
        Progress.NOT_HEARD,
    }
)


def _unreadable(snapshot: Snapshot, now: float) -> list[Action]:
    """A spec that this release cannot read: say so, and touch nothing."""
    draft = Draft.of(snapshot, None, now)
    draft.condition(ConditionType.PROGRESSING, False, "SpecUnreadable", snapshot.run.problem)
    reason, message = phases.word(draft)
    status = snapshot.run.status.model_copy(
        update={
            "phase": snapshot.run.status.phase or RunPhase.PENDING,
            "observed_generation": snapshot.run.generation,
            "conditions": tuple(draft.conditions[kind] for kind in ConditionType if kind in draft.conditions),
            "summary": snapshot.run.status.summary.model_copy(update={"reason": reason, "message": message}),
        }
    )
    return [] if status == snapshot.run.status else [WriteStatus(status)]
