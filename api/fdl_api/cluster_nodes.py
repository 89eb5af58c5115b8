"""What an FdlCluster's spec says about nodes. Apart from the rest, so that the prober, which is on every node, loads
no more than this.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

from pydantic import ConfigDict, Field

from fdl_api.model import (
    DNS_LABEL,
    Image,
    LabelKey,
    LabelValue,
    Model,
    ObjectName,
    Rule,
    Vendor,
    image_rule,
    list_map,
)

NVIDIA_ARCH: Final = "^(sm|compute)_[0-9]{2,3}[af]?$"
AMD_ARCH: Final = "^gfx[0-9]{1,3}[0-9a-f]{2}$"
"""What :func:`fdl_api.coverage.parse` takes for an architecture."""

Arch = Annotated[str, Field(min_length=1, max_length=32, pattern=r"^[a-z0-9_]+$")]
"""Device architecture as torch names it, e.g. ``sm_90`` or ``gfx942``."""


class NcclBridge(Model):
    """A library that is preloaded on nodes where the variant's own has another version than the cohort runs."""

    image: Image = Field(
        json_schema_extra=image_rule("spec.variants[].ncclBridge.image"),
        description="Image that holds the library and a program cp, which an init container runs.",
    )
    version: Annotated[str, Field(max_length=32, pattern=r"^[0-9]+\.[0-9]+(\.[0-9]+)*$")] = Field(
        description="Version of the library in it, e.g. 2.27.3. Members that load another major.minor are refused."
    )
    path: Annotated[str, Field(max_length=256, pattern=r"^(/[A-Za-z0-9._+-]+)+$")] = Field(
        default="/opt/nccl/libnccl.so.2", description="The library's file in the image; librccl.so.1 for RCCL."
    )


class Variant(Model):
    """A trainer image and what its torch covers."""

    cel: ClassVar[tuple[Rule, ...]] = (
        Rule(
            "self.name != 'auto'",
            "spec.variants[].name: 'auto' stands for fdl's own choice; give the variant another name",
            field_path=".name",
            forbidden=True,
        ),
        Rule(
            "(has(self.archs) && size(self.archs) > 0) == (self.vendor != 'cpu')",
            "spec.variants[].archs: list what the variant's torch has kernels for, e.g. sm_90 or gfx942 "
            "(torch.cuda.get_arch_list()); leave it out for vendor cpu",
            field_path=".archs",
        ),
        Rule(
            f"!has(self.archs) || self.archs.all(a, a.matches(self.vendor == 'amd' ? '{AMD_ARCH}' : '{NVIDIA_ARCH}'))",
            "spec.variants[].archs: names are as torch.cuda.get_arch_list() has them, such as sm_90 and compute_90 for "
            "vendor nvidia and gfx942 for vendor amd; correct archs or vendor",
            field_path=".archs",
        ),
        Rule(
            "self.vendor != 'cpu' || !has(self.ncclBridge)",
            "spec.variants[].ncclBridge: a variant of vendor cpu loads no NCCL; leave ncclBridge out",
            field_path=".ncclBridge",
            forbidden=True,
        ),
    )

    name: Annotated[str, Field(min_length=1, max_length=30, pattern=DNS_LABEL)] = Field(
        description="Name of the variant, as in FdlRun spec.cohorts[].variant and in node labels."
    )
    vendor: Vendor = Field(description="Vendor of the devices that it computes on; cpu for none.")
    image: Image = Field(
        json_schema_extra=image_rule("spec.variants[].image"), description="Image with fdl_trainer and this torch."
    )
    archs: tuple[Arch, ...] = Field(
        default=(), max_length=64, description="Device architectures that its torch has kernels for; none for cpu."
    )
    nccl_version: Annotated[str, Field(max_length=32, pattern=r"^[0-9]+(\.[0-9]+)*$")] | None = Field(
        default=None, description="NCCL or RCCL version in the image; what a deep check finds when unset."
    )
    torch_version: Annotated[str, Field(max_length=64)] | None = Field(
        default=None, description="torch version in the image; what a deep check finds when unset."
    )
    nccl_bridge: NcclBridge | None = Field(
        default=None,
        description="Lets its nodes take part in NCCL modes with a version that its own image does not have.",
    )


class ProberSpec(Model):
    """How node reports are used."""

    report_max_age_seconds: int = Field(
        default=900,
        ge=30,
        le=86400,
        description="Seconds after which a node's report is too old for new members to be placed by it.",
    )
    deep_check: bool = Field(
        default=True,
        description="True lets the operator start short-lived pods that run one real kernel per device of a node.",
    )


class SocketInterface(Model):
    """The network interface for collectives on a group of nodes."""

    name: ObjectName = Field(description="Name of the node group.")
    node_selector: dict[LabelKey, LabelValue] = Field(
        default_factory=dict, max_length=32, description="Labels of the group's nodes; all nodes when empty."
    )
    socket_interface: Annotated[str, Field(min_length=1, max_length=15, pattern=r"^[A-Za-z0-9._@-]+$")] = Field(
        description="Name of the interface as members see it, e.g. eth0."
    )


class FabricSpec(Model):
    """The network between nodes for NCCL modes."""

    groups: tuple[SocketInterface, ...] = Field(
        default=(),
        max_length=64,
        json_schema_extra=list_map("name"),
        description="Interface of each node group; a node belongs to the first group whose selector fits it.",
    )


class ProbedSpec(Model):
    """The part of the spec that a prober reads; the rest of it, known or not, is dropped."""

    model_config = ConfigDict(extra="ignore")

    variants: tuple[Variant, ...] = ()
    prober: ProberSpec = Field(default_factory=ProberSpec)
    fabric: FabricSpec = Field(default_factory=FabricSpec)


def mark(spec: Mapping[str, Any]) -> str:
    """Short hash of what probers read of a spec, by which a report tells whether it was made after a change.

    Args:
        spec: as the API server has it, so that all releases find the same; also one that reads a field more, as long
            as it is not set.
    """
    read = {key: spec[key] for key in ProbedSpec.model_fields if key in spec}
    return hashlib.sha256(json.dumps(read, sort_keys=True).encode()).hexdigest()[:12]
