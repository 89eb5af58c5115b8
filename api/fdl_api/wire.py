"""The messages between agents, ranks, the coordinator and the operator (docs/protocol.md).

Transport: WebSocket over TLS, one JSON text frame a message. The path says who dials:
``/v1/agent``, ``/v1/rank``, ``/v1/operator``; the run token goes in the Authorization header.
Every message of a member carries the run's UID and attempt; the coordinator refuses and counts stale ones.
"""

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from pydantic.alias_generators import to_camel

from fdl_api.reasons import Refusal
from fdl_api.termination import Cause, Saved

AGENT_PATH = "/v1/agent"
RANK_PATH = "/v1/rank"
OPERATOR_PATH = "/v1/operator"
HEALTH_PATH = "/healthz"
STATE_PATH = "/state.json"

HEARTBEAT_SECONDS = 0.2
"""Period of a rank's heartbeat."""
HEARTBEAT_LIMIT_SECONDS = 2.0
"""Silence after which a rank is dead."""
RECONNECT_GRACE_SECONDS = 5.0
"""How long a restarted coordinator waits for the ranks of the epoch that it was told of."""
CLOCK_TICK_SECONDS = 0.05
MAX_FRAME_BYTES = 16 * 1024 * 1024


class Message(BaseModel):
    """Base of all messages: camelCase on the wire, unknown fields left out.

    A run outlives an upgrade of the operator, and members' images may be of another release than it: a new field, with
    a default for those who do not send it, changes no :data:`~fdl_api.version.WIRE_VERSION`; a new message does, and so
    does a new meaning.

    Figures that are not finite travel as they are: as null they would be a message that cannot be read, which ends
    whoever sent it.
    """

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="ignore", frozen=True, ser_json_inf_nan="constants"
    )


class Phase(StrEnum):
    """What a rank is doing; the coordinator's patience depends on it, never its verdict of death."""

    LOAD = "load"
    COMPILE = "compile"
    WAIT = "wait"
    TRAIN = "train"
    REDUCE = "reduce"
    CHECKPOINT = "checkpoint"
    EVALUATE = "evaluate"
    LEAVE = "leave"


class EpochCause(StrEnum):
    """Why a membership epoch was made."""

    START = "start"
    JOIN = "join"
    LEAVE = "leave"
    DEATH = "death"
    REFORM = "reform"
    """Unchanged members after a failed reduce that nobody's death explains."""
    SUSPEND = "suspend"
    """Without members that are alive and made no progress while all others waited; they hear of it too."""


class Device(Message):
    """One device as the member sees it."""

    index: int
    vendor: Literal["nvidia", "amd", "cpu"]
    arch: str = Field(max_length=32, description="Architecture token, e.g. sm_90, gfx942, x86_64.")
    memory_bytes: int = 0
    cpu_millicores: int = Field(default=0, description="CPU time of its rank, in thousandths of a CPU; 0: not known.")


class PairFault(StrEnum):
    """Why one rank does not reach another. The values name the findings of the check ``pairs`` (fdl_api.checks)."""

    TIMEOUT = "timeout"
    NO_ROUTE = "no-route"
    REFUSED = "refused"
    CLOSED = "closed"
    SILENT = "silent"
    FOREIGN = "foreign"
    LARGE_OUT = "large-out"
    """Small packets arrive, and large ones to the peer do not."""
    LARGE_BACK = "large-back"
    """Small packets arrive, and large ones from the peer do not."""


class Reach(Message):
    """Where a rank answers its peers' tests of the way to it: on the interface that the run's groups use."""

    address: str = Field(max_length=64, description="IP address.")
    port: int = Field(ge=1, le=65535)


class EpochMember(Message):
    """One rank's place in a membership epoch."""

    uid: str = Field(max_length=128, description="Rank UID: '<member UID>/<local rank>'.")
    member: str = Field(max_length=63, description="Member name (the pod's name).")
    address: str = Field(max_length=64, description="IP address at which other ranks reach this one.")
    cohort: str = Field(max_length=63)
    seat: int = Field(
        default=-1,
        description="Number of the rank's seat: cohorts in the order of the spec, their members by ordinal, local "
        "ranks; -1 for one beyond what the spec wants.",
    )
    device: Device | None = Field(default=None, description="What the rank trains on, as its agent said.")
    reach: Reach | None = Field(default=None, description="RankHello.reach; without it, no way to the rank is tested.")


