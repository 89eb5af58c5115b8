"""FdlCluster status: the table of nodes, from their labels and reports."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from fdl_api import coverage, labels
from fdl_api import report as reports
from fdl_api.cluster import (
    MAX_ARCHS,
    MAX_NODES,
    MAX_VARIANTS,
    MAX_VERSION,
    ClusterSummary,
    FdlClusterSpec,
    FdlClusterStatus,
    NodeCounts,
    NodeProblem,
    NodeStatus,
    QuarantineStatus,
)
from fdl_api.network import confined
from fdl_api.nodes import NodeRecord, age_check
from fdl_operator import clock
from fdl_operator.plan import conditions, quarantine, table
from fdl_operator.plan.findings import Seen, devices

COVERING = ("covers", "verified", "simulated")


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """FdlCluster/default as last seen."""

    name: str
    uid: str
    generation: int
    resource_version: str
    spec: FdlClusterSpec
    status: FdlClusterStatus
    unknown: tuple[str, ...] = ()
    """What of the spec this release does not know, and goes on without."""
    mark: str = ""
    """What reports say that were made by this spec; empty when it is not known."""

    def is_newer_than(self, other: "ClusterRecord") -> bool:
        """Whether this is another object, or a later version of the same one."""
        if self.uid != other.uid or not (self.resource_version.isdecimal() and other.resource_version.isdecimal()):
            return True
        return int(self.resource_version) > int(other.resource_version)


def describe(
    cluster: ClusterRecord, nodes: Collection[NodeRecord], now: float, policies: Mapping[str, bool] | None = None
) -> FdlClusterStatus:
    """The status as it should be.

    Args:
        cluster: the object, whose older conditions keep their transition times. Nothing in the result moves while
            nodes and reports say the same: a row's reportTime is that of the first report that said so.
        nodes: all nodes.
        now: seconds since 1970.
        policies: nodes on which the NetworkPolicy of a run was tried, each with whether it was in force.
    """
    age = float(cluster.spec.prober.report_max_age_seconds)
    probed = sorted((node for node in nodes if labels.READY in node.labels or node.report), key=lambda node: node.name)
    found = [reports.parse(node.report) for node in probed[:MAX_NODES]]
    known = {row.name: row for row in cluster.status.nodes}
    out = _confined(cluster, nodes, dict(zip((node.name for node in probed), found, strict=False)), now)
    quarantined = confined(out)
    rows: list[NodeStatus] = []
    seen: list[Seen] = []
    for node, report in zip(probed, found, strict=False):
        old = age_check(report.time.timestamp() if report is not None else None, now, age)
        rows.append(_row(node, report, [check for check in (quarantined.get(node.name), old) if check is not None]))
        seen.append(Seen(node, rows[-1], report if old is None else None))
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
        conditions=conditions.judge(
            cluster.spec,
            seen,
            cluster.status.conditions,
            cluster.generation,
            now,
            policies=policies or {},
            mark=cluster.mark,
        ),
        summary=ClusterSummary(nodes=f"{counts.ready}/{counts.total}", devices=_devices(probed)),
        counts=counts,
        quarantine=out,
        nodes=tuple(_kept(known.get(row.name), row) for row in table.fitting(rows)),
    )


def _kept(old: NodeStatus | None, new: NodeStatus) -> NodeStatus:
    """The old row when the new one says the same: reports are renewed for ever, and news of no news is a write each."""
    if old is None or old.model_copy(update={"report_time": new.report_time}) != new:
        return new
    return old


def _confined(
    cluster: ClusterRecord, nodes: Iterable[NodeRecord], found: Mapping[str, reports.Report | None], now: float
) -> tuple[QuarantineStatus, ...]:
    with_reports = [(node, found.get(node.name)) for node in nodes]
    return quarantine.quarantine(cluster.spec, with_reports, cluster.status.quarantine, now)


def _row(node: NodeRecord, report: reports.Report | None, own: list[reports.Check]) -> NodeStatus:
    """The row of a node; ``own`` is what the operator itself has found, and keeps new members off."""
    checks = [*own, *(report.checks if report is not None else ())]
    problems = [_problem(check) for check in checks if check.severity != "pass"]
    at = node.report_at
    return NodeStatus.model_validate(
        {
            "name": node.name,
            "vendor": _vendor(node),
            "devices": sum(devices(node, vendor) for vendor in labels.GPU_VENDORS),
            "archs": _archs(node),
            "nccl": _nccl(node),
            "variants": _variants(node),
            "simulated": node.labels.get(labels.SIMULATED) == "true",
            "ready": node.labels.get(labels.READY) == "true" and node.ready and not (node.unschedulable or own),
            "reportTime": clock.render(at) if at is not None else None,
            "problems": problems[:32],
        }
    )


def _problem(check: reports.Check) -> NodeProblem:
    return NodeProblem.model_validate(
        {
            "check": check.name[:64],
            "reason": check.reason[:64],
            "severity": "error" if check.severity == "fail" and check.blocking else "warning",
            "class": check.persistence,
            "message": _told(check)[:1000],
            "remedy": check.remedy[:1000],
        }
    )


def _told(check: reports.Check) -> str:
    """What was seen, and of which volume, device or interface: a node may have several."""
    return check.message if check.subject in check.message else f"{check.subject}: {check.message}"


def _vendor(node: NodeRecord) -> str:
    text = node.labels.get(labels.GPU_VENDOR, "none")
    return text if text in ("nvidia", "amd", "mixed") else "none"


def _archs(node: NodeRecord) -> list[str]:
    """Architectures by the node's labels. Anybody may set a label: what is no architecture must not spoil the table."""
    return [token for token in _suffixes(node, labels.ARCH_PREFIX) if coverage.parse(token) is not None][:MAX_ARCHS]


def _nccl(node: NodeRecord) -> dict[str, str]:
    told = {name: node.labels[labels.nccl(name)] for name in _suffixes(node, labels.NCCL_PREFIX)}
    return dict([(name, version) for name, version in told.items() if len(version) <= MAX_VERSION][:MAX_VARIANTS])


def _variants(node: NodeRecord) -> list[str]:
    names = _suffixes(node, labels.VARIANT_PREFIX)
    return [name for name in names if node.labels[labels.variant(name)] in COVERING][:MAX_VARIANTS]


def _suffixes(node: NodeRecord, prefix: str) -> list[str]:
    return sorted(key.removeprefix(prefix) for key in node.labels if key.startswith(prefix))


def _devices(nodes: list[NodeRecord]) -> str:
    sums = {vendor: sum(devices(node, vendor) for node in nodes) for vendor in labels.GPU_VENDORS}
    return ", ".join(f"{number} {vendor}" for vendor, number in sums.items() if number) or "none"
