"""FdlRun status: what the operator has done and what it last heard from the coordinator.

The operator is its only writer. Status is for people and for the operator's own memory; what training
depends on is echoed by the ranks themselves.
"""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from fdl_api.model import StatusModel, list_map

Time = Annotated[str, Field(max_length=40, json_schema_extra={"format": "date-time"})]
"""RFC 3339 time in UTC."""
Name = Annotated[str, Field(max_length=253)]
Reason = Annotated[str, Field(max_length=64)]
Sentence = Annotated[str, Field(max_length=4096)]
Count = Annotated[int, Field(ge=0)]

MAX_MEMBERS = 2000
MAX_RANKS = 4096


class RunPhase(StrEnum):
    """Where a run stands. Conditions say why."""

    PENDING = "Pending"
    QUEUED = "Queued"
    STARTING = "Starting"
    RUNNING = "Running"
    RECOVERING = "Recovering"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def is_terminal(self) -> bool:
        """Whether the run has ended for good."""
        return self in (RunPhase.SUCCEEDED, RunPhase.FAILED)


class MemberPhase(StrEnum):
    """Where one incarnation of a member stands."""

    PENDING = "Pending"
    STARTING = "Starting"
    RUNNING = "Running"
    LEAVING = "Leaving"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    LOST = "Lost"


class Condition(StatusModel):
    """One aspect of the object, as in the Kubernetes API conventions."""

    type: Annotated[str, Field(min_length=1, max_length=64)] = Field(description="Name of the condition.")
    status: Literal["True", "False", "Unknown"] = Field(description="Whether it holds.")
    observed_generation: Count = Field(default=0, description="metadata.generation that this was decided from.")
    last_transition_time: Time = Field(description="When status last changed.")
    reason: Annotated[str, Field(min_length=1, max_length=64)] = Field(description="Stable word for tools.")
    message: Annotated[str, Field(max_length=32768)] = Field(
        default="", description="Sentence for people: what, where, what to do."
    )


class MemberStatus(StatusModel):
    """The newest incarnation of a member."""

    name: Name = Field(description="Name of the member's pod.")
    uid: Annotated[str, Field(max_length=64)] = Field(default="", description="UID of the pod; empty before it exists.")
    cohort: Annotated[str, Field(max_length=63)] = Field(description="Cohort of the member.")
    ordinal: Count = Field(description="Seat in the cohort, from 0; kept by successors.")
    incarnation: Count = Field(description="How many pods have held the seat, this one included.")
    node: Name = Field(default="", description="Node of the pod; empty before it is placed.")
    variant: Annotated[str, Field(max_length=63)] = Field(default="", description="Trainer variant of the pod.")
    phase: MemberPhase = Field(default=MemberPhase.PENDING, description="Where the member stands.")
    reason: Reason = Field(default="", description="Stable word for why, where there is something to say.")
    message: Sentence = Field(default="", description="Sentence for people, where there is something to say.")


class CohortStatus(StatusModel):
    """A cohort as a whole."""

    name: Annotated[str, Field(max_length=63)] = Field(description="Name of the cohort.")
    wanted: Count = Field(default=0, description="Members that it should have now.")
    ready: Count = Field(default=0, description="Members that take part in training.")
    variant: Annotated[str, Field(max_length=63)] = Field(default="", description="Variant chosen for new members.")
    nccl: Annotated[str, Field(max_length=16)] = Field(
        default="", description="NCCL or RCCL major.minor that members must have, in NCCL modes."
    )


class Counters(StatusModel):
    """How often members ended, by cause; compared with spec.failurePolicy.budgets."""

    app: Count = Field(default=0, description="Deaths by the user's program.")
    infrastructure: Count = Field(default=0, description="Deaths by nodes, networks, volumes, images or fdl itself.")
    preemption: Count = Field(default=0, description="Ends by preemption, drain, eviction or deletion.")
    coordinator: Count = Field(default=0, description="Replacements of the coordinator.")


class SeatCounters(StatusModel):
    """How often the holders of one seat ended, by cause. Dropped when the seat is scaled away."""

    seat: Annotated[str, Field(max_length=63)] = Field(description="Seat, '<cohort>-<ordinal>'.")
    app: Count = Field(default=0, description="Deaths by the user's program.")
    infrastructure: Count = Field(
        default=0,
        description="Deaths by nodes, networks, volumes, images or fdl itself, and from the second in a row on those "
        "of holders that were given up for silence.",
    )
    preemption: Count = Field(default=0, description="Ends by preemption, drain, eviction or deletion.")
    in_a_row: Count = Field(
        default=0,
        description="Newest holders in a row that did not last: given up for silence within 10 min, or ended by "
        "infrastructure before they had committed work. From the second on the seat waits ever longer.",
    )
    ended_at: Time | None = Field(default=None, description="When the last of those that were counted here ended.")


