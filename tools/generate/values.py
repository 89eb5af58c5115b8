"""The chart's values: types, bounds and meaning. ``values.schema.json`` and the reference page come from here.

Unknown keys are refused at every level, so that a misspelt value fails the install instead of being ignored.
Fields that Kubernetes defines (affinity, resources, tolerations) have the types of the pod API, not its
whole schema: the API server checks the rest.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]
Quantity = Annotated[str | int | float, Field(description="Kubernetes quantity.")]


class Values(BaseModel):
    """Base: camelCase keys, nothing else allowed."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")


class Image(Values):
    """Where images come from."""

    registry: str = Field(default="fdl.local", description="Prefix of all images that are not named in full.")
    tag: str = Field(default="dev", description="Tag of all images that are not named in full.")
    pull_policy: Literal["Always", "IfNotPresent", "Never"] = Field(
        default="IfNotPresent", description="imagePullPolicy of operator and prober."
    )


class PullSecret(Values):
    """A Secret for pulling images."""

    name: Name = Field(description="Name of the Secret in the release's namespace.")


class Resources(Values):
    """Compute resources of a container."""

    requests: dict[str, Quantity] = Field(default_factory=dict, description="What the scheduler reserves.")
    limits: dict[str, Quantity] = Field(default_factory=dict, description="What the container may use at most.")


class Toleration(Values):
    """Lets pods onto nodes with a taint."""

    key: str | None = Field(default=None, description="Key of the taint; all keys when absent.")
    operator: Literal["Exists", "Equal"] | None = Field(default=None, description="Exists ignores the value.")
    value: str | None = Field(default=None, description="Value of the taint.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Effect of the taint; all effects when absent."
    )
    toleration_seconds: int | None = Field(default=None, ge=0, description="Seconds that NoExecute is tolerated.")


class NcclBridge(Values):
    """A library that is preloaded where a variant's own has another version than the cohort runs."""

    image: str = Field(min_length=1, description="Image that holds the library.")
    version: str = Field(pattern=r"^[0-9]+\.[0-9]+(\.[0-9]+)*$", description="Version of the library.")
    path: str = Field(default="/opt/nccl/libnccl.so.2", pattern="^/", description="The library's file in the image.")


class Variant(Values):
    """A trainer image that FdlCluster/default is created with."""

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=30)] = Field(
        description="Name, as in spec.cohorts[].variant and in node labels."
    )
    vendor: Literal["nvidia", "amd", "cpu"] = Field(description="Vendor of the devices that it computes on.")
    image: str = Field(default="", description="Image in full; <image.registry>/trainer-<name>:<image.tag> when empty.")
    archs: list[str] = Field(default_factory=list, description="Architectures its torch has kernels for; none for cpu.")
    nccl_version: str | None = Field(default=None, description="NCCL or RCCL version in the image.")
    torch_version: str | None = Field(default=None, description="torch version in the image.")
    nccl_bridge: NcclBridge | None = Field(
        default=None, description="Another NCCL for its nodes (image, version, path), as in FdlCluster."
    )


class Crds(Values):
    """The custom resource definitions."""

    install: bool = Field(
        default=True, description="Whether the chart brings them. They are upgraded with it and stay when it goes."
    )


