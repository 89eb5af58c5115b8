"""From the API server's objects to slim records."""

from collections.abc import Iterable
from typing import Any, Final, TypeVar

from pydantic import ValidationError

from fdl_api import labels, reading
from fdl_api.cluster import FdlClusterSpec, FdlClusterStatus
from fdl_api.cluster_nodes import mark
from fdl_api.model import first_problem
from fdl_api.names import TRAINER_CONTAINER
from fdl_api.reasons import ClusterCondition, ConditionType
from fdl_api.run import FdlRunSpec, FdlRunStatus
from fdl_operator import clock
from fdl_operator.build.pods import PLACEMENT, VARIANT
from fdl_operator.model import OwnedRecord, PodPhase, PodRecord, RunRecord
from fdl_operator.plan.cluster import ClusterRecord

Conditioned = TypeVar("Conditioned", FdlRunStatus, FdlClusterStatus)

MAX_TEXT: Final = 1000
MAX_SAVE_NOW: Final = 64
MAX_MOUNTS: Final = 8
MAX_NAME: Final = 80
MAIN_CONTAINERS: Final = (TRAINER_CONTAINER, "coordinator")


def run_record(item: dict[str, Any]) -> RunRecord:
    """An FdlRun. A spec or a status that this release cannot read is no reason to fail."""
    meta = item["metadata"]
    spec: FdlRunSpec | None = None
    unknown: tuple[str, ...] = ()
    problem = ""
    try:
        found = reading.strict(FdlRunSpec, item.get("spec") or {})
        spec, unknown = found.value, tuple(f"spec.{path}" for path in found.left_out)
    except ValidationError as error:
        problem = (
            f"this release of the operator cannot read the spec: {first_problem(error, 'spec')}; correct the field or "
            "upgrade the operator"
        )
    phase = (item.get("status") or {}).get("phase")
    status = _own(reading.lenient(FdlRunStatus, item.get("status") or {}).value, ConditionType)
    if phase and status.phase is None:
        problem = f"this release of the operator does not know status.phase {phase!r}; upgrade the operator"
    return RunRecord(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        generation=int(meta.get("generation") or 0),
        resource_version=meta.get("resourceVersion", ""),
        created_at=clock.parse(meta.get("creationTimestamp")) or 0.0,
        deleting=bool(meta.get("deletionTimestamp")),
        spec=spec,
        status=status,
        problem=problem,
        phase_known=not phase or status.phase is not None,
        unknown=unknown,
        save_now=str((meta.get("annotations") or {}).get(labels.SAVE_NOW, ""))[:MAX_SAVE_NOW],
    )


def pod_record(item: dict[str, Any]) -> PodRecord:
    """A pod of a run."""
    meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    tags = meta.get("labels") or {}
    notes = meta.get("annotations") or {}
    conditions = {condition["type"]: condition for condition in status.get("conditions") or []}
    scheduled = conditions.get("PodScheduled") or {}
    unschedulable = scheduled.get("status") == "False" and scheduled.get("reason") in (
        "Unschedulable",
        "SchedulerError",
    )
    sandbox = conditions.get("PodReadyToStartContainers") or {}
    disruption = conditions.get("DisruptionTarget") or {}
    waiting, ended, init_container = _container(status)
    return PodRecord(
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        run=tags.get(labels.RUN, ""),
        run_uid=tags.get(labels.RUN_UID, ""),
        role=tags.get(labels.ROLE, ""),
        cohort=tags.get(labels.COHORT, ""),
        ordinal=_int(tags.get(labels.ORDINAL)),
        incarnation=_int(tags.get(labels.INCARNATION)),
        attempt=_int(tags.get(labels.ATTEMPT)),
        placement=notes.get(PLACEMENT, ""),
        variant=notes.get(VARIANT, ""),
        phase=_phase(status.get("phase")),
        node=spec.get("nodeName") or "",
        ip=status.get("podIP") or "",
        ready=(conditions.get("Ready") or {}).get("status") == "True",
        created_at=clock.parse(meta.get("creationTimestamp")) or 0.0,
        deleted_at=clock.parse(meta.get("deletionTimestamp")),
        unschedulable=str(scheduled.get("message") or "")[:MAX_TEXT] if unschedulable else "",
        unschedulable_since=clock.parse(scheduled.get("lastTransitionTime")) if unschedulable else None,
        scheduled_at=_since(scheduled),
        sandbox_at=_since(sandbox),
        mounts=_mounts(spec),
        status_reason=str(status.get("reason") or ""),
        status_message=str(status.get("message") or "")[:MAX_TEXT],
        disruption=str(disruption.get("reason") or "") if disruption.get("status") == "True" else "",
        image=_image(spec, init_container),
        init_container=init_container,
        waiting_reason=str(waiting.get("reason") or ""),
        waiting_message=str(waiting.get("message") or "")[:MAX_TEXT],
        exit_code=ended.get("exitCode"),
        exit_reason=str(ended.get("reason") or ""),
        finished_at=clock.parse(ended.get("finishedAt")),
        termination=str(ended.get("message") or "")[:8192],
    )