class Position(Message):
    """A committed point of the training: the window and where it stands in the data."""

    epoch: int = Field(description="Membership epoch in which the window was committed; 0 when that is not known.")
    window: int = Field(description="Number of the last committed window of the run; 0 before the first.")
    attempt: int = Field(default=0, description="Attempt of the run in which it was committed; 0 when not known.")

    @property
    def order(self) -> tuple[int, int, int]:
        """Of two positions that checkpoints hold, the higher one is the newer: the window alone does not tell."""
        return self.attempt, self.epoch, self.window


class Echo(Message):
    """What a rank tells a coordinator that does not know it (any more): enough to rebuild from."""

    generation: int = Field(description="Generation of the coordinator that the rank last obeyed.")
    epoch: int = Field(description="Membership epoch that the rank is in now.")
    members: list[EpochMember] = Field(max_length=4096)
    committed: Position
    samples: int = Field(description="Samples committed since the start of the run.")
    skipped: int = Field(default=0, description="Samples consumed since then without having been of use.")
    data_epoch: int = Field(default=0, description="Pass over the data in work, from 0.")
    max_epoch: int = Field(description="Newest epoch number the rank has heard of, planned or committed.")
    suspended: bool = Field(
        default=False, description="Whether the rank was told that the others go on without it until it does."
    )


# --- agent -> coordinator -------------------------------------------------------------------------------


class AgentHello(Message):
    """The join gate's question, asked once per connection of a member's agent."""

    type: Literal["agentHello"] = "agentHello"
    wire_version: int
    fdl_version: str = Field(max_length=32)
    run_uid: str = Field(max_length=64)
    attempt: int
    member_uid: str = Field(max_length=64, description="Pod UID, or a walk-in's own UUID: one incarnation.")
    member: str = Field(max_length=63)
    cohort: str = Field(max_length=63)
    ordinal: int
    incarnation: int
    host: str = Field(max_length=253, description="Node name, or a walk-in's host name.")
    address: str = Field(max_length=64)
    devices: list[Device] = Field(max_length=256)
    variant: str = Field(default="", max_length=63)
    torch_version: str = Field(default="", max_length=64)
    nccl_version: str | None = Field(default=None, max_length=32)


class RankExited(Message):
    """The agent saw one of its ranks end. Sent before the agent ends itself."""

    type: Literal["rankExited"] = "rankExited"
    run_uid: str
    attempt: int
    member_uid: str
    local_rank: int
    exit_code: int = Field(description="Exit code, or the negative number of the signal.")
    cause: Cause
    reason: str = Field(max_length=64)
    message: str = Field(max_length=1024)


# --- rank -> coordinator --------------------------------------------------------------------------------


class ParameterSpec(Message):
    """One entry of a model's signature, to name the first difference."""

    name: str = Field(max_length=256)
    dtype: str = Field(max_length=32)
    shape: list[int] = Field(max_length=16)


class RankHello(Message):
    """A rank that has built its model and dataset asks for a place in the next epoch."""

    type: Literal["rankHello"] = "rankHello"
    wire_version: int
    run_uid: str
    attempt: int
    member_uid: str
    member: str
    cohort: str
    local_rank: int
    address: str
    model_digest: str = Field(max_length=64, description="SHA-256 (hex) over the ordered (name, dtype, shape).")
    model: list[ParameterSpec] = Field(default_factory=list, max_length=20000)
    dataset_digest: str = Field(
        max_length=64, description="SHA-256 (hex) over length, batch size, epochs, seed, probes."
    )
    dataset_samples: int = Field(description="Samples in the training set.")
    total_samples: int = Field(description="Samples that the whole run commits (dataset_samples x data epochs).")
    batch_size: int = Field(default=0, description="Samples a batch; 0 where the trainer does not say.")
    committed: Position = Field(description="Newest state this rank holds: from a checkpoint, or of a live run.")
    checkpoint_error: str = Field(default="", max_length=1024, description="Why a checkpoint could not be used, if so.")
    data: str = Field(default="", max_length=96, description="Whether its data is resident or streamed, and why.")
    reach: Reach | None = Field(default=None, description="Where it answers tests of the way to it, if anywhere.")
    echo: Echo | None = Field(default=None, description="Set on a reconnect within a running training.")


class Heartbeat(Message):
    """Sent by the rank's control thread every HEARTBEAT_SECONDS, whatever its main thread does."""

    type: Literal["heartbeat"] = "heartbeat"
    phase: Phase
    epoch: int
    window: int = Field(description="Window in work.")
    progress: int = Field(description="Grows with every batch and stage: tells alive-but-stuck from alive.")
    batches: int = Field(default=0, description="Batches this rank has done since it started.")