class Summary(StatusModel):
    """Prepared strings for the columns of kubectl get."""

    members: Annotated[str, Field(max_length=32)] = Field(
        default="", description="Active and wanted members, e.g. 3/4."
    )
    progress: Annotated[str, Field(max_length=32)] = Field(default="", description="Share of samples done, e.g. 42%.")
    goodput: Annotated[str, Field(max_length=32)] = Field(default="", description="Training efficiency, e.g. 0.93.")
    reason: Reason = Field(
        default="", description="Reason of the condition that says most about where the run stands now."
    )
    message: Annotated[str, Field(max_length=256)] = Field(
        default="", description="Beginning of that condition's sentence, on one line."
    )


class CoordinatorStatus(StatusModel):
    """The run's coordinator."""

    incarnation: Count = Field(default=0, description="Newest coordinator pod, recorded before it is created.")
    pod_name: Name = Field(default="", description="Name of that pod.")
    pod_uid: Annotated[str, Field(max_length=64)] = Field(default="", description="UID of that pod.")
    node: Name = Field(default="", description="Node of that pod.")


class CheckpointStatus(StatusModel):
    """The newest durable checkpoint."""

    last_durable_step: Count = Field(default=0, description="Window at which it was taken.")
    samples: Count = Field(default=0, description="Samples committed up to it.")
    path: Annotated[str, Field(max_length=512)] = Field(default="", description="Directory below the checkpoint claim.")
    size_bytes: Count = Field(default=0, description="Size in bytes.")
    verified: bool = Field(
        default=False,
        description="Whether it was read back and its checksums were right; false again when it was passed over at a "
        "start: the condition CheckpointDurable then says why, and which one was used.",
    )
    saved_at: Time | None = Field(default=None, description="When it was written.")
    final: bool = Field(default=False, description="Whether it holds the finished training.")
    stall_ms: float = Field(default=0.0, ge=0, description="Milliseconds for which training stood still to take it.")


class RankStatus(StatusModel):
    """One rank, as in the last committed window."""

    member: Name = Field(description="Name of the member's pod.")
    local_rank: Count = Field(default=0, description="Number of the rank in its member, from 0.")
    ms_per_batch: float = Field(default=0.0, ge=0, description="Smoothed milliseconds a batch; 0 when unknown.")
    quota: Count = Field(default=0, description="Batches in the window.")
    share: float = Field(default=0.0, ge=0, le=1, description="Share of the window's samples, 0 to 1.")
    data: Annotated[str, Field(max_length=96)] = Field(
        default="",
        description="Whether the rank keeps the dataset on its device (resident) or reads it as it goes (streamed), "
        "and why.",
    )


class GuardActionStatus(StatusModel):
    """One action of a guard of divergence."""

    window: Count = Field(default=0, description="Window after which it was taken.")
    guard: Reason = Field(
        default="", description="Who took it: level, growth, persistent, meta, learningRate or finite."
    )
    action: Reason = Field(
        default="", description="What it was: suppressGrowth, nudgeDown, rollback, loosen or quarantine."
    )
    message: Sentence = Field(default="", description="Why, as a sentence with the figures.")


class GuardStatus(StatusModel):
    """What watches divergence between ranks, and what it did since the start of the run."""

    divergence: float = Field(
        default=0.0, ge=0, description="Newest largest relative L2 distance between a rank and the average."
    )
    latched: bool = Field(default=False, description="Whether the anchor may not grow at present.")
    counts: dict[Annotated[str, Field(max_length=32)], Count] = Field(
        default_factory=dict, max_length=8, description="How often each action was taken."
    )
    last: tuple[GuardActionStatus, ...] = Field(default=(), max_length=8, description="Newest actions, oldest first.")


class RefusalStatus(StatusModel):
    """A member that the coordinator did not admit."""

    member: Name = Field(default="", description="Name of the member's pod.")
    reason: Reason = Field(description="Stable word, one of the refusals.")
    message: Sentence = Field(default="", description="Sentence that names both sides and the way out.")
    permanent: bool = Field(default=False, description="Whether a new dial cannot help.")


