"""FdlRun spec, second half: how members meet, how work is shared, and what happens on failure."""

from enum import StrEnum
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fdl_api.model import INT_OR_STRING, MUTABLE, Model, Rule, rules

Share = Annotated[float, Field(gt=0.0, le=1.0)]

RATIO_CAP = 64
"""How many times the smallest share, and how many times the anchor, a rank's batches of a window may be.

For a rank that is slower still, the others wait.
"""


class Mode(StrEnum):
    """When ranks average (sync: after each batch; cadence: after a window; async: without waiting) and over what."""

    NCCL_SYNC = "nccl-sync"
    NCCL_CADENCE = "nccl-cadence"
    CPU_SYNC = "cpu-sync"
    CPU_CADENCE = "cpu-cadence"
    CPU_ASYNC = "cpu-async"

    @property
    def is_sync(self) -> bool:
        """Whether ranks average after every batch."""
        return self in (Mode.NCCL_SYNC, Mode.CPU_SYNC)

    @property
    def is_nccl(self) -> bool:
        """Whether bytes move by NCCL or RCCL, which needs one vendor."""
        return self in (Mode.NCCL_SYNC, Mode.NCCL_CADENCE)


class JoinSpec(Model):
    """How the first members meet before training starts. Later members join at any time."""

    cel: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "!has(self.targetMembers) || self.targetMembers >= self.minMembers",
            "spec.join.targetMembers: must be at least minMembers; raise targetMembers or lower minMembers",
            field_path=".targetMembers",
        ),
        Rule(
            "self.capSeconds >= self.windowSeconds",
            "spec.join.capSeconds: must be at least windowSeconds; raise capSeconds or lower windowSeconds",
            field_path=".capSeconds",
        ),
        Rule(
            "self.start != 'manual' || !has(self.targetMembers)",
            "spec.join.targetMembers: has no effect with start manual; remove it or use start hybrid",
            field_path=".targetMembers",
        ),
    )

    min_members: int = Field(
        default=1,
        ge=1,
        le=10000,
        description="Members without which training does not start; a running one goes on with those that are left.",
    )
    target_members: int | None = Field(
        default=None,
        ge=1,
        le=10000,
        description="Members at which training starts at once; all wanted members when unset.",
    )
    window_seconds: int = Field(
        default=30,
        ge=0,
        le=86400,
        description="Seconds to wait for targetMembers; afterwards minMembers are enough. Members that are starting on "
        "their nodes are waited for as long again, at most 20 s.",
    )
    cap_seconds: int = Field(
        default=600, ge=1, le=86400, description="Seconds after which the start fails if there are not minMembers."
    )
    start: Literal["auto", "manual", "hybrid"] = Field(
        default="auto",
        description="auto: the rules above start the training; manual: a person does; hybrid: whichever is first. "
        "Only auto is available in this release.",
    )
    walk_ins: bool = Field(
        default=False,
        description="True admits machines outside the cluster that dial in with fdl join. Not available in this "
        "release.",
    )


class OuterSpec(Model):
    """A step on top of each average: momentum over the way from the last one."""

    cel: ClassVar[tuple[Rule, ...]] = tuple(
        Rule(
            f"self.optimizer != 'none' || !has(self.{field})",
            f"spec.elche.outer.{field}: has no effect without an outer optimizer; set optimizer to slowmo or nesterov, "
            f"or remove {field}",
            field_path=f".{field}",
        )
        for field in ("learningRate", "momentum")
    )

    optimizer: Literal["none", "slowmo", "nesterov"] = Field(
        default="none",
        description="none takes the average; slowmo and nesterov (the outer optimizer of DiLoCo) put momentum on it, "
        "which pays with an anchor of about 30 and more.",
    )
    learning_rate: Annotated[float, Field(gt=0.0, le=10.0)] | None = Field(
        default=None, description="Learning rate of that step; 1 for slowmo and 0.7 for nesterov when unset."
    )
    momentum: Annotated[float, Field(ge=0.0, le=0.999)] | None = Field(
        default=None, description="Momentum of that step; 0.5 for slowmo and 0.9 for nesterov when unset."
    )


