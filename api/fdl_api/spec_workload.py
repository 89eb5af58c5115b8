"""FdlRun spec, first half: what is trained, by whom, on what data, and where the result goes."""

from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, model_validator

from fdl_api import legacy
from fdl_api.model import (
    DNS_LABEL,
    MUTABLE,
    Image,
    LabelKey,
    LabelValue,
    Model,
    ObjectName,
    Quantity,
    Rule,
    Vendor,
    image_rule,
    list_map,
)

MAX_COHORTS: Final = 16
MAX_REPLICAS: Final = 1000
MAX_COHORT_NAME: Final = 20

AbsolutePath = Annotated[str, Field(min_length=2, max_length=512, pattern=r"^/(.*[^/])$")]
RelativePath = Annotated[str, Field(min_length=1, max_length=512, pattern=r"^[^/].*$")]
FileKey = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")]


class RankSpans(StrEnum):
    """What one rank trains on."""

    DEVICE = "device"
    MEMBER = "member"


class Resources(Model):
    """Compute resources of a member's container, as in a pod."""

    requests: dict[LabelKey, Quantity] = Field(
        default_factory=dict,
        max_length=16,
        description="What the scheduler reserves, by resource name, e.g. cpu: 500m.",
    )
    limits: dict[LabelKey, Quantity] = Field(
        default_factory=dict,
        max_length=16,
        description="What the container may use at most, by resource name, e.g. memory: 4Gi. "
        "Devices are added from devicesPerReplica and need no entry here.",
    )


class KeyRef(Model):
    """One key of a Secret or ConfigMap in the run's namespace."""

    name: ObjectName = Field(description="Name of the Secret or ConfigMap.")
    key: FileKey = Field(description="Key in it.")
    optional: bool = Field(
        default=False, description="True when the variable may stay unset because the key is absent."
    )


class EnvVarSource(Model):
    """Where a variable's value comes from."""

    cel: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "[has(self.secretKeyRef), has(self.configMapKeyRef)].exists_one(x, x)",
            "spec.trainer.env[].valueFrom: set exactly one of secretKeyRef and configMapKeyRef",
        ),
    )

    secret_key_ref: KeyRef | None = Field(default=None, description="Key of a Secret.")
    config_map_key_ref: KeyRef | None = Field(default=None, description="Key of a ConfigMap.")


RESERVED_ENV: Final = (
    "MASTER_ADDR",
    "MASTER_PORT",
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "CUDA_VISIBLE_DEVICES",
    "CUDA_DEVICE_ORDER",
    "HIP_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
)
"""Variables that fdl sets for each rank, besides all that start with ``FDL_``."""


class EnvVar(Model):
    """An environment variable of the user's script."""

    cel: ClassVar[tuple[Rule, ...]] = (
        Rule(
            f"!self.name.startsWith('FDL_') && !(self.name in [{', '.join(repr(name) for name in RESERVED_ENV)}])",
            "spec.trainer.env[].name: this variable is set by fdl for each rank; remove it "
            "(devices come from spec.cohorts[].devicesPerReplica, addresses from the coordinator)",
            message_expression="'spec.trainer.env[].name: ' + self.name + ' is set by fdl for each rank; remove it "
            "(devices come from spec.cohorts[].devicesPerReplica, addresses from the coordinator)'",
            field_path=".name",
            forbidden=True,
        ),
        Rule(
            "!(has(self.value) && has(self.valueFrom))",
            "spec.trainer.env[]: set value or valueFrom, not both",
        ),
    )

    name: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")] = Field(
        description="Name of the variable."
    )
    value: Annotated[str, Field(max_length=4096)] | None = Field(
        default=None, description="Its value; empty when both value and valueFrom are unset."
    )
    value_from: EnvVarSource | None = Field(default=None, description="Takes the value from a Secret or ConfigMap.")


class ImageSource(Model):
    """The script is part of the trainer image."""

    path: AbsolutePath = Field(description="Absolute path of the script in the image.")


class ConfigMapSource(Model):
    """The script is a key of a ConfigMap, mounted read-only."""

    name: ObjectName = Field(description="Name of the ConfigMap in the run's namespace.")
    key: FileKey = Field(default="train.py", description="Key that holds the script; its siblings are importable.")