class RankWindow(Message):
    """One rank's part in a committed window, read from the reduced tail."""

    uid: str
    quota: int
    batches: int
    samples: int
    compute_ms: float
    data_wait_ms: float
    ms_per_batch: float = Field(description="ElChe's smoothed estimate, milliseconds a batch; 0 when unknown.")
    share: float = Field(description="Share of the window's samples, 0..1.")
    data: str = Field(default="", max_length=96, description="RankHello.data; the coordinator fills it in.")


class GuardRecord(Message):
    """One action of a guard of divergence."""

    window: int = Field(description="Window after which it was taken.")
    guard: str = Field(max_length=32, description="Who took it: level, growth, persistent, meta, learningRate, finite.")
    action: str = Field(
        max_length=32, description="What it was: suppressGrowth, nudgeDown, rollback, loosen, quarantine."
    )
    why: str = Field(max_length=1024, description="Why, as a sentence with the figures.")


class GuardReport(Message):
    """What the guards of divergence did since the start of the run."""

    divergence: float = Field(default=0.0, description="Newest largest relative distance of a rank to the average.")
    latched: bool = Field(default=False, description="Whether the anchor may not grow at present.")
    counts: dict[str, int] = Field(default_factory=dict, description="How often each action was taken.")
    last: list[GuardRecord] = Field(default_factory=list, max_length=8, description="Newest actions, oldest first.")


class WindowCommitted(Message):
    """A rank committed a window. The lowest rank of the epoch fills in ``ranks`` and the figures."""

    type: Literal["windowCommitted"] = "windowCommitted"
    epoch: int
    window: int
    samples: int = Field(description="Samples committed since the start of the run.")
    skipped: int = Field(default=0, description="Samples consumed since then without having been of use.")
    data_epoch: int = Field(description="Pass over the data in work, from 0.")
    final: bool = Field(default=False, description="No sample is left: the training is complete.")
    anchor: int = 0
    loss: float | None = None
    reduce_ms: float = 0.0
    ranks: list[RankWindow] = Field(default_factory=list, max_length=4096)
    guard: GuardReport | None = None


class ReduceFailed(Message):
    """The reduce of (epoch, window) failed here. It names nobody: the coordinator decides who is dead."""

    type: Literal["reduceFailed"] = "reduceFailed"
    epoch: int
    window: int
    message: str = Field(max_length=1024)


class EpochFormed(Message):
    """This rank's group of the epoch stands (made in the background)."""

    type: Literal["epochFormed"] = "epochFormed"
    epoch: int


class EpochFailed(Message):
    """This rank could not form the group of the epoch."""

    type: Literal["epochFailed"] = "epochFailed"
    epoch: int
    message: str = Field(max_length=1024)


class BrokenPair(Message):
    """A rank that the sender does not reach."""

    peer: str = Field(max_length=128, description="UID of the rank that is not reached.")
    fault: PairFault
    detail: str = Field(default="", max_length=200, description="The system's words, if it said any.")


class PairsTested(Message):
    """This rank has tested its ways to members of an epoch, before it forms the group.

    Whoever is not in ``broken`` was reached, now or for an earlier epoch (or has no ``reach``).
    """

    type: Literal["pairsTested"] = "pairsTested"
    epoch: int
    broken: list[BrokenPair] = Field(default_factory=list, max_length=64, description="Ways that failed, up to 64.")
    count: int = Field(default=0, description="How many ways failed.")


class Leave(Message):
    """The rank was asked to go (SIGTERM): it finishes its batch, is counted, and goes once that is settled."""

    type: Literal["leave"] = "leave"
    reason: str = Field(max_length=64)


class CheckpointSaved(Message):
    """A checkpoint is durable: written, synced, renamed and read back."""

    type: Literal["checkpointSaved"] = "checkpointSaved"
    window: int
    samples: int
    path: str = Field(max_length=512, description="Directory below the checkpoint claim.")
    size_bytes: int
    stall_ms: float
    write_ms: float
    final: bool = False


class CheckpointFailed(Message):
    """A checkpoint could not be written; training goes on."""

    type: Literal["checkpointFailed"] = "checkpointFailed"
    window: int
    reason: str = Field(max_length=64)
    message: str = Field(max_length=1024)
    final: bool = False


class Evaluated(Message):
    """Results of the script's evaluation of the final model."""

    type: Literal["evaluated"] = "evaluated"
    metrics: dict[str, float] = Field(max_length=64)


class Finished(Message):
    """The rank has nothing left to do for the run and will exit after the coordinator's Done.

    It holds for the epoch it names: when the writer dies before the last checkpoint is durable, the next epoch's
    ranks say it anew.
    """

    type: Literal["finished"] = "finished"
    epoch: int = Field(description="Membership epoch of the rank when it had nothing left to do.")
    window: int
    saved: Saved


