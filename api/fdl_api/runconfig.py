"""The resolved run: what the operator hands to the coordinator and to every member of one attempt.

It is the content of ``run.json`` in the run's ConfigMap. Programs read it from :data:`fdl_api.names.RUN_FILE`;
what differs by pod comes in environment variables (:class:`MemberEnv`).
"""

from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from fdl_api.run import CheckpointSpec, ElcheSpec, FailurePolicySpec, JoinSpec, Mode, RankSpans


class Resolved(BaseModel):
    """Base: camelCase, unknown fields refused, immutable."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True)


class CohortConfig(Resolved):
    """What the join gate expects of a cohort's members."""

    name: str
    vendor: Literal["nvidia", "amd", "cpu"]
    min_replicas: int
    max_replicas: int
    devices_per_replica: int
    rank_spans: RankSpans = RankSpans.DEVICE
    replicas: int | None = Field(default=None, description="Members that the run wants; minReplicas when unset.")
    nccl: str | None = Field(default=None, description="NCCL or RCCL major.minor in NCCL modes.")
    allow_simulated: bool = False

    @property
    def ranks_per_replica(self) -> int:
        """Ranks of a member."""
        return self.devices_per_replica if self.rank_spans is RankSpans.DEVICE else 1

    @property
    def wanted_ranks(self) -> int:
        """Ranks that the run wants of the cohort."""
        return (self.min_replicas if self.replicas is None else self.replicas) * self.ranks_per_replica


class ScriptConfig(Resolved):
    """How a member starts the user's script."""

    path: str = Field(description="Absolute path of the script in the member's container.")
    args: list[str] = Field(default_factory=list)


class RunConfig(Resolved):
    """One attempt of a run, with every default filled in."""

    name: str
    namespace: str
    run_uid: str
    attempt: int = Field(ge=1)
    mode: Mode
    coordinator_host: str
    coordinator_port: int
    cohorts: list[CohortConfig]
    join: JoinSpec
    elche: ElcheSpec
    checkpoint: CheckpointSpec | None = None
    checkpoint_dir: str | None = Field(default=None, description="This run's own directory below the mounted claim.")
    data_dir: str | None = None
    data_sentinel: str | None = None
    audit: bool = Field(default=False, description="Loaders log every index below checkpoint_dir/audit.")
    failure_policy: FailurePolicySpec
    stall_seconds: float = Field(
        default=120.0,
        gt=0.0,
        description="Seconds, at least, that all others wait for a member without progress before it is suspended.",
    )
    script: ScriptConfig
    allow_fresh_start: bool = Field(
        default=False, description="Train from the start when all members died and no checkpoint can be loaded."
    )
    must_resume: bool = Field(
        default=False, description="The run has progress: a member without a valid checkpoint must not start afresh."
    )

    def cohort(self, name: str) -> CohortConfig | None:
        """The cohort of this name, if the run has one."""
        return next((cohort for cohort in self.cohorts if cohort.name == name), None)


class MemberEnv:
    """Names of the environment variables of a member's and of the coordinator's pod."""

    RUN_FILE: Final = "FDL_RUN_FILE"
    TOKEN_FILE: Final = "FDL_TOKEN_FILE"  # noqa: S105 - a variable's name, not a token
    CA_FILE: Final = "FDL_CA_FILE"
    CERT_FILE: Final = "FDL_CERT_FILE"
    KEY_FILE: Final = "FDL_KEY_FILE"
    ATTEMPT: Final = "FDL_ATTEMPT"
    MEMBER: Final = "FDL_MEMBER"
    MEMBER_UID: Final = "FDL_MEMBER_UID"
    COHORT: Final = "FDL_COHORT"
    ORDINAL: Final = "FDL_ORDINAL"
    INCARNATION: Final = "FDL_INCARNATION"
    NODE: Final = "FDL_NODE"
    POD_IP: Final = "FDL_POD_IP"
    CPU_LIMIT: Final = "FDL_CPU_LIMIT"
    """Millicores of the container's limit (downward API), for the number of threads."""
    GRACE_SECONDS: Final = "FDL_GRACE_SECONDS"
    GENERATION: Final = "FDL_GENERATION"
    """Incarnation of the coordinator's pod: its generation."""
    LOCAL_RANK: Final = "FDL_LOCAL_RANK"
    """Set by the agent for each rank."""
    COORDINATOR: Final = "FDL_COORDINATOR"
    """host:port that replaces the run file's address (tests, tunnels)."""
