"""How fast the ranks of a run are, by node, and how fast they would be on nodes of the same kind. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fdl_api import report as reports
from fdl_api.nodes import NodeRecord
from fdl_api.run import FdlRunStatus, Vendor


@dataclass(frozen=True, slots=True)
class Speed:
    """A rank's speed on a node.

    Attributes:
        ms: milliseconds a batch.
        quota: batches of a window.
        measured: False when it was concluded from other nodes of the same kind.
    """

    ms: float
    quota: int
    measured: bool


def kind(record: NodeRecord, vendor: Vendor) -> str:
    """What a rank computes on there, by the node's report: products and architectures, or the processor's model."""
    report = reports.parse(record.report)
    if report is None:
        return ""
    if vendor is Vendor.CPU:
        return report.host.cpu_model
    devices = sorted({f"{device.name} {device.arch}" for device in report.devices if device.vendor == str(vendor)})
    return ", ".join(devices)


def speeds(
    status: FdlRunStatus, cohort: str, vendor: Vendor, nodes: Mapping[str, NodeRecord], wanted: Iterable[str]
) -> dict[str, Speed]:
    """Speed on each of the wanted nodes, as far as it is known.

    A node without ranks of the cohort gets the mean of the nodes of its kind, and the quota that ElChe's first
    formula gives: anchor times the slowest rank's milliseconds by its own.
    """
    if status.training is None:
        return {}
    ranks = [rank for rank in status.training.ranks if rank.ms_per_batch > 0]
    places = {member.name: member.node for member in status.members if member.cohort == cohort and member.node}
    found: dict[str, Speed] = {}
    by_kind: dict[str, list[float]] = {}
    for node in dict.fromkeys(places.values()):
        here = [rank for rank in ranks if places.get(rank.member) == node]
        if not here:
            continue
        ms = sum(rank.ms_per_batch for rank in here) / len(here)
        found[node] = Speed(ms, round(sum(rank.quota for rank in here) / len(here)), measured=True)
        if node in nodes and (name := kind(nodes[node], vendor)):
            by_kind.setdefault(name, []).append(ms)
    slowest = max((rank.ms_per_batch for rank in ranks), default=0.0)
    for node in wanted:
        # A node's kind takes its whole report, so it is asked last.
        if by_kind and node not in found and (known := by_kind.get(kind(nodes[node], vendor))):
            ms = sum(known) / len(known)
            found[node] = Speed(ms, max(1, round(status.training.anchor * slowest / ms)), measured=False)
    return found