class StoreSet(Message):
    """Rendezvous store: set a key of an epoch. Values are base64."""

    type: Literal["storeSet"] = "storeSet"
    id: int
    epoch: int
    key: str = Field(max_length=512)
    value: str


class StoreGet(Message):
    """Rendezvous store: wait until all keys exist, then get their values."""

    type: Literal["storeGet"] = "storeGet"
    id: int
    epoch: int
    keys: list[str] = Field(max_length=8192)
    timeout_seconds: float


# --- coordinator -> agent or rank ------------------------------------------------------------------------


class Accept(Message):
    """The dial is admitted."""

    type: Literal["accept"] = "accept"
    generation: int = Field(description="The coordinator's generation; a rank never obeys a lower one again.")
    closed_port: int = Field(
        default=0,
        description="To the operator: a port of the coordinator's pod that listens and that the run's NetworkPolicy "
        "should keep the operator from; 0 when there is none.",
    )


class Refuse(Message):
    """The dial is refused; the run goes on without it."""

    type: Literal["refuse"] = "refuse"
    reason: Refusal
    message: str = Field(max_length=2048, description="Names both sides and the way out.")
    permanent: bool


class Epoch(Message):
    """A membership epoch: immutable ordered members; rank = position.

    ``planned``: form the group in the background and switch at the boundary where the tail says that all
    ranks of the present epoch have formed it. Otherwise switch at the next chance (a death, the start).
    """

    type: Literal["epoch"] = "epoch"
    generation: int
    epoch: int
    previous: int = Field(description="The epoch that this one follows; 0 at the start.")
    members: list[EpochMember] = Field(max_length=4096)
    seats: int = Field(default=0, description="Seats of the run: ranks that the spec wants; 0: not known.")
    cause: EpochCause
    planned: bool
    gone: list[str] = Field(default_factory=list, max_length=4096, description="UIDs of the dead since the last one.")


class EpochCancelled(Message):
    """A planned epoch will never come (a member of it died first): forget it."""

    type: Literal["epochCancelled"] = "epochCancelled"
    epoch: int


class Settled(Message):
    """All remaining ranks have committed this window: it can be published, and leavers may go."""

    type: Literal["settled"] = "settled"
    window: int


class Stop(Message):
    """Stop at the next boundary on which all agree; save first when ``save``."""

    type: Literal["stop"] = "stop"
    save: bool
    reason: str = Field(max_length=64)
    message: str = Field(default="", max_length=1024)


class Save(Message):
    """Write a checkpoint at the next boundary and train on."""

    type: Literal["save"] = "save"


class Done(Message):
    """Everything is settled and durable (or the run is given up): exit with ``exit_code``."""

    type: Literal["done"] = "done"
    exit_code: int
    reason: str = Field(max_length=64)
    message: str = Field(default="", max_length=1024)
    saved: Saved | None = Field(default=None, description="What became of the member's work, as far as is known.")


class StoreReply(Message):
    """Answer to StoreSet or StoreGet."""

    type: Literal["storeReply"] = "storeReply"
    id: int
    values: list[str] = Field(default_factory=list, max_length=8192)
    error: str = Field(default="", max_length=1024)


# --- operator -> coordinator -----------------------------------------------------------------------------


class OperatorHello(Message):
    """The operator opens its one stream to a coordinator."""

    type: Literal["operatorHello"] = "operatorHello"
    wire_version: int
    run_uid: str


class Hint(Message):
    """What the operator sees and wants. Sent on connect and on every change; each replaces the last."""

    type: Literal["hint"] = "hint"
    wanted_members: int = Field(description="Members that the run should have now, all cohorts together.")
    gone: list[str] = Field(default_factory=list, max_length=4096, description="Member UIDs whose pods are gone.")
    expected: list[str] = Field(
        default_factory=list, max_length=4096, description="Member UIDs whose pods exist and should run."
    )
    placed: list[str] = Field(
        default_factory=list,
        max_length=4096,
        description="Those of them on a node where nothing is in their way.",
    )
    suspend: bool = False
    give_up: str = Field(default="", max_length=64, description="Reason to stop the run for good, or empty.")
    save: str = Field(
        default="", max_length=64, description="Each new content asks for one checkpoint at the next boundary."
    )


# --- coordinator -> operator -----------------------------------------------------------------------------


