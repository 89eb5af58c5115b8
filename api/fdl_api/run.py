"""FdlRun: one training run. The CRD ``crds/fdlruns.yaml`` is generated from here.

What a run is made of lies in :mod:`fdl_api.spec_workload` (trainer, cohorts, data, checkpoint),
:mod:`fdl_api.spec_policy` (join, ElChe, failures, life cycle) and :mod:`fdl_api.run_status`; import all of it
from this module.
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from fdl_api.model import MUTABLE, Model, list_map
from fdl_api.run_status import (
    CheckpointStatus,
    CohortStatus,
    Condition,
    CoordinatorStatus,
    Counters,
    FdlRunStatus,
    MemberPhase,
    MemberStatus,
    RankStatus,
    RefusalStatus,
    RunPhase,
    SeatCounters,
    Summary,
    TrainingStatus,
)
from fdl_api.spec_policy import (
    BudgetsSpec,
    ElcheSpec,
    FailurePolicySpec,
    JoinSpec,
    Mode,
    NetworkSpec,
    RunPolicySpec,
    SchedulingSpec,
)
from fdl_api.spec_workload import (
    MAX_COHORTS,
    CheckpointSpec,
    Cohort,
    ConfigMapSource,
    DataSpec,
    EnvVar,
    EnvVarSource,
    GitSource,
    ImageSource,
    KeyRef,
    Resources,
    RevisionSource,
    Source,
    Toleration,
    TrainerSpec,
    Vendor,
    VolumeSource,
)


class FdlRunSpec(Model):
    """What to train, on what, and how. Fields may not change after creation unless they say so."""

    replicas: int | None = Field(
        default=None,
        ge=0,
        le=10000,
        json_schema_extra=MUTABLE,
        description="Wanted total of members, shared over cohorts in listed order within their minReplicas and "
        "maxReplicas; the cohorts' own replicas count when unset. Written by kubectl scale and by an HPA; values "
        "outside the sums of the bounds are clamped. May be changed at any time.",
    )
    trainer: TrainerSpec = Field(description="What every member runs.")
    mode: Mode = Field(
        default=Mode.CPU_CADENCE,
        description="When ranks average and over what: sync after each batch, cadence after a window sized by speed, "
        "async without waiting; nccl needs devices of one vendor, cpu works between vendors.",
    )
    cohorts: tuple[Cohort, ...] = Field(
        min_length=1,
        max_length=MAX_COHORTS,
        json_schema_extra=list_map("name"),
        description="Groups of members of one vendor each.",
    )
    join: JoinSpec = Field(default_factory=JoinSpec, description="How the first members meet before training starts.")
    elche: ElcheSpec = Field(
        default_factory=ElcheSpec, description="How work is shared between ranks of unequal speed."
    )
    data: DataSpec = Field(default_factory=DataSpec, description="Training data that members read.")
    checkpoint: CheckpointSpec | None = Field(
        default=None, description="Where and how often training is saved; without it a run cannot resume."
    )
    failure_policy: FailurePolicySpec = Field(
        default_factory=FailurePolicySpec, description="When failures end the run, and how."
    )
    run_policy: RunPolicySpec = Field(default_factory=RunPolicySpec, description="Life cycle of the run.")
    network: NetworkSpec = Field(default_factory=NetworkSpec, description="Who may talk to the run's pods.")
    scheduling: SchedulingSpec = Field(
        default_factory=SchedulingSpec, description="How the cluster's scheduler and queues see the run."
    )


class ObjectMeta(BaseModel):
    """The part of an object's metadata that fdl reads; the rest is kept as it came."""

    model_config = ConfigDict(extra="allow", populate_by_name=True, frozen=True)

    name: str = ""
    namespace: str | None = None
    uid: str = ""
    generation: int = 0
    resource_version: str = Field(default="", alias="resourceVersion")
    creation_timestamp: str | None = Field(default=None, alias="creationTimestamp")
    deletion_timestamp: str | None = Field(default=None, alias="deletionTimestamp")
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class FdlRun(Model):
    """One training run: what to train, on which kinds of devices, and what became of it."""

    api_version: Literal["fdl.dev/v1alpha1"] = "fdl.dev/v1alpha1"
    kind: Literal["FdlRun"] = "FdlRun"
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    spec: FdlRunSpec = Field(description="What to train, on what, and how.")
    status: FdlRunStatus = Field(default_factory=FdlRunStatus, description="Observed state, written by the operator.")


__all__ = [
    "BudgetsSpec",
    "CheckpointSpec",
    "CheckpointStatus",
    "Cohort",
    "CohortStatus",
    "Condition",
    "ConfigMapSource",
    "CoordinatorStatus",
    "Counters",
    "DataSpec",
    "ElcheSpec",
    "EnvVar",
    "EnvVarSource",
    "FailurePolicySpec",
    "FdlRun",
    "FdlRunSpec",
    "FdlRunStatus",
    "GitSource",
    "ImageSource",
    "JoinSpec",
    "KeyRef",
    "MemberPhase",
    "MemberStatus",
    "Mode",
    "NetworkSpec",
    "ObjectMeta",
    "RankStatus",
    "RefusalStatus",
    "Resources",
    "RevisionSource",
    "RunPhase",
    "RunPolicySpec",
    "SchedulingSpec",
    "SeatCounters",
    "Source",
    "Summary",
    "Toleration",
    "TrainerSpec",
    "TrainingStatus",
    "Vendor",
    "VolumeSource",
]