class VolumeSource(Model):
    """The script lies on a volume, mounted read-only."""

    claim: ObjectName = Field(description="PersistentVolumeClaim in the run's namespace.")
    path: RelativePath = Field(description="Path of the script below the volume's root.")


class GitSource(Model):
    """The script comes from a git repository."""

    url: Annotated[str, Field(min_length=1, max_length=1024)] = Field(description="Address of the repository.")
    ref: Annotated[str, Field(min_length=1, max_length=256)] = Field(
        default="HEAD", description="Commit, tag or branch; resolved to a commit once, when the run starts."
    )
    path: RelativePath = Field(description="Path of the script in the repository.")


class RevisionSource(Model):
    """The script is a published, immutable revision."""

    name: ObjectName = Field(description="Name of the revision.")
    path: RelativePath = Field(description="Path of the script in the revision.")


class Source(Model):
    """Where the user's script comes from: exactly one of the fields."""

    cel: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "[has(self.image), has(self.configMap), has(self.volume), has(self.git), has(self.revision)]"
            ".exists_one(x, x)",
            "spec.trainer.source: set exactly one of image, configMap and volume",
        ),
    )

    image: ImageSource | None = Field(default=None, description="The script is part of the trainer image.")
    config_map: ConfigMapSource | None = Field(default=None, description="The script is a key of a ConfigMap.")
    volume: VolumeSource | None = Field(default=None, description="The script lies on a PersistentVolumeClaim.")
    git: GitSource | None = Field(default=None, description="The script comes from git. Not available in this release.")
    revision: RevisionSource | None = Field(
        default=None, description="The script is a published revision. Not available in this release."
    )


class TrainerSpec(Model):
    """What every member runs."""

    image: Image | None = Field(
        default=None,
        json_schema_extra=image_rule("spec.trainer.image"),
        description="Trainer image for all cohorts; that of the chosen variant when unset. "
        "It must contain fdl_trainer and a torch that fits the nodes.",
    )
    source: Source = Field(description="Where the user's script comes from: exactly one of the fields.")
    args: tuple[Annotated[str, Field(max_length=2048)], ...] = Field(
        default=(), max_length=256, description="Arguments of the script, the same for all members."
    )
    env: tuple[EnvVar, ...] = Field(
        default=(),
        max_length=128,
        json_schema_extra=list_map("name"),
        description="Environment variables of the script, the same for all members.",
    )
    resources: Resources = Field(
        default_factory=Resources, description="Resources of a member's container, unless its cohort sets its own."
    )


class Toleration(Model):
    """Lets members onto nodes with a taint, as in a pod."""

    key: Annotated[str, Field(max_length=317)] | None = Field(
        default=None, description="Key of the taint; all keys when unset (operator must then be Exists)."
    )
    operator: Literal["Exists", "Equal"] = Field(default="Equal", description="Exists ignores the taint's value.")
    value: LabelValue | None = Field(default=None, description="Value of the taint, for Equal; empty when unset.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Effect of the taint; all effects when unset."
    )
    toleration_seconds: int | None = Field(
        default=None,
        ge=0,
        le=31536000,
        description="Seconds for which a NoExecute taint is tolerated; for ever when unset.",
    )


