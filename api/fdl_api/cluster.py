"""FdlCluster: what is true for all runs of a cluster. The CRD ``crds/fdlclusters.yaml`` is generated from here.

What its spec says about nodes lies in :mod:`fdl_api.cluster_nodes`; import all of it from this module, but where memory
counts.
"""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fdl_api import not_yet
from fdl_api.cluster_nodes import Arch, FabricSpec, NcclBridge, ProberSpec, SocketInterface, Variant
from fdl_api.model import Model, ObjectName, Rule, StatusModel, list_map
from fdl_api.report import Persistence
from fdl_api.run import Condition, ObjectMeta, Toleration
from fdl_api.run_status import Count, Name, Sentence, Time

MAX_NODES = 5000
MAX_ARCHS = 16
MAX_VARIANTS = 32
MAX_VERSION = 32
"""What the row of a node has room for: entries, and characters of a version."""


class RunDefaults(Model):
    """Defaults for runs that say nothing themselves."""

    tolerations: tuple[Toleration, ...] = Field(
        default=(), max_length=32, description="Taints that members tolerate besides those that their cohort names."
    )
    image_pull_secrets: tuple[ObjectName, ...] = Field(
        default=(), max_length=16, description="Secrets for pulling images, in each run's namespace."
    )
    priority_class_name: ObjectName | None = Field(
        default=None,
        description="PriorityClass of the pods of runs that name none themselves; the cluster's default when unset.",
    )


class QuarantinedNode(Model):
    """A node that gets no new member."""

    name: ObjectName = Field(description="Name of the node.")
    reason: Annotated[str, Field(max_length=256)] = Field(default="", description="Why, for people.")


class AutomaticQuarantine(Model):
    """When a node is put in quarantine without anybody asking."""

    after_failures: int = Field(
        default=2, ge=1, le=10, description="Deep checks of one variant in a row whose kernels went wrong on the node."
    )
    for_seconds: int = Field(
        default=86400,
        ge=60,
        le=2592000,
        description="Seconds after the newest failure until the node is taken again; a check that passes ends it too.",
    )


class QuarantineSpec(Model):
    """Nodes that get no new member."""

    nodes: tuple[QuarantinedNode, ...] = Field(
        default=(), max_length=1000, json_schema_extra=list_map("name"), description="Nodes that people put there."
    )
    automatic: AutomaticQuarantine | None = Field(
        default=None, description="Puts nodes there that fail deep checks; off when unset."
    )
    taint: bool = Field(
        default=False,
        description="True also taints nodes in quarantine with fdl.dev/quarantine:NoSchedule, which keeps all pods off "
        "that do not tolerate it; needs the chart's value operator.taintNodes.",
    )


class DashboardSpec(Model):
    """The dashboard of all runs."""

    enabled: bool = Field(default=True, description="Whether it is served.")


class FdlClusterSpec(Model):
    """What is true for all runs of the cluster."""

    cel: ClassVar[tuple[Rule, ...]] = tuple(row.rule() for row in not_yet.CLUSTER)

    variants: tuple[Variant, ...] = Field(
        default=(),
        max_length=32,
        json_schema_extra=list_map("name"),
        description="Trainer images to choose from, best first where several cover a node.",
    )
    prober: ProberSpec = Field(default_factory=ProberSpec, description="How node reports are used.")
    fabric: FabricSpec = Field(
        default_factory=FabricSpec, description="The network between nodes for NCCL modes that span nodes."
    )
    defaults: RunDefaults = Field(
        default_factory=RunDefaults, description="Defaults for the pods of runs that say nothing themselves."
    )
    quarantine: QuarantineSpec = Field(default_factory=QuarantineSpec, description="Nodes that get no new member.")
    dashboard: DashboardSpec | None = Field(
        default=None, description="The dashboard of all runs. Not available in this release."
    )


class NodeProblem(StatusModel):
    """Something on a node that a person should know."""

    check: Annotated[str, Field(max_length=64)] = Field(
        description="Stable name of the check that found it, one of docs/reference/checks.md."
    )
    reason: Annotated[str, Field(max_length=64)] = Field(
        default="", description="Stable name of what was found, one of those of the check."
    )
    severity: Literal["info", "warning", "error"] = Field(description="error keeps members off the node.")
    persistence: Persistence | None = Field(
        default=None,
        alias="class",
        description="transient: may pass without a change of the machine; permanent: needs a person.",
    )
    message: Sentence = Field(description="What was seen.")
    remedy: Sentence = Field(default="", description="What to do about it.")


