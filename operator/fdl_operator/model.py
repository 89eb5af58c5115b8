"""Slim records of what is observed, and the actions that a plan may ask for.

Records keep only what the rules read: a pod takes well under 1 KiB here, against 8-20 KiB as an object.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fdl_api.cluster import SocketInterface
from fdl_api.nodes import NodeRecord
from fdl_api.placement import Placement, Variant
from fdl_api.run import FdlRunSpec, FdlRunStatus, Toleration
from fdl_api.wire import Hint, State
from fdl_operator.settings import Limits

OFF_DEVICES = "off-devices"
"""Placement of a coordinator that may only go to nodes without devices."""

NCCL_INIT = "fdl-nccl"
"""Init container of members whose NCCL is bridged: it copies the library to where the trainer preloads it."""

RunKey = tuple[str, str]
"""Namespace and name of a run."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """An FdlRun as last seen."""

    namespace: str
    name: str
    uid: str
    generation: int
    resource_version: str
    created_at: float
    deleting: bool
    spec: FdlRunSpec | None
    """``None`` when this release cannot read the spec; ``problem`` then says why."""
    status: FdlRunStatus
    problem: str = ""
    phase_known: bool = True
    """False where a newer release has written a phase that this one does not know."""
    unknown: tuple[str, ...] = ()
    """Fields of the spec that this release does not know, and goes on without."""
    save_now: str = ""
    """Content of the annotation fdl.dev/save-now: each new one asks for a checkpoint."""

    @property
    def key(self) -> RunKey:
        """Key in the queue and in the store."""
        return (self.namespace, self.name)


class PodPhase(StrEnum):
    """status.phase of a pod."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class PodRecord:
    """A pod of a run, member or coordinator."""

    namespace: str
    name: str
    uid: str
    run: str
    run_uid: str
    role: str
    cohort: str = ""
    ordinal: int = 0
    incarnation: int = 0
    attempt: int = 0
    placement: str = ""
    """Hash of the placement that the pod was built from."""
    variant: str = ""
    phase: PodPhase = PodPhase.PENDING
    node: str = ""
    ip: str = ""
    ready: bool = False
    created_at: float = 0.0
    deleted_at: float | None = None
    """deletionTimestamp: the end of the grace period."""
    unschedulable: str = ""
    unschedulable_since: float | None = None
    scheduled_at: float | None = None
    """Since when it has a node."""
    sandbox_at: float | None = None
    """Since when its volumes are mounted and its network stands, so that only images are still missing."""
    mounts: tuple[str, ...] = ()
    """Claims, ConfigMaps and Secrets that it mounts, as 'claim data'."""
    status_reason: str = ""
    status_message: str = ""
    disruption: str = ""
    """Reason of the condition DisruptionTarget while it holds."""
    image: str = ""
    """Image of the main container; of an init container where that one is the trouble."""
    init_container: str = ""
    """Name of the init container that waits or has failed; empty where it is the main container."""
    waiting_reason: str = ""
    waiting_message: str = ""
    exit_code: int | None = None
    exit_reason: str = ""
    finished_at: float | None = None
    termination: str = ""
    """Termination message of the main container."""

    @property
    def ended(self) -> bool:
        """Whether its containers have ended for good."""
        return self.phase in (PodPhase.SUCCEEDED, PodPhase.FAILED)


@dataclass(frozen=True, slots=True)
class OwnedRecord:
    """Metadata of an object that the operator applied for a run."""

    kind: str
    namespace: str
    name: str
    uid: str
    run_uid: str
    spec_hash: str


@dataclass(frozen=True, slots=True)
class StreamView:
    """What the stream to a run's coordinator has brought."""

    connected: bool = False
    changed_at: float = 0.0
    """When ``connected`` last changed."""
    state: State | None = None
    heard_at: float = 0.0
    dead_since: dict[str, float] = field(default_factory=dict)
    """When the coordinator first called a member (by UID) dead."""
    error: str = ""
    sent: Hint | None = None
    """Newest hint that was handed to the stream."""
    closed_port: int = 0
    """Port of the coordinator's pod that the run's NetworkPolicy should close to the operator; 0 when it has none."""