class Cohort(Model):
    """Members of one vendor."""

    cel: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.minReplicas <= self.replicas",
            "spec.cohorts[]: minReplicas is above replicas; lower minReplicas or raise replicas",
            field_path=".minReplicas",
        ),
        Rule(
            "!has(self.maxReplicas) || self.replicas <= self.maxReplicas",
            "spec.cohorts[]: replicas is above maxReplicas; lower replicas or raise maxReplicas",
            field_path=".replicas",
        ),
        Rule(
            "!has(self.maxReplicas) || self.minReplicas <= self.maxReplicas",
            "spec.cohorts[]: minReplicas is above maxReplicas; lower minReplicas or raise maxReplicas",
            field_path=".minReplicas",
        ),
        Rule(
            "self.vendor != 'cpu' || !has(self.deviceResource)",
            "spec.cohorts[].deviceResource: a cohort of vendor cpu has no device; remove deviceResource or set vendor",
            field_path=".deviceResource",
            forbidden=True,
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _name_legacy_keys(cls, data: Any) -> Any:
        return legacy.refuse(data, "spec.cohorts[]", legacy.COHORT)

    name: Annotated[str, Field(min_length=1, max_length=MAX_COHORT_NAME, pattern=r"^[a-z][a-z0-9]*$")] = Field(
        description="Name of the cohort, unique in the run: lower-case letters and digits, a letter first. "
        "No dashes, so that two runs can never derive the same pod name."
    )
    vendor: Vendor = Field(description="Vendor of the devices: nvidia, amd, or cpu for none.")
    replicas: int = Field(
        default=1,
        ge=0,
        le=MAX_REPLICAS,
        json_schema_extra=MUTABLE,
        description="Members wanted when spec.replicas is unset. May be changed at any time.",
    )
    min_replicas: int = Field(
        default=0,
        ge=0,
        le=MAX_REPLICAS,
        json_schema_extra=MUTABLE,
        description="Fewest members that spec.replicas can bring the cohort to. May be changed at any time.",
    )
    max_replicas: int | None = Field(
        default=None,
        ge=0,
        le=MAX_REPLICAS,
        json_schema_extra=MUTABLE,
        description="Most members that spec.replicas can bring the cohort to; replicas when unset. "
        "May be changed at any time.",
    )
    devices_per_replica: int = Field(
        default=1, ge=1, le=16, description="Devices of a member, one rank each. For vendor cpu: ranks of a member."
    )
    rank_spans: RankSpans = Field(
        default=RankSpans.DEVICE,
        description="What one rank trains on: its own device with a whole model, or all devices of its member, over "
        "which the script shards the model (FSDP2). member needs a CPU mode.",
    )
    device_resource: LabelKey | None = Field(
        default=None,
        description="Extended resource to request; nvidia.com/gpu or amd.com/gpu by vendor when unset.",
    )
    variant: Annotated[str, Field(min_length=1, max_length=30, pattern=DNS_LABEL)] = Field(
        default="auto",
        description="Trainer variant, a name of FdlCluster spec.variants; auto takes one that covers the devices.",
    )
    image: Image | None = Field(
        default=None,
        json_schema_extra=image_rule("spec.cohorts[].image"),
        description="Trainer image of this cohort; spec.trainer.image or the variant's when unset.",
    )
    node_selector: dict[LabelKey, LabelValue] = Field(
        default_factory=dict, max_length=32, description="Node labels that members need besides those fdl asks for."
    )
    tolerations: tuple[Toleration, ...] = Field(default=(), max_length=32, description="Taints that members tolerate.")
    allow_simulated: bool = Field(
        default=False,
        description="True lets members onto nodes with simulated devices, where they compute on the CPU. For tests.",
    )
    resources: Resources | None = Field(
        default=None, description="Resources of a member's container instead of spec.trainer.resources."
    )
    pod_template: dict[str, Any] | None = Field(
        default=None,
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True},
        description="Overlay on the member pod: metadata.labels, metadata.annotations and any pod spec field. "
        "Merged strategically over what fdl builds; the API server checks it when the first pod is tried.",
    )

    @property
    def ceiling(self) -> int:
        """Most members that the cohort can have."""
        return self.replicas if self.max_replicas is None else self.max_replicas


class DataSpec(Model):
    """Training data that members read."""

    claim: ObjectName | None = Field(
        default=None,
        description="PersistentVolumeClaim with the data, mounted read-only; unset when the image carries the data.",
    )
    mount_path: AbsolutePath = Field(
        default="/fdl/data", description="Absolute path of the data in the member's container."
    )
    sentinel: RelativePath | None = Field(
        default=None,
        description="File below mountPath that must be there: a member that does not see it ends before training. "
        "Not checked when unset.",
    )
    audit: bool = Field(
        default=False,
        description="True makes each loader log every index it hands out to the checkpoint claim, "
        "which proves that every sample was used exactly once per epoch.",
    )


class CheckpointSpec(Model):
    """Where and how often the training state is saved."""

    claim: ObjectName = Field(
        description="PersistentVolumeClaim for checkpoints. Where only one node can mount it, the writer stays there."
    )
    interval_seconds: int = Field(
        default=300, ge=1, le=86400, description="Seconds between two checkpoints; one is always written at the end."
    )
    keep: int = Field(
        default=3,
        ge=1,
        le=1000,
        description="Newest verified checkpoints to keep; at least 1, since a run must be able to resume.",
    )
