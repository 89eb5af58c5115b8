"""What the conditions of FdlCluster are made of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fdl_api import nodes
from fdl_api.cluster import NodeStatus
from fdl_api.nodes import NodeRecord
from fdl_api.reasons import ClusterReason
from fdl_api.report import Report

MAX_NAMED = 10
"""Nodes that a message names; the table of nodes has all of them."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A node as the conditions look at it: its record, its row in the table, and its report while that is fresh."""

    node: NodeRecord
    row: NodeStatus
    report: Report | None


@dataclass(frozen=True, slots=True)
class Finding:
    """What a condition says; ``holds`` is ``None`` where it cannot be known, ``reason`` is a :class:`ClusterReason`, or
    what a newer release has written.
    """

    holds: bool | None
    reason: ClusterReason | str
    message: str = ""


def devices(node: NodeRecord, vendor: str) -> int:
    """Devices of a vendor that a node has; 0 where its labels tell no number."""
    return nodes.devices(node.labels, vendor) or 0


def listed(names: Sequence[str]) -> str:
    """Names for a sentence, cut where there are many."""
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return f"{', '.join(names[:MAX_NAMED])}{more}"


def compared(sides: Mapping[str, Sequence[str]]) -> str:
    """What differs between nodes, for a sentence: each value with the names of the nodes that have it."""
    return "; ".join(f"{value} on {listed(names)}" for value, names in sorted(sides.items()))
