"""FdlRun: one training run. The CRD ``crds/fdlruns.yaml`` is generated from here.

What a run is made of lies in :mod:`fdl_api.spec_workload` (trainer, cohorts, data, checkpoint),
:mod:`fdl_api.spec_policy` (join, ElChe, failures, life cycle) and :mod:`fdl_api.run_status`; import all of it
from this module.
"""

from typing import Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from fdl_api import legacy, not_yet
from fdl_api.model import MUTABLE, Model, Rule, Vendor, list_map
from fdl_api.names import MAX_INCARNATION, MAX_NAME, MAX_ORDINAL, coordinator_pod
from fdl_api.run_status import (
    MAX_MEMBERS,
    CheckpointStatus,
    CohortStatus,
    Condition,
    CoordinatorStatus,
    Counters,
    FdlRunStatus,
    GuardActionStatus,
    GuardStatus,
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
    RankSpans,
    Resources,
    RevisionSource,
    Source,
    Toleration,
    TrainerSpec,
    VolumeSource,
)

_NONE_SPANS: Final = "self.cohorts.all(c, c.rankSpans == 'device')"
_CEILINGS: Final = "self.cohorts.map(c, has(c.maxReplicas) ? c.maxReplicas : c.replicas)"


class FdlRunSpec(Model):
    """What to train, on what, and how. Fields may not change after creation unless they say so."""

    cel: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!self.elche.bf16Wire || self.mode.startsWith('cpu-')",
            "spec.elche.bf16Wire: works in CPU modes only; leave it out or use a mode that starts with cpu-",
            field_path=".elche.bf16Wire",
        ),
        Rule(
            "!has(self.elche.easgdAlpha) || self.mode == 'cpu-async'",
            "spec.elche.easgdAlpha: has an effect in mode cpu-async only; leave it out or use that mode",
            field_path=".elche.easgdAlpha",
        ),
        Rule(
            "!has(self.elche.maxOvershoot) || self.mode == 'cpu-async'",
            "spec.elche.maxOvershoot: has an effect in mode cpu-async only; leave it out or use that mode",
            field_path=".elche.maxOvershoot",
        ),
        Rule(
            "!has(self.elche.averageStateEvery) || self.mode != 'cpu-async'",
            "spec.elche.averageStateEvery: not in mode cpu-async, where optimizers step while an average is made; "
            "leave it out or use mode cpu-cadence",
            field_path=".elche.averageStateEvery",
        ),
        Rule(
            "self.elche.average != 'gradients' || self.mode != 'cpu-async'",
            "spec.elche.average: gradients are of the last average, and in mode cpu-async ranks train on without it; "
            "use parameters, or mode cpu-cadence",
            field_path=".elche.average",
        ),
        Rule(
            "self.elche.average != 'gradients' || self.mode.endsWith('-sync') || self.elche.maxAnchor <= 64",
            "spec.elche.maxAnchor: with average gradients a window is one step, whose batch grows with the anchor; set "
            "maxAnchor to 64 or less, or use a sync mode",
            field_path=".elche.maxAnchor",
        ),
        Rule(
            f"{_NONE_SPANS} || self.mode.startsWith('cpu-')",
            "spec.cohorts[].rankSpans: a rank that spans its member averages in the host's memory; use 'device', or a "
            "mode that starts with cpu-",
            field_path=".mode",
        ),
        Rule(
            f"{_NONE_SPANS} || (self.elche.average != 'gradients' && !has(self.elche.averageStateEvery))",
            "spec.cohorts[].rankSpans: a rank that spans its member averages parameters only; use 'device', or set "
            "spec.elche.average to parameters and leave averageStateEvery out",
            field_path=".elche",
        ),
        Rule(
            f"{_CEILINGS}.sum() >= 1",
            "spec.cohorts: no cohort may have a member; set replicas or maxReplicas of one cohort to 1 or more",
            field_path=".cohorts",
        ),
        Rule(
            f"{_CEILINGS}.sum() <= {MAX_MEMBERS}",
            f"spec.cohorts: more than {MAX_MEMBERS} members in all; lower replicas or maxReplicas, and raise "
            "devicesPerReplica to keep as many ranks",
            field_path=".cohorts",
        ),
        Rule(
            "self.cohorts.all(c, self.cohorts.exists_one(other, other.name == c.name))",
            "spec.cohorts: two cohorts have the same name; give each its own name",
            field_path=".cohorts",
        ),
        Rule(
            f"self.join.minMembers <= {_CEILINGS}.sum()",
            "spec.join.minMembers: more than all cohorts together may have; lower it, or raise replicas or "
            "maxReplicas of a cohort",
            field_path=".join.minMembers",
        ),
        Rule(
            "!self.mode.startsWith('nccl-') || self.cohorts.all(c, c.vendor == self.cohorts[0].vendor)",
            "spec.mode: NCCL and RCCL cannot work together, so an nccl mode needs cohorts of one vendor; "
            "use 'cpu-cadence' or one vendor",
            field_path=".mode",
        ),
        Rule(
            "!self.mode.startsWith('nccl-') || self.cohorts.all(c, c.vendor != 'cpu')",
            "spec.mode: an nccl mode needs devices, but a cohort has vendor cpu; use 'cpu-cadence' or another vendor",
            field_path=".mode",
        ),
        Rule(
            "!self.data.audit || has(self.checkpoint)",
            "spec.data.audit: the audit is written to the checkpoint claim; set spec.checkpoint.claim or audit: false",
            field_path=".data.audit",
        ),
        *(row.rule() for row in not_yet.RUN),
    )

    @model_validator(mode="before")
    @classmethod
    def _name_legacy_keys(cls, data: Any) -> Any:
        return legacy.refuse(data, "spec", legacy.SPEC)

    replicas: int | None = Field(
        default=None,
        ge=0,
        le=10000,
        json_schema_extra=MUTABLE,
        description="Wanted total of members, shared over cohorts in listed order within their minReplicas and "
        "maxReplicas; the cohorts' own replicas count when unset. Written by kubectl scale and by an HPA (which needs "
        "it to be set first); values outside the sums of the bounds are clamped. May be changed at any time.",
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


_LONGEST_TAIL: Final = len(f"-{MAX_ORDINAL}-{MAX_INCARNATION}")
_TOO_LONG: Final = f"(<run>-<cohort>-{MAX_ORDINAL}-{MAX_INCARNATION}) has more than {MAX_NAME} characters"
_LONGEST_COORDINATOR: Final = coordinator_pod("", MAX_INCARNATION)


class FdlRun(Model):
    """One training run: what to train, on which kinds of devices, and what became of it."""

    cel: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.metadata.name.matches('^[a-z][-a-z0-9]*$')",
            "metadata.name: becomes the name of a Service, so it must start with a letter and have only lower-case "
            "letters, digits and dashes; rename the run",
        ),
        Rule(
            f"size(self.metadata.name) <= {MAX_NAME - len(_LONGEST_COORDINATOR)}",
            f"metadata.name: too long, since the coordinator's name (<run>{_LONGEST_COORDINATOR}) may have "
            f"{MAX_NAME} characters; use at most {MAX_NAME - len(_LONGEST_COORDINATOR)}",
        ),
        Rule(
            f"self.spec.cohorts.all(c, size(self.metadata.name) + 1 + size(c.name) + {_LONGEST_TAIL} <= {MAX_NAME})",
            f"metadata.name: too long, since the longest name of a member {_TOO_LONG}; shorten the run's name or "
            "its longest cohort's",
            message_expression=f"'metadata.name: ' + self.metadata.name + ' is too long, since the longest name of a "
            f"member {_TOO_LONG}; shorten the run\\'s name or its longest cohort\\'s to together at most "
            f"{MAX_NAME - 1 - _LONGEST_TAIL} characters'",
        ),
    )

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
    "GuardActionStatus",
    "GuardStatus",
    "ImageSource",
    "JoinSpec",
    "KeyRef",
    "MemberPhase",
    "MemberStatus",
    "Mode",
    "NetworkSpec",
    "ObjectMeta",
    "RankSpans",
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
