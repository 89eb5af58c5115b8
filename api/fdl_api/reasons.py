"""Stable reasons: of conditions, Events, refusals and deaths. Tools may match them, so they never change."""

from enum import StrEnum


class ConditionType(StrEnum):
    """Conditions of an FdlRun."""

    PLACEABLE = "Placeable"
    ENVIRONMENT_SOUND = "EnvironmentSound"
    COORDINATOR_READY = "CoordinatorReady"
    FORMED = "Formed"
    PROGRESSING = "Progressing"
    CHECKPOINT_DURABLE = "CheckpointDurable"
    SUSPENDED = "Suspended"
    COMPLETE = "Complete"
    FAILED = "Failed"


class ClusterCondition(StrEnum):
    """Conditions of an FdlCluster."""

    NODES_READY = "NodesReady"
    NCCL_CONSISTENT = "NCCLConsistent"
    VARIANT_COVERAGE = "VariantCoverage"
    SHARED_VOLUME_CONSISTENT = "SharedVolumeConsistent"
    FABRIC_KNOWN = "FabricKnown"
    NETWORK_POLICY_ENFORCED = "NetworkPolicyEnforced"
    CLOCKS_AGREE = "ClocksAgree"


class ClusterReason(StrEnum):
    """Reasons of the conditions and Events of an FdlCluster."""

    AS_EXPECTED = "AsExpected"
    NO_REPORTS = "NoReports"
    NODES_NOT_READY = "NodesNotReady"
    NO_DEVICES = "NoDevices"
    VERSION_SKEW = "VersionSkew"
    VERSION_UNKNOWN = "VersionUnknown"
    NOT_COVERED = "NotCovered"
    NOT_JUDGED = "NotJudgedYet"
    NO_SENTINEL = "NoSentinel"
    SENTINEL_UNREADABLE = "SentinelUnreadable"
    CONTENT_DIFFERS = "ContentDiffers"
    NOT_NEEDED = "NotNeeded"
    INTERFACE_NOT_NAMED = "InterfaceNotNamed"
    INTERFACE_DOWN = "InterfaceDown"
    INTERFACE_UNKNOWN = "InterfaceUnknown"
    MTU_DIFFERS = "MtuDiffers"
    RDMA_DIFFERS = "RdmaDiffers"
    POLICY_NOT_ENFORCED = "PolicyNotEnforced"
    POLICY_NOT_TRIED = "PolicyNotTried"
    CLOCKS_DIFFER = "ClocksDiffer"
    CLOCK_UNKNOWN = "ClockUnknown"
    TAINT_REFUSED = "TaintRefused"


class Refusal(StrEnum):
    """Why the coordinator refuses a Hello. See :data:`PERMANENT_REFUSALS`."""

    WIRE_VERSION_MISMATCH = "WireVersionMismatch"
    RUN_IDENTITY_MISMATCH = "RunIdentityMismatch"
    STALE_ATTEMPT = "StaleAttempt"
    FENCED = "Fenced"
    UNKNOWN_COHORT = "UnknownCohort"
    VENDOR_MISMATCH = "VendorMismatch"
    NCCL_VERSION_SKEW = "NCCLVersionSkew"
    MODEL_MISMATCH = "ModelMismatch"
    DATASET_MISMATCH = "DatasetMismatch"
    COHORT_FULL = "CohortFull"
    RUN_FINISHED = "RunFinished"
    STOPPING = "Stopping"
    NO_CHECKPOINT = "NoCheckpointToResume"
    BAD_REQUEST = "BadRequest"


PERMANENT_REFUSALS = frozenset(
    {
        Refusal.WIRE_VERSION_MISMATCH,
        Refusal.FENCED,
        Refusal.UNKNOWN_COHORT,
        Refusal.VENDOR_MISMATCH,
        Refusal.NCCL_VERSION_SKEW,
        Refusal.MODEL_MISMATCH,
        Refusal.DATASET_MISMATCH,
        Refusal.NO_CHECKPOINT,
        Refusal.BAD_REQUEST,
    }
)
"""Refusals that a new dial by the same process cannot change."""


