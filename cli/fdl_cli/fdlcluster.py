"""FdlCluster/default as this release of fdl reads it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fdl_api import reading
from fdl_api.cluster import FdlClusterSpec, FdlClusterStatus
from fdl_api.cluster_nodes import mark


@dataclass(frozen=True, slots=True)
class Found:
    """FdlCluster/default.

    Attributes:
        spec: its spec.
        status: its status.
        mark: what probers say in their reports when they have judged by this spec.
        left_out: what of it this release does not know, as paths of fields.
    """

    spec: FdlClusterSpec = field(default_factory=FdlClusterSpec)
    status: FdlClusterStatus = field(default_factory=FdlClusterStatus)
    mark: str = ""
    left_out: tuple[str, ...] = ()


def read(item: Mapping[str, Any] | None) -> Found | None:
    """What is known of the object; ``None`` where there is none. Nodes can be judged without what is not understood."""
    if item is None:
        return None
    asked, seen = item.get("spec") or {}, item.get("status") or {}
    spec = reading.lenient(FdlClusterSpec, asked)
    status = reading.lenient(FdlClusterStatus, seen)
    left_out = [f"spec.{path}" for path in spec.left_out] + [f"status.{path}" for path in status.left_out]
    return Found(spec.value, status.value, mark(asked), tuple(left_out))
