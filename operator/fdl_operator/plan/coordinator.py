"""The coordinator's pod: always one, and a new incarnation at once when it is lost (cases D4, R1).

Trainers are never touched for it: they train on and echo their state to the next one.
"""

from fdl_api import labels, names, placement
from fdl_api.run import CoordinatorStatus
from fdl_operator.model import OFF_DEVICES, CreateCoordinator, DeletePod, PodRecord
from fdl_operator.plan.draft import Draft

QUICK_SECONDS = 60.0
"""A coordinator that ended sooner than this is crash-looping, and the next one waits."""


def ensure(draft: Draft) -> None:
    """Keep one coordinator for this attempt; record the next incarnation before its pod is created."""
    present = draft.coordinator
    belongs = present.incarnation > 0 and _of_this_attempt(draft)
    pod = draft.coordinator_pod()
    if not belongs:
        _renew(draft)
        return
    if pod is None:
        if present.pod_name in draft.snapshot.created:
            return
        if present.pod_uid or present.pod_name in draft.snapshot.gone:
            _replace(draft, f"the pod {present.pod_name} was deleted", at=draft.now)
        else:
            _create(draft)
        return
    if _no_room(draft, pod):
        draft.event("CoordinatorMoved", f"the pod {pod.name} finds no place on nodes without devices", warning=True)
        _renew(draft, off_devices=False)
        return
    if trouble := lost(draft, pod):
        _replace(draft, trouble, at=_due(draft, pod))
        return
    draft.coordinator = present.model_copy(update={"pod_uid": pod.uid, "node": pod.node})


def lost(draft: Draft, pod: PodRecord) -> str:
    """Why the coordinator's pod does not count any more, or an empty text."""
    if pod.ended:
        code = "" if pod.exit_code is None else f" with exit code {pod.exit_code}"
        return f"the pod {pod.name} ended{code}"
    if pod.deleted_at is not None:
        return f"the pod {pod.name} is being deleted"
    node = draft.snapshot.nodes.get(pod.node)
    if not pod.node or (node is not None and node.ready):
        return ""
    stream = draft.snapshot.stream
    if stream.connected:
        return ""
    at = stream.changed_at + draft.snapshot.limits.coordinator_lost
    if draft.now < at:
        draft.wakes.append(at)
        return ""
    return f"node {pod.node} of the pod {pod.name} is lost"


def _no_room(draft: Draft, pod: PodRecord) -> bool:
    """Whether a pod that is kept off devices finds no place, so that any node has to do."""
    waits = pod.unschedulable_since is not None and not pod.node and pod.deleted_at is None and not pod.ended
    if not waits or pod.placement != OFF_DEVICES:
        return False
    assert pod.unschedulable_since is not None
    at = pod.unschedulable_since + draft.snapshot.limits.unschedulable
    if draft.now < at:
        draft.wakes.append(at)
    return draft.now >= at


def tidy(draft: Draft) -> None:
    """Delete coordinators that were replaced; the last dead one stays for its log."""
    for pod in draft.pods.values():
        if pod.role != labels.ROLE_COORDINATOR or pod.deleted_at is not None:
            continue
        old = pod.incarnation < draft.coordinator.incarnation
        if old and (not pod.ended or pod.incarnation < draft.coordinator.incarnation - 1):
            draft.deletes.append(DeletePod(name=pod.name, uid=pod.uid))


def _of_this_attempt(draft: Draft) -> bool:
    """Whether the recorded coordinator was made for this attempt: a resume starts with a fresh one."""
    return draft.coordinator.pod_name != ""


def _replace(draft: Draft, trouble: str, *, at: float) -> None:
    if at > draft.now:
        draft.wakes.append(at)
        return
    draft.coordinator_restarts += 1
    draft.event("CoordinatorReplaced", f"{trouble}; a new coordinator starts, training goes on meanwhile", warning=True)
    _renew(draft)


def _renew(draft: Draft, *, off_devices: bool = True) -> None:
    number = draft.coordinator.incarnation + 1
    name = names.coordinator_pod(draft.snapshot.run.name, number)
    draft.coordinator = CoordinatorStatus(incarnation=number, pod_name=name)
    _create(draft, off_devices=off_devices)


def _create(draft: Draft, *, off_devices: bool = True) -> None:
    name = draft.coordinator.pod_name
    failure = draft.snapshot.failures.get(name)
    if failure is not None and failure.retry_at > draft.now:
        draft.wakes.append(failure.retry_at)
        return
    draft.creates.append(
        CreateCoordinator(
            name=name,
            incarnation=draft.coordinator.incarnation,
            attempt=draft.attempt,
            off_devices=off_devices and placement.has_plain_node(draft.snapshot.nodes.values()),
        )
    )


def _due(draft: Draft, pod: PodRecord) -> float:
    if not pod.ended or pod.finished_at is None or pod.finished_at - pod.created_at > QUICK_SECONDS:
        return draft.now
    if draft.coordinator_restarts == 0:
        return draft.now
    wait = min(2.0 ** min(draft.coordinator_restarts, 16), draft.snapshot.limits.coordinator_backoff_max)
    return pod.finished_at + wait