class Outcome(StrEnum):
    """How the training stands as a whole."""

    WAITING = "waiting"
    TRAINING = "training"
    RECOVERING = "recovering"
    STOPPING = "stopping"
    SUSPENDED = "suspended"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class MemberState(Message):
    """A member as the coordinator sees it."""

    uid: str
    member: str
    cohort: str
    ordinal: int
    incarnation: int
    state: Literal["joining", "ready", "active", "leaving", "suspended", "dead", "refused", "finished"]
    phase: Phase | None = None
    reason: str = Field(default="", max_length=64)
    message: str = Field(default="", max_length=2048)
    batches: int = 0
    committed: bool = Field(default=False, description="Whether it has committed a window with work of its own.")


class CheckpointState(Message):
    """The newest durable checkpoint."""

    window: int
    samples: int
    path: str
    size_bytes: int
    verified: bool
    saved_at: str = Field(description="RFC 3339 time.")
    final: bool = False
    stall_ms: float = 0.0


class State(Message):
    """A snapshot of the run, sent on change and at most once a second."""

    type: Literal["state"] = "state"
    generation: int
    run_uid: str
    attempt: int
    outcome: Outcome
    reason: str = Field(default="", max_length=64)
    message: str = Field(default="", max_length=2048)
    problem: str = Field(
        default="", max_length=2048, description="Why groups of ranks fail again and again, as a sentence; or empty."
    )
    notes: list[str] = Field(
        default_factory=list, max_length=8, description="What is worth knowing of the run, as sentences."
    )
    epoch: int
    window: int
    data_epoch: int = 0
    anchor: int = 0
    samples: int = 0
    skipped: int = Field(default=0, description="Samples consumed without having been of use.")
    total_samples: int = 0
    samples_per_second: float = 0.0
    eta_seconds: float | None = None
    loss: float | None = None
    metrics: dict[str, float] = Field(default_factory=dict)
    members: list[MemberState] = Field(default_factory=list)
    ranks: list[RankWindow] = Field(default_factory=list)
    guard: GuardReport | None = None
    checkpoint: CheckpointState | None = None
    checkpoint_problem: str = Field(default="", max_length=1024)
    checkpoints_skipped: list[str] = Field(
        default_factory=list,
        max_length=4,
        description="Why checkpoints were passed over by those who looked for one to start from, until the next one "
        "is durable.",
    )
    unheard_since: str = Field(
        default="",
        max_length=40,
        description="RFC 3339 time at which any rank of the epoch was last heard, while none is heard; else empty.",
    )
    refusals: list[Refuse] = Field(default_factory=list, max_length=16)
    stale_messages: int = 0
    deaths: int = 0
    suspensions: int = Field(default=0, description="How often a member was suspended: alive, without progress.")
    recoveries: list[float] = Field(
        default_factory=list, max_length=64, description="Seconds from each death to the next committed window."
    )
    goodput: float | None = Field(
        default=None, description="Committed samples over those that the ranks could have computed in the time, 0..1."
    )


FromAgent = Annotated[AgentHello | RankExited | Leave, Field(discriminator="type")]
FromRank = Annotated[
    RankHello
    | Heartbeat
    | WindowCommitted
    | ReduceFailed
    | EpochFormed
    | EpochFailed
    | PairsTested
    | Leave
    | CheckpointSaved
    | CheckpointFailed
    | Evaluated
    | Finished
    | StoreSet
    | StoreGet,
    Field(discriminator="type"),
]
ToMember = Annotated[
    Accept | Refuse | Epoch | EpochCancelled | Settled | Stop | Save | Done | StoreReply, Field(discriminator="type")
]
FromOperator = Annotated[OperatorHello | Hint, Field(discriminator="type")]
ToOperator = Annotated[Accept | Refuse | State, Field(discriminator="type")]

FROM_AGENT: TypeAdapter[Any] = TypeAdapter(FromAgent)
FROM_RANK: TypeAdapter[Any] = TypeAdapter(FromRank)
TO_MEMBER: TypeAdapter[Any] = TypeAdapter(ToMember)
FROM_OPERATOR: TypeAdapter[Any] = TypeAdapter(FromOperator)
TO_OPERATOR: TypeAdapter[Any] = TypeAdapter(ToOperator)


def encode(message: Message) -> str:
    """One message as the JSON text of a WebSocket frame."""
    return message.model_dump_json(by_alias=True, exclude_none=True)


def rank_uid(member_uid: str, local_rank: int) -> str:
    """UID of a rank: unique over incarnations, since the member UID is."""
    return f"{member_uid}/{local_rank}"


def member_of(rank: str) -> str:
    """UID of the member that a rank's UID belongs to."""
    return rank.rpartition("/")[0]