class Ended(StrEnum):
    """Why a member or the run ended (termination messages, counters, the Failed condition)."""

    COMPLETED = "Completed"
    SCRIPT_MISSING = "ScriptMissing"
    SCRIPT_SYNTAX_ERROR = "ScriptSyntaxError"
    SCRIPT_RAISED = "ScriptRaised"
    SCRIPT_NEVER_TRAINED = "ScriptNeverTrained"
    SCRIPT_EXITED = "ScriptExited"
    MODEL_MISMATCH = "ModelMismatch"
    DATASET_MISMATCH = "DatasetMismatch"
    DATASET_TOO_SMALL = "DatasetTooSmall"
    DATA_MISSING = "DataMissing"
    DIVERGED = "Diverged"
    CHECKPOINT_UNREADABLE = "CheckpointUnreadable"
    CHECKPOINT_FULL = "CheckpointVolumeFull"
    NO_CHECKPOINT = "NoCheckpointToResume"
    OUT_OF_MEMORY = "OutOfMemory"
    KILLED = "Killed"
    EVICTED = "Evicted"
    PREEMPTED = "Preempted"
    NODE_LOST = "NodeLost"
    POD_DELETED = "PodDeleted"
    LEFT = "LeftOnRequest"
    FENCED = "Fenced"
    COORDINATOR_LOST = "CoordinatorLost"
    HEARTBEAT_LOST = "HeartbeatLost"
    CONNECTION_LOST = "ConnectionLost"
    REFUSED = "Refused"
    MAX_FAILURES = "MaxFailuresExceeded"
    BELOW_MINIMUM = "BelowMinimum"
    STARTUP_DEADLINE = "StartupDeadlineExceeded"
    ACTIVE_DEADLINE = "ActiveDeadlineExceeded"
    IMAGE_UNAVAILABLE = "ImageUnavailable"
    CONTAINER_CONFIG = "ContainerConfigError"
    ENVIRONMENT_FORBIDDEN = "EnvironmentForbidden"
    INTERNAL = "InternalError"


class Progress(StrEnum):
    """Reasons of the conditions up to CheckpointDurable in :class:`ConditionType`."""

    AS_EXPECTED = "AsExpected"
    NO_FITTING_NODE = "NoFittingNode"
    REPORT_TOO_OLD = "ReportTooOld"
    FABRIC_UNKNOWN = "FabricUnknown"
    ENVIRONMENT_DOUBTFUL = "EnvironmentDoubtful"
    NOT_SCHEDULED = "NotScheduled"
    SLOW_START = "ContainerNotStarted"
    PULLING = "PullingImage"
    STARTING = "ContainerStarting"
    CHILD_CREATE_FAILED = "ChildCreateFailed"
    POD_TEMPLATE_REFUSED = "PodTemplateRefused"
    WAITING_FOR_COORDINATOR = "WaitingForCoordinator"
    COORDINATOR_UNREACHABLE = "CoordinatorUnreachable"
    WAITING_FOR_MEMBERS = "WaitingForMembers"
    FORMED = "Formed"
    KEYS_LOST = "KeysLost"
    REPLACING_MEMBER = "ReplacingMember"
    MEMBER_REFUSED = "MemberRefused"
    STALLED = "Stalled"
    GROUP_FAILS = "GroupFails"
    NOT_HEARD = "NoRankHeard"
    TRAINING = "Training"
    CHECKPOINT_VERIFIED = "CheckpointVerified"
    NO_CHECKPOINT_YET = "NoCheckpointYet"
    NO_CLAIM = "NoCheckpointClaim"
    CHECKPOINT_FAILED = "CheckpointFailed"
    CHECKPOINT_SKIPPED = "CheckpointSkipped"
    SUSPENDED = "SuspendedByUser"
    RESUMED = "Resumed"
    NOT_SUSPENDED = "NotSuspended"
    RUNNING = "Running"
    FINISHED = "Finished"
    FIELDS_NOT_KNOWN = "FieldsNotKnown"