class NodeStatus(StatusModel):
    """A node as its newest report describes it."""

    name: Name = Field(description="Name of the node.")
    vendor: Literal["nvidia", "amd", "mixed", "none"] = Field(default="none", description="Vendor of its devices.")
    devices: Count = Field(default=0, description="Devices found.")
    archs: tuple[Arch, ...] = Field(default=(), max_length=MAX_ARCHS, description="Their architectures.")
    nccl: dict[Annotated[str, Field(max_length=63)], Annotated[str, Field(max_length=MAX_VERSION)]] = Field(
        default_factory=dict,
        max_length=MAX_VARIANTS,
        description="NCCL or RCCL major.minor by variant that loads one there.",
    )
    variants: tuple[Annotated[str, Field(max_length=63)], ...] = Field(
        default=(), max_length=MAX_VARIANTS, description="Variants that cover all its devices."
    )
    simulated: bool = Field(default=False, description="Whether its devices are simulated.")
    ready: bool = Field(default=False, description="Whether new members may be placed there.")
    report_time: Time | None = Field(
        default=None,
        description="When the first report was made that said what this row says; later ones that say the same do not "
        "move it. The newest report's own time is in the node's annotation.",
    )
    problems: tuple[NodeProblem, ...] = Field(default=(), max_length=32, description="Warnings and errors found there.")


class QuarantineStatus(StatusModel):
    """A node that gets no new member now."""

    name: Name = Field(description="Name of the node.")
    source: Literal["spec", "deep-check"] = Field(description="spec: people asked for it; deep-check: it failed one.")
    reason: Sentence = Field(default="", description="Why.")
    since: Time = Field(description="When it began.")
    until: Time | None = Field(default=None, description="When it ends by itself; unset: when people take it back.")
    tainted: bool = Field(default=False, description="Whether the node has the taint fdl.dev/quarantine.")


class NodeCounts(StatusModel):
    """Nodes by kind."""

    total: Count = Field(default=0, description="Nodes with a report.")
    ready: Count = Field(default=0, description="Nodes where new members may be placed.")
    nvidia: Count = Field(default=0, description="Nodes with NVIDIA devices.")
    amd: Count = Field(default=0, description="Nodes with AMD devices.")
    cpu: Count = Field(default=0, description="Nodes without devices.")
    problems: Count = Field(default=0, description="Nodes with at least one error.")


class ClusterSummary(StatusModel):
    """Prepared strings for the columns of kubectl get."""

    nodes: Annotated[str, Field(max_length=32)] = Field(default="", description="Ready and all nodes, e.g. 3/4.")
    devices: Annotated[str, Field(max_length=128)] = Field(
        default="", description="Devices by vendor, e.g. 8 nvidia, 4 amd."
    )


class FdlClusterStatus(StatusModel):
    """Observed state of the cluster."""

    observed_generation: Count = Field(default=0, description="metadata.generation that this status was decided from.")
    conditions: tuple[Condition, ...] = Field(
        default=(),
        max_length=32,
        json_schema_extra=list_map("type"),
        description="NodesReady, NCCLConsistent, VariantCoverage, SharedVolumeConsistent, FabricKnown, ClocksAgree, "
        "NetworkPolicyEnforced.",
    )
    summary: ClusterSummary = Field(default_factory=ClusterSummary, description="Prepared strings for columns.")
    counts: NodeCounts = Field(default_factory=NodeCounts, description="Nodes by kind.")
    quarantine: tuple[QuarantineStatus, ...] = Field(
        default=(),
        max_length=MAX_NODES,
        json_schema_extra=list_map("name"),
        description="Nodes that get no new member, with reason and expiry.",
    )
    nodes: tuple[NodeStatus, ...] = Field(
        default=(),
        max_length=MAX_NODES,
        json_schema_extra={"x-kubernetes-list-type": "atomic"},
        description="Nodes with a report. In a very large cluster problems are shortened and ready nodes left out; the "
        "annotation of each node has its whole report.",
    )


class FdlCluster(Model):
    """What is true for all runs of a cluster: trainer variants, how nodes are judged, and the nodes found."""

    cel: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.metadata.name == 'default'",
            "metadata.name: a cluster has one FdlCluster, named 'default'; edit that one",
        ),
    )

    api_version: Literal["fdl.dev/v1alpha1"] = "fdl.dev/v1alpha1"
    kind: Literal["FdlCluster"] = "FdlCluster"
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)
    spec: FdlClusterSpec = Field(default_factory=FdlClusterSpec, description="What is true for all runs.")
    status: FdlClusterStatus = Field(
        default_factory=FdlClusterStatus, description="Observed state, written by the operator."
    )


__all__ = [
    "MAX_ARCHS",
    "MAX_NODES",
    "MAX_VARIANTS",
    "MAX_VERSION",
    "Arch",
    "AutomaticQuarantine",
    "ClusterSummary",
    "DashboardSpec",
    "FabricSpec",
    "FdlCluster",
    "FdlClusterSpec",
    "FdlClusterStatus",
    "NcclBridge",
    "NodeCounts",
    "NodeProblem",
    "NodeStatus",
    "ProberSpec",
    "QuarantineSpec",
    "QuarantineStatus",
    "QuarantinedNode",
    "RunDefaults",
    "SocketInterface",
    "Variant",
]
