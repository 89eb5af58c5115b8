"""FdlCluster status: the table of nodes, from their labels and reports."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from fdl_api import labels
from fdl_api import report as reports
from fdl_api.cluster import (
    ClusterSummary,
    FdlClusterSpec,
    FdlClusterStatus,
    NodeCounts,
    NodeProblem,
    NodeStatus,
    QuarantineStatus,
)
from fdl_api.network import sentences
from fdl_api.nodes import NodeRecord
from fdl_operator import clock
from fdl_operator.plan import conditions, quarantine, table
from fdl_operator.plan.findings import Seen, devices

COVERING = ("covers", "verified", "simulated")
MAX_NODES = 5000


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """FdlCluster/default as last seen."""

    name: str
    uid: str
    generation: int
    resource_version: str
    spec: FdlClusterSpec
    status: FdlClusterStatus

    def is_newer_than(self, other: "ClusterRecord") -> bool:
        """Whether this is another object, or a later version of the same one."""
        if self.uid != other.uid or not (self.resource_version.isdigit() and other.resource_version.isdigit()):
            return True
        return int(self.resource_version) > int(other.resource_version)


def describe(cluster: ClusterRecord, nodes: Collection[NodeRecord], now: float) -> FdlClusterStatus:
    """The status as it should be.

    Args:
        cluster: the object, whose older conditions keep their transition times. Nothing in the result moves while
            nodes and reports say the same: a row's reportTime is that of the first report that said so.
        nodes: all nodes.
        now: seconds since 1970.
    """
    age = float(cluster.spec.prober.report_max_age_seconds)
    probed = sorted((node for node in nodes if labels.READY in node.labels or node.report), key=lambda node: node.name)
    found = [reports.parse(node.report) for node in probed[:MAX_NODES]]
    known = {row.name: row for row in cluster.status.nodes}
    confined = _confined(cluster, nodes, dict(zip((node.name for node in probed), found, strict=False)), now)
    reasons = sentences(confined)
    rows = tuple(
        _row(node, report, age, now, reasons.get(node.name)) for node, report in zip(probed, found, strict=False)
    )
    seen = [
        Seen(node, row, report if is_fresh(report, age, now) else None)
        for node, row, report in zip(probed, rows, found, strict=False)
    ]
    counts = NodeCounts(
        total=len(rows),
        ready=sum(row.ready for row in rows),
        nvidia=sum(row.vendor in ("nvidia", "mixed") for row in rows),
        amd=sum(row.vendor in ("amd", "mixed") for row in rows),
        cpu=sum(row.vendor == "none" for row in rows),
        problems=sum(any(problem.severity == "error" for problem in row.problems) for row in rows),
    )
    return FdlClusterStatus(
        observed_generation=cluster.generation,
        conditions=conditions.judge(cluster.spec, seen, cluster.status.conditions, cluster.generation, now),
        summary=ClusterSummary(nodes=f"{counts.ready}/{counts.total}", devices=_devices(probed)),
        counts=counts,
        quarantine=confined,
        nodes=tuple(_kept(known.get(row.name), row) for row in table.fitting(rows)),
    )


def _kept(old: NodeStatus | None, new: NodeStatus) -> NodeStatus:
    """The old row when the new one says the same: reports are renewed for ever, and news of no news is a write each."""
    if old is None or old.model_copy(update={"report_time": new.report_time}) != new:
        return new
    return old


def is_fresh(report: reports.Report | None, max_age: float, now: float) -> bool:
    """Whether there is a report that is at most ``max_age`` seconds old."""
    return report is not None and now - report.time.timestamp() <= max_age


def _confined(
    cluster: ClusterRecord, nodes: Iterable[NodeRecord], found: Mapping[str, reports.Report | None], now: float
) -> tuple[QuarantineStatus, ...]:
    with_reports = [(node, found.get(node.name)) for node in nodes]
    return quarantine.quarantine(cluster.spec, with_reports, cluster.status.quarantine, now)


def _row(
    node: NodeRecord, report: reports.Report | None, max_age: float, now: float, quarantined: str | None
) -> NodeStatus:
    problems = [
        NodeProblem.model_validate(
            {
                "check": check.name[:64],
                "severity": "error" if check.severity == "fail" and check.blocking else "warning",
                "message": check.message[:1000],
                "remedy": check.remedy[:1000],
            }
        )
        for check in (report.checks if report is not None else ())
        if check.severity != "pass"
    ]
    old = not is_fresh(report, max_age, now)
    if old:
        problems.insert(
            0,
            NodeProblem(
                check="report-age",
                severity="error",
                message=f"the newest report is missing or older than {int(max_age)} s",
                remedy="look at the prober pod of this node",
            ),
        )
    if quarantined is not None:
        problems.insert(
            0,
            NodeProblem(
                check="quarantine",
                severity="error",
                message=f"in quarantine: {quarantined}",
                remedy="see status.quarantine of FdlCluster/default; members that run here go on",
            ),
        )
    at = node.report_at
    return NodeStatus.model_validate(
        {
            "name": node.name,
            "vendor": _vendor(node),
            "devices": sum(devices(node, vendor) for vendor in labels.GPU_VENDORS),
            "archs": sorted(_suffixes(node, labels.ARCH_PREFIX)),
            "nccl": {key: node.labels[labels.nccl(key)] for key in _suffixes(node, labels.NCCL_PREFIX)},
            "variants": sorted(
                name for name in _suffixes(node, labels.VARIANT_PREFIX) if node.labels[labels.variant(name)] in COVERING
            ),
            "simulated": node.labels.get(labels.SIMULATED) == "true",
            "ready": node.labels.get(labels.READY) == "true"
            and node.ready
            and not (node.unschedulable or old or quarantined),
            "reportTime": clock.render(at) if at is not None else None,
            "problems": problems[:32],
        }
    )


def _vendor(node: NodeRecord) -> str:
    text = node.labels.get(labels.GPU_VENDOR, "none")
    return text if text in ("nvidia", "amd", "mixed") else "none"


def _suffixes(node: NodeRecord, prefix: str) -> list[str]:
    return [key.removeprefix(prefix) for key in node.labels if key.startswith(prefix)]


def _devices(nodes: list[NodeRecord]) -> str:
    sums = {vendor: sum(devices(node, vendor) for node in nodes) for vendor in labels.GPU_VENDORS}
    return ", ".join(f"{number} {vendor}" for vendor, number in sums.items() if number) or "none"