class Pod(Values):
    """What operator and prober pods have in common."""

    image: str = Field(default="", description="Image in full, instead of registry, own name and tag.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(default="info", description="Least level logged.")
    env: dict[str, str] = Field(default_factory=dict, description="More environment variables.")
    priority_class_name: str = Field(default="", description="PriorityClass; the cluster's default when empty.")
    node_selector: dict[str, str] = Field(default_factory=dict, description="Labels of nodes that it may run on.")
    pod_labels: dict[str, str] = Field(default_factory=dict, description="More labels of the pod.")
    pod_annotations: dict[str, str] = Field(default_factory=dict, description="More annotations of the pod.")


class Operator(Pod):
    """The operator's Deployment."""

    replicas: int = Field(default=1, ge=0, le=2, description="Pods; a second one waits for the Lease of the first.")
    resources: Resources = Field(
        default=Resources(requests={"cpu": "50m", "memory": "128Mi"}, limits={"memory": "512Mi"}),
        description="Resources of its container.",
    )
    tolerations: list[Toleration] = Field(default_factory=list, description="Taints that it tolerates.")
    node_lost_seconds: int = Field(
        default=15,
        ge=0,
        le=3600,
        description="Seconds after which a pod on an unreachable or not-ready node is given up and made elsewhere.",
    )
    affinity: dict[str, Any] = Field(default_factory=dict, description="Affinity, as in a pod.")
    watch_namespaces: list[Name] = Field(
        default_factory=list, description="Namespaces whose runs it works on; all when empty."
    )
    taint_nodes: bool = Field(
        default=False,
        description="Gives it the right to put the taint fdl.dev/quarantine on nodes and to take it off, as FdlCluster "
        "spec.quarantine.taint asks; an admission policy keeps it to that.",
    )


class Coordinator(Values):
    """The coordinator pod of each run."""

    resources: Resources = Field(
        default=Resources(requests={"cpu": "50m", "memory": "96Mi"}, limits={"memory": "512Mi"}),
        description="Resources of its container.",
    )


class Sentinel(Values):
    """A file of a shared volume; nodes that see different content have different mounts."""

    claim: str = Field(
        default="",
        max_length=253,
        description="PersistentVolumeClaim in the release's namespace, ReadOnlyMany or ReadWriteMany; none when empty.",
    )
    path: str = Field(default="", description="Path of the file within the volume, without a leading slash.")


class ProberVolume(Values):
    """A volume that every node should be able to use."""

    claim: Annotated[str, Field(min_length=1, max_length=253)] = Field(
        description="PersistentVolumeClaim in the release's namespace that all nodes can mount."
    )
    kind: Literal["data", "checkpoints"] = Field(
        default="data",
        description="data is mounted read-only, read, and timed once an hour; checkpoints is mounted for writing, and "
        "a file is made there and removed at each look.",
    )


class Prober(Pod):
    """The prober's DaemonSet."""

    enabled: bool = Field(default=True, description="Whether nodes are probed. GPU cohorts cannot be placed without.")
    period_seconds: int = Field(
        default=30,
        ge=1,
        le=3600,
        description="Seconds between two looks at a node. Only what changed is written, and the report's age.",
    )
    resources: Resources = Field(
        default=Resources(requests={"cpu": "5m", "memory": "80Mi"}, limits={"memory": "192Mi"}),
        description="Resources of its container.",
    )
    tolerations: list[Toleration] = Field(
        default=[Toleration(operator="Exists")],
        description="Taints that it tolerates; all by default, since GPU nodes are usually tainted.",
    )
    privileged: bool = Field(
        default=True,
        description="Whether its pods on nodes with GPUs may open all devices. AMD's driver, and NVIDIA's without a "
        "RuntimeClass, show nothing to others. Pods on nodes without GPUs never may.",
    )
    runtime_class_name: str = Field(
        default="",
        description="RuntimeClass that brings the driver into its pods on GPU nodes, e.g. nvidia; none when empty.",
    )
    driver_root: str = Field(
        default="/",
        pattern=r"^(/.*)?$",
        description="Folder of the host that its pods on nodes with GPUs mount read-only to find the driver's "
        "libraries in, directly or below run/nvidia/driver; none when empty.",
    )
    simulated_driver_root: str = Field(
        default="",
        pattern=r"^(/.*)?$",
        description="Folder of the node with the files of simulated devices; only for local test clusters.",
    )
    sentinel: Sentinel = Field(
        default_factory=Sentinel, description="File of a shared volume that all nodes should see alike."
    )
    volumes: list[ProberVolume] = Field(
        default_factory=list,
        max_length=16,
        description="Volumes whose access, space and speed are checked on each node. A node that cannot mount one has "
        "no prober, which the operator tells as report-age.",
    )
    stale_processes: bool = Field(
        default=False,
        description="Whether its pods on nodes with GPUs see the host's processes (hostPID), to find those that hold "
        "device memory and belong to no pod.",
    )


class FdlValues(Values):
    """All values of the chart."""

    name_override: str = Field(default="", max_length=40, description="Replaces the chart's name in object names.")
    image: Image = Field(default_factory=Image, description="Where images come from.")
    image_pull_secrets: list[PullSecret] = Field(
        default_factory=list,
        description="Secrets for pulling images. Member pods get the same names, in each run's own namespace.",
    )
    crds: Crds = Field(default_factory=Crds, description="The custom resource definitions.")
    variants: list[Variant] = Field(
        default=[Variant(name="cpu", vendor="cpu")],
        description="Trainer variants of FdlCluster/default, written when it is first made. Edit the object later.",
    )
    operator: Operator = Field(default_factory=Operator, description="The operator's Deployment.")
    coordinator: Coordinator = Field(default_factory=Coordinator, description="The coordinator pod of each run.")
    prober: Prober = Field(default_factory=Prober, description="The prober's DaemonSet.")
    global_: dict[str, Any] = Field(
        default_factory=dict, alias="global", description="Left for parent charts; fdl reads nothing from it."
    )