def owned_record(item: dict[str, Any], kind: str) -> OwnedRecord:
    """Metadata of an object that the operator applied."""
    meta = item["metadata"]
    return OwnedRecord(
        kind=kind,
        namespace=meta["namespace"],
        name=meta["name"],
        uid=meta["uid"],
        run_uid=(meta.get("labels") or {}).get(labels.RUN_UID, ""),
        spec_hash=(meta.get("annotations") or {}).get(labels.SPEC_HASH, ""),
    )


def _own(status: Conditioned, kinds: Iterable[str]) -> Conditioned:
    """A status without conditions that others put there, in the order in which they are written: else it would differ
    for ever from what is to be written, which is without them too and takes nothing away from others.
    """
    present = {condition.type: condition for condition in status.conditions}
    return status.model_copy(update={"conditions": tuple(present[kind] for kind in kinds if kind in present)})


def cluster_record(item: dict[str, Any]) -> ClusterRecord:
    """An FdlCluster. What of it this release cannot read is left out."""
    spec = reading.lenient(FdlClusterSpec, item.get("spec") or {})
    status = reading.lenient(FdlClusterStatus, item.get("status") or {})
    meta = item["metadata"]
    return ClusterRecord(
        name=meta["name"],
        uid=meta["uid"],
        generation=int(meta.get("generation") or 0),
        resource_version=meta.get("resourceVersion", ""),
        spec=spec.value,
        status=_own(status.value, ClusterCondition),
        unknown=tuple(f"spec.{path}" for path in spec.left_out),
        mark=mark(item.get("spec") or {}),
    )


def _container(status: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any], str]:
    """Waiting and terminated state of the main container; of an init container, with its name, where that is it."""
    states = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    waiting: dict[str, Any] = {}
    ended: dict[str, Any] = {}
    init = {entry.get("name") for entry in status.get("initContainerStatuses") or []}
    name = ""
    for entry in states:
        state = entry.get("state") or {}
        main = entry.get("name") in MAIN_CONTAINERS
        terminated = state.get("terminated") or {}
        if terminated and (main or terminated.get("exitCode")):
            ended = terminated
            name = str(entry.get("name") or "")
        if state.get("waiting") and state["waiting"].get("reason") not in ("ContainerCreating", "PodInitializing"):
            waiting = state["waiting"]
            name = str(entry.get("name") or "")
    return waiting, ended, name if name in init else ""


def _since(condition: dict[str, Any]) -> float | None:
    """Since when a condition is true; ``None`` when it is not."""
    return clock.parse(condition.get("lastTransitionTime")) if condition.get("status") == "True" else None


def _mounts(spec: dict[str, Any]) -> tuple[str, ...]:
    """Objects that a pod's volumes need before its container can be made; optional ones are none."""
    named = []
    for volume in spec.get("volumes") or []:
        for kind, key, word in _VOLUMES:
            source = volume.get(kind) or {}
            if source.get(key) and not source.get("optional"):
                named.append(f"{word} {source[key]}"[:MAX_NAME])
    return tuple(sorted(set(named))[:MAX_MOUNTS])


_VOLUMES: Final = (
    ("persistentVolumeClaim", "claimName", "claim"),
    ("configMap", "name", "ConfigMap"),
    ("secret", "secretName", "Secret"),
)


def _image(spec: dict[str, Any], init_container: str) -> str:
    wanted = (init_container,) if init_container else MAIN_CONTAINERS
    containers = spec.get("initContainers" if init_container else "containers") or []
    images = (entry.get("image") for entry in containers if entry.get("name") in wanted)
    return str(next(images, "") or "")[:MAX_TEXT]


def _phase(text: str | None) -> PodPhase:
    try:
        return PodPhase(text or "Pending")
    except ValueError:
        return PodPhase.UNKNOWN


def _int(text: str | None) -> int:
    return int(text) if text and text.isdecimal() else 0