@dataclass(frozen=True, slots=True)
class ChildFailure:
    """A child object that the API server refused to create."""

    child: str
    status: int
    message: str
    count: int
    retry_at: float


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything that a plan for one run may look at."""

    run: RunRecord
    pods: tuple[PodRecord, ...]
    nodes: dict[str, NodeRecord]
    owned: dict[tuple[str, str], OwnedRecord]
    """By kind and name."""
    stream: StreamView
    variants: tuple[Variant, ...]
    limits: Limits = field(default_factory=Limits)
    created: frozenset[str] = frozenset()
    """Names of pods that were created but that the watch has not shown yet."""
    gone: frozenset[str] = frozenset()
    """Names of pods that were seen and are gone, as far as their UIDs are not in the status yet."""
    failures: dict[str, ChildFailure] = field(default_factory=dict)
    secret_ready: bool = False
    """The operator knows the run's keys."""
    secret_lost: bool = False
    """The Secret is gone, and so are the keys: live members trust what nobody can hand out again."""
    secret_checked_at: float = 0.0
    """When the Secret was last seen on the API server (seconds since 1970)."""
    template_checked: bool = False
    """The API server has accepted a dry run of this run's pods."""
    quarantined: Mapping[str, str] = field(default_factory=dict)
    """Nodes that get no new member, each with why."""
    fabric: tuple[SocketInterface, ...] = ()
    """Network interfaces of groups of nodes (FdlCluster spec.fabric)."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints that all members tolerate (FdlCluster spec.defaults)."""
    training_budget: bool = True
    """A write of training status is within the global budget now."""


# --- actions ---------------------------------------------------------------------------------------------


class ObjectKind(StrEnum):
    """Objects of a run that are applied (and can be applied again)."""

    CONFIG_MAP = "ConfigMap"
    SERVICE = "Service"
    NETWORK_POLICY = "NetworkPolicy"
    DISRUPTION_BUDGET = "PodDisruptionBudget"


@dataclass(frozen=True, slots=True)
class EventNote:
    """An Event to write after the status: a transition that people should see."""

    reason: str
    message: str
    warning: bool = False
    action: str = "Reconcile"


@dataclass(frozen=True, slots=True)
class SendHint:
    """Tell the coordinator what is wanted. No API call."""

    hint: Hint


@dataclass(frozen=True, slots=True)
class WriteStatus:
    """Write the status under optimistic lock; Events follow only when that worked."""

    status: FdlRunStatus
    events: tuple[EventNote, ...] = ()
    training: bool = False
    """The write exists only for the training part, so it is charged to the global budget."""


@dataclass(frozen=True, slots=True)
class EnsureSecret:
    """Read the run's Secret; where there is none, create it again with the keys that live members trust.

    Only where ``fresh_keys`` is set, because nobody holds the old ones, may keys that are not known be made anew.
    """

    fresh_keys: bool


@dataclass(frozen=True, slots=True)
class ApplyObject:
    """Apply one of the run's objects by server-side apply.

    ``must_resume`` goes into the ConfigMap: what the hash was made of and what is written must be one decision.
    """

    kind: ObjectKind
    spec_hash: str
    must_resume: bool = False


@dataclass(frozen=True, slots=True)
class DeleteObject:
    """Delete one of the run's objects that is no longer wanted."""

    kind: ObjectKind
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class CreateMember:
    """Create one incarnation of a member's pod; it is already in the status."""

    name: str
    cohort: str
    ordinal: int
    incarnation: int
    attempt: int
    placement: Placement
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class CreateCoordinator:
    """Create one incarnation of the coordinator's pod; it is already in the status.

    ``off_devices`` keeps it off nodes with devices; without it, it only prefers others.
    """

    name: str
    incarnation: int
    attempt: int
    off_devices: bool = False


@dataclass(frozen=True, slots=True)
class DeletePod:
    """Delete a pod, with its own grace period."""

    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class DeleteRun:
    """Delete the run itself (its time to live is over)."""


@dataclass(frozen=True, slots=True)
class Wake:
    """Plan again at this time, should nothing happen before."""

    at: float


Action = (
    SendHint
    | WriteStatus
    | EnsureSecret
    | ApplyObject
    | DeleteObject
    | CreateMember
    | CreateCoordinator
    | DeletePod
    | DeleteRun
    | Wake
)