class ElcheSpec(Model):
    """How work is shared between ranks of unequal speed (ElChe). The defaults suit most runs."""

    cel: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.anchor <= self.maxAnchor",
            "spec.elche.anchor: must be at most maxAnchor; lower anchor or raise maxAnchor",
            field_path=".anchor",
        ),
        Rule(
            "!has(self.minAnchor) || self.minAnchor <= self.anchor",
            "spec.elche.minAnchor: must be at most anchor; lower minAnchor or raise anchor",
            field_path=".minAnchor",
        ),
        Rule(
            "self.gamma == 1.0 || self.weights in ['samples', 'batches']",
            "spec.elche.gamma: has no effect with these weights; leave it out or set weights to samples or batches",
            field_path=".gamma",
        ),
        Rule(
            "!has(self.partitionRatios) || (self.partitionRatios.sum() > 0.999 && self.partitionRatios.sum() < 1.001)",
            "spec.elche.partitionRatios: must sum to 1; give each rank its part of the work",
            field_path=".partitionRatios",
        ),
        Rule(
            "self.average != 'gradients' || self.outer.optimizer == 'none'",
            "spec.elche.outer.optimizer: with average gradients there is no way from average to average to put "
            "momentum on; set it to none, or average to parameters",
            field_path=".outer.optimizer",
        ),
        Rule(
            "self.average != 'gradients' || (self.weights == 'samples' && self.gamma == 1.0)",
            "spec.elche.weights: the mean gradient of a window weighs by samples; leave weights and gamma out, or set "
            "average to parameters",
            field_path=".weights",
        ),
        Rule(
            "self.average != 'gradients' || !has(self.averageStateEvery)",
            "spec.elche.averageStateEvery: with average gradients all optimizers take the same steps; leave it out",
            field_path=".averageStateEvery",
        ),
    )

    anchor: int = Field(
        default=10,
        ge=1,
        le=100000,
        description="Batches that the slowest rank does per window at the start. Sync modes always use 1.",
    )
    min_anchor: int | None = Field(
        default=None, ge=1, le=100000, description="Batches below which the anchor is never planned; anchor when unset."
    )
    max_anchor: int = Field(default=1000, ge=1, le=100000, description="Batches above which the anchor never grows.")
    overhead_target: Annotated[float, Field(ge=0.01, le=0.5)] = Field(
        default=0.05,
        description="Share of the anchor rank's window that may be fixed cost; above it the anchor grows.",
    )
    dead_zone: Annotated[float, Field(ge=0.0, le=0.5)] = Field(
        default=0.05, description="Relative change of a quota below which it is left as it is."
    )
    max_batch_diff: int | None = Field(
        default=None,
        ge=0,
        le=100000,
        description="Batches by which a quota may move per window; 0 is strict lockstep, unset is no limit.",
    )
    relax_up: bool = Field(
        default=False,
        description="True lets the anchor grow by one batch with each window that the guard finds stable.",
    )
    partition_ratios: tuple[Share, ...] | None = Field(
        default=None,
        min_length=1,
        max_length=256,
        description="Shares of the work, one for each rank that the cohorts want: cohorts in their order, their "
        "members by ordinal, the members' devices; a successor has its predecessor's. They sum to 1, are fixed in "
        "sync modes, and a hint for the first windows in the others. Another number of shares than of wanted ranks is "
        "not used, and status.training.notes says so.",
    )
    meta_controller: bool = Field(
        default=False,
        description="True shrinks the anchor when the learning rate falls by more than 30 % from one window to the "
        "next, or when the guard speaks several windows in a row.",
    )
    guard: Literal["level", "growth", "none"] = Field(
        default="level",
        description="What watches divergence between ranks: level stops the growth of the anchor when divergence rises "
        "three times and is above divergenceThreshold; growth stops it, or halves the anchor, by the rate at which "
        "divergence grows. Either shrinks the anchor when divergence stays above ten times divergenceThreshold.",
    )
    divergence_threshold: Annotated[float, Field(gt=0.0, le=10.0)] = Field(
        default=0.05,
        description="Relative L2 distance between a rank and the average above which the level guard acts, at the "
        "largest learning rate of the training; it falls with the learning rate.",
    )
    average: Literal["parameters", "gradients"] = Field(
        default="parameters",
        description="What is averaged. parameters: each rank steps after each of its batches, and the models are "
        "averaged. gradients: a window is one step of all ranks with the mean gradient of its batches, as one process "
        "would take it on all of them; for small anchors, and scripts that train with session.step.",
    )
    weights: Literal["samples", "batches", "uniform", "normalized"] = Field(
        default="samples",
        description="What a rank's weight in the average follows from: its samples, its batches, nothing (uniform), or "
        "normalized: the mean of the ranks' ways per batch, times the mean number of batches, for data that differs "
        "between ranks.",
    )
    gamma: Annotated[float, Field(ge=0.0, le=2.0)] = Field(
        default=1.0,
        description="Exponent of a rank's samples or batches in its weight; 1 weighs by work done, 0 like uniform.",
    )
    outer: OuterSpec = Field(default_factory=OuterSpec, description="A step on top of each average.")
    easgd_alpha: Annotated[float, Field(gt=0.0, le=1.0)] | None = Field(
        default=None,
        description="Share of the way to a new average that a rank goes, in cpu-async; the whole way when unset.",
    )
    max_overshoot: int | None = Field(
        default=None,
        ge=0,
        le=100000,
        description="Batches that a rank may train while an average is in flight, in cpu-async; when unset 3 of the "
        "slowest rank's at first, up to 15 while training is stable, and more for faster ranks.",
    )
    bf16_wire: bool = Field(
        default=False,
        description="True sends, in CPU modes, what parameters changed by since the last average as bf16: half the "
        "bytes, and a relative error of up to 0.4 % a rank in that change.",
    )
    average_state_every: int | None = Field(
        default=None,
        ge=1,
        le=100000,
        description="Windows after which the optimizer's momentum and moments are averaged with the parameters; never "
        "when unset: each rank keeps its own.",
    )


