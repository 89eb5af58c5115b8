"""The run's Secret: it is there before pods need it, and again when somebody has deleted it.

The operator may not list or watch Secrets (it would see everybody's), so it looks: before it creates pods, while a pod
does not come to run, and now and then. Live members hold the keys that they started with, so the same keys are put
back. An operator that was restarted meanwhile does not have them any more: then only a new attempt helps, since no new
member could speak to the old ones.
"""

from fdl_api import names
from fdl_operator.model import Action, CreateMember, EnsureSecret, PodPhase
from fdl_operator.plan.draft import Draft

SECRET_CHILD = "Secret"  # noqa: S105 - a kind, not a password
"""Name under which its refusal is remembered."""
CREATE_SECONDS = 10.0
"""The Secret is looked at before pods are created, unless it was seen this short a time ago."""
STUCK_SECONDS = 15.0
"""A pod that has a node but does not run after this long may lack what it mounts."""


def lost(draft: Draft) -> str:
    """Sentence when live members hold keys that nobody can hand out again; empty otherwise."""
    if not draft.snapshot.secret_lost or draft.attempt_start is None or not _held(draft):
        return ""
    return (
        f"Secret {names.secret(draft.snapshot.run.name)} was deleted and the operator restarted, so the keys of "
        f"attempt {draft.attempt} are lost; a new attempt starts with new ones and resumes from the checkpoint"
    )


def ensure(draft: Draft) -> list[Action]:
    """What is to be done about the Secret; while it is refused, no pod is created that would mount another one."""
    if draft.attempt_start is None or draft.phase is None or draft.phase.is_terminal:
        return []
    failure = draft.snapshot.failures.get(SECRET_CHILD)
    if failure is not None and failure.retry_at > draft.now:
        draft.wakes.append(failure.retry_at)
        draft.creates.clear()
        return []
    if draft.snapshot.secret_ready and not _due(draft):
        return []
    return [EnsureSecret(fresh_keys=not _held(draft))]


def _due(draft: Draft) -> bool:
    """Whether it is time to look; notes when it will be."""
    seen = draft.snapshot.secret_checked_at
    creates = any(not (isinstance(action, CreateMember) and action.dry_run) for action in draft.creates)
    if creates and draft.now - seen >= CREATE_SECONDS:
        return True
    period = draft.snapshot.limits.secret_check
    dates = [seen + period] if period else []
    for pod in draft.pods.values():
        starts = pod.phase is PodPhase.PENDING and pod.node and not pod.waiting_reason and pod.deleted_at is None
        if starts:
            dates.append(max(seen, pod.created_at) + STUCK_SECONDS)
    draft.wakes.extend(dates)
    return any(at <= draft.now for at in dates)


def _held(draft: Draft) -> bool:
    """Whether any pod of this attempt may hold the keys."""
    own = {member.name for member in draft.members.values()} | {draft.coordinator.pod_name}
    return any(not pod.ended for pod in draft.pods.values()) or bool(own & draft.snapshot.created)