class TrainingStatus(StatusModel):
    """Training as the operator last heard it from the coordinator."""

    run_uid: Annotated[str, Field(max_length=64)] = Field(
        default="", alias="runUID", description="UID of the run that this belongs to."
    )
    attempt: Count = Field(default=0, description="Attempt that this belongs to.")
    generation: Count = Field(default=0, description="Incarnation of the coordinator that said it.")
    epoch: Count = Field(default=0, description="Membership epoch.")
    window: Count = Field(default=0, description="Last committed window.")
    data_epoch: Count = Field(default=0, description="Pass over the data in work, from 0.")
    anchor: Count = Field(default=0, description="Batches of the slowest rank per window.")
    samples: Count = Field(default=0, description="Samples committed since the start of the run.")
    total_samples: Count = Field(default=0, description="Samples that the whole run commits.")
    progress: float = Field(default=0.0, ge=0, le=1, description="Share of samples done, 0 to 1.")
    samples_per_second: float = Field(default=0.0, ge=0, description="Committed samples a second.")
    eta_seconds: float | None = Field(default=None, ge=0, description="Estimated seconds to the end.")
    goodput: float | None = Field(
        default=None,
        ge=0,
        description="Committed samples over those that the ranks could have computed in the last minute or so, at "
        "the speeds that they had in that time. 0 to 1.",
    )
    loss: float | None = Field(default=None, description="Loss of the last window, averaged over its samples.")
    metrics: dict[Annotated[str, Field(max_length=128)], float] = Field(
        default_factory=dict, max_length=64, description="Results of the last evaluation, by name."
    )
    deaths: Count = Field(default=0, description="Ranks that died in this attempt.")
    stale_messages: Count = Field(default=0, description="Messages of earlier attempts or epochs that were refused.")
    checkpoint: CheckpointStatus | None = Field(default=None, description="The newest durable checkpoint.")
    checkpoint_problem: Sentence = Field(default="", description="Why the last checkpoint failed, or empty.")
    refusals: tuple[RefusalStatus, ...] = Field(default=(), max_length=16, description="Newest refused members.")
    notes: tuple[Sentence, ...] = Field(
        default=(), max_length=8, description="What is worth knowing of the run, as sentences."
    )
    ranks: tuple[RankStatus, ...] = Field(
        default=(), max_length=MAX_RANKS, description="Ranks of the last committed window."
    )
    guard: GuardStatus | None = Field(default=None, description="What the guards of divergence see and did.")
    last_heard: Time | None = Field(default=None, description="When the coordinator last said something new.")


class FdlRunStatus(StatusModel):
    """Observed state of a run."""

    phase: RunPhase | None = Field(default=None, description="Where the run stands.")
    observed_generation: Count = Field(default=0, description="metadata.generation that this status was decided from.")
    conditions: tuple[Condition, ...] = Field(
        default=(),
        max_length=32,
        json_schema_extra=list_map("type"),
        description="Placeable, EnvironmentSound (runs with devices), CoordinatorReady, Formed, Progressing, "
        "CheckpointDurable, Suspended, Complete, Failed.",
    )
    replicas: Count = Field(default=0, description="Member pods that exist; what kubectl scale and an HPA read.")
    selector: Annotated[str, Field(max_length=1024)] = Field(
        default="", description="Label selector of the member pods, for the scale subresource."
    )
    attempt: Count = Field(
        default=0, description="Starts of the whole run, this one included; grows with each resume, too."
    )
    summary: Summary = Field(default_factory=Summary, description="Prepared strings for columns.")
    members: tuple[MemberStatus, ...] = Field(
        default=(),
        max_length=MAX_MEMBERS,
        json_schema_extra=list_map("cohort", "ordinal"),
        description="Newest incarnation of each member.",
    )
    cohorts: tuple[CohortStatus, ...] = Field(
        default=(), max_length=16, json_schema_extra=list_map("name"), description="Cohorts as a whole."
    )
    counters: Counters = Field(default_factory=Counters, description="How often members ended, by cause.")
    seat_counters: tuple[SeatCounters, ...] = Field(
        default=(),
        max_length=MAX_MEMBERS,
        json_schema_extra=list_map("seat"),
        description="The same for each seat where something happened.",
    )
    next_incarnations: dict[Annotated[str, Field(max_length=63)], Count] = Field(
        default_factory=dict,
        max_length=MAX_MEMBERS,
        description="Incarnation of the next pod of a seat ('<cohort>-<ordinal>'), recorded before it is created.",
    )
    coordinator: CoordinatorStatus = Field(default_factory=CoordinatorStatus, description="The run's coordinator.")
    training: TrainingStatus | None = Field(
        default=None, description="Training as the operator last heard it from the coordinator."
    )
    template_hash: Annotated[str, Field(max_length=64)] = Field(
        default="", description="Hash of what pods of this attempt are built from; kept over upgrades of the operator."
    )
    template_version: Annotated[str, Field(max_length=32)] = Field(
        default="", description="Version of the operator that built this attempt's pods."
    )
    start_time: Time | None = Field(default=None, description="When the run first started.")
    attempt_start_time: Time | None = Field(default=None, description="When this attempt started.")
    active_seconds: Count = Field(
        default=0, description="Seconds that earlier attempts were active; suspended time does not count."
    )
    completion_time: Time | None = Field(default=None, description="When the run finished.")