class BudgetsSpec(Model):
    """Deaths that a run survives, by cause, over all its attempts. Members that were scaled away do not count."""

    app: int = Field(
        default=3, ge=0, le=100000, description="Deaths by the user's program (exceptions, out of memory), all cohorts."
    )
    infrastructure: int = Field(
        default=50,
        ge=0,
        le=100000,
        description="Deaths by nodes, networks, volumes, images or fdl itself; also tries in a row to form the ranks' "
        "group.",
    )
    preemption: int | None = Field(
        default=None,
        ge=0,
        le=100000,
        description="Ends by preemption, drain, eviction or deletion; no limit when unset.",
    )


class FailurePolicySpec(Model):
    """When failures end the run, and how."""

    max_failures: Annotated[int | str, Field(json_schema_extra=INT_OR_STRING)] | None = Field(
        default=None,
        json_schema_extra=rules(
            Rule(
                "type(self) == int ? self >= 1 && self <= 10000 : string(self).matches('^([1-9][0-9]?|100)%$')",
                "spec.failurePolicy.maxFailures: must be a number of members from 1 to 10000 or a percentage from "
                "'1%' to '100%'; leave it out for no limit",
            )
        ),
        description="Members dead at one time, as a number or a percentage of the wanted members (rounded up), "
        "at which onExceeded applies; no limit when unset.",
    )
    on_exceeded: Literal["ShutdownWithSave", "Fail"] = Field(
        default="ShutdownWithSave",
        description="What happens when maxFailures or a budget is exceeded; ShutdownWithSave saves a checkpoint first.",
    )
    budgets: BudgetsSpec = Field(
        default_factory=BudgetsSpec, description="Deaths that the run survives, by cause, over all attempts."
    )


class RunPolicySpec(Model):
    """Life cycle of the run."""

    suspend: bool = Field(
        default=False,
        json_schema_extra=MUTABLE,
        description="True saves, stops all members and frees their devices; false again resumes from the checkpoint. "
        "May be changed at any time.",
    )
    ttl_seconds_after_finished: int | None = Field(
        default=None,
        ge=0,
        le=315360000,
        json_schema_extra=MUTABLE,
        description="Seconds after which a finished run is deleted; never when unset. May be changed at any time.",
    )
    active_deadline_seconds: int | None = Field(
        default=None,
        ge=1,
        le=315360000,
        json_schema_extra=MUTABLE,
        description="Seconds that the run may be active, suspended time not counted; no limit when unset. "
        "May be changed at any time.",
    )
    startup_deadline_seconds: int = Field(
        default=600,
        ge=1,
        le=86400,
        json_schema_extra=MUTABLE,
        description="Seconds after which a run that could not place minMembers gives its seats back and tries again. "
        "May be changed at any time.",
    )
    clean_pod_policy: Literal["Running", "All", "None"] = Field(
        default="Running",
        description="Pods that are deleted when the run has finished: those still running, all, or none.",
    )
    allow_fresh_start: bool = Field(
        default=False,
        json_schema_extra=MUTABLE,
        description="True lets a run that has made progress start anew when no checkpoint can be used. "
        "May be changed at any time.",
    )


class NetworkSpec(Model):
    """Who may talk to the run's pods."""

    policy: Literal["basic", "strict", "none"] = Field(
        default="basic",
        description="basic: a NetworkPolicy admits members, coordinator and operator only; strict limits egress too, "
        "and is not available in this release; none: no NetworkPolicy is made.",
    )


class SchedulingSpec(Model):
    """How the cluster's scheduler and queues see the run."""

    queue_name: Annotated[str, Field(min_length=1, max_length=253)] | None = Field(
        default=None, description="Queue that admits the run. Not available in this release."
    )
    priority_class_name: Annotated[str, Field(min_length=1, max_length=253)] | None = Field(
        default=None, description="PriorityClass of the run's pods; the cluster's default when unset."
    )
    pod_group: bool = Field(
        default=False, description="True places minMembers all at once or not at all. Not available in this release."
    )
    topology: Annotated[str, Field(min_length=1, max_length=317)] | None = Field(
        default=None,
        description="Node label of which all members of a cohort get the same value. Not available in this release.",
    )
