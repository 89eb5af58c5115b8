"""FdlCluster status: the table of nodes, from their labels and reports."""

from collections.abc import Iterable
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
)
from fdl_api.nodes import NodeRecord
from fdl_api.reasons import ClusterCondition, Progress
from fdl_api.run import Condition
from fdl_operator import clock

COVERING = ("covers", "verified", "simulated")
MAX_NODES = 5000
REPORT_TIME_STEP = 300.0
"""The table shows a report's time in steps of this many seconds, so that a quiet cluster causes no writes."""


@dataclass(frozen=True, slots=True)
class ClusterRecord:
    """FdlCluster/default as last seen."""

    name: str
    uid: str
    generation: int
    resource_version: str
    spec: FdlClusterSpec
    status: FdlClusterStatus


def describe(cluster: ClusterRecord, nodes: Iterable[NodeRecord], now: float) -> FdlClusterStatus:
    """The status as it should be.

    Args:
        cluster: the object, whose older conditions keep their transition times.
        nodes: all nodes.
        now: seconds since 1970.
    """
    age = float(cluster.spec.prober.report_max_age_seconds)
    probed = sorted((node for node in nodes if labels.READY in node.labels or node.report), key=lambda node: node.name)
    found = [reports.parse(node.report) for node in probed[:MAX_NODES]]
    rows = tuple(_row(node, report, age, now) for node, report in zip(probed, found, strict=False))
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
        conditions=tuple(_conditions(cluster, rows, _volume_problem(found), now)),
        summary=ClusterSummary(nodes=f"{counts.ready}/{counts.total}", devices=_devices(probed)),
        counts=counts,
        nodes=rows,
    )


def _volume_problem(found: Iterable[reports.Report | None]) -> str:
    """What is wrong with the shared volume, by the sentinel file that each node's prober reads; empty if nothing."""
    seen = [(report.node, report.sentinel) for report in found if report is not None and report.sentinel is not None]
    unreadable = sorted(node for node, sentinel in seen if not sentinel.sha256)
    contents: dict[str, list[str]] = {}
    for node, sentinel in seen:
        if sentinel.sha256:
            contents.setdefault(sentinel.sha256[:12], []).append(node)
    problems = [_names("the shared volume's sentinel cannot be read on", unreadable)] if unreadable else []
    if len(contents) > 1:
        sides = "; ".join(f"{digest} on {', '.join(sorted(nodes)[:4])}" for digest, nodes in sorted(contents.items()))
        problems.append(f"nodes see different contents of the shared volume's sentinel: {sides}")
    return "; ".join(problems)


def _row(node: NodeRecord, report: reports.Report | None, max_age: float, now: float) -> NodeStatus:
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
    old = report is None or now - report.time.timestamp() > max_age
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
    at = node.report_at
    return NodeStatus.model_validate(
        {
            "name": node.name,
            "vendor": _vendor(node),
            "devices": sum(_number(node.labels.get(labels.count(vendor))) for vendor in labels.GPU_VENDORS),
            "archs": sorted(_suffixes(node, labels.ARCH_PREFIX)),
            "nccl": {key: node.labels[labels.nccl(key)] for key in _suffixes(node, labels.NCCL_PREFIX)},
            "variants": sorted(
                name for name in _suffixes(node, labels.VARIANT_PREFIX) if node.labels[labels.variant(name)] in COVERING
            ),
            "simulated": node.labels.get(labels.SIMULATED) == "true",
            "ready": node.labels.get(labels.READY) == "true" and node.ready and not node.unschedulable and not old,
            "reportTime": clock.render(at - at % REPORT_TIME_STEP) if at is not None else None,
            "problems": problems[:32],
        }
    )


def _conditions(
    cluster: ClusterRecord, rows: tuple[NodeStatus, ...], volume_problem: str, now: float
) -> list[Condition]:
    unready = [row.name for row in rows if not row.ready]
    versions: dict[str, set[str]] = {}
    for row in rows:
        for variant, version in row.nccl.items():
            versions.setdefault(variant, set()).add(version)
    skewed = [f"{variant}: {', '.join(sorted(found))}" for variant, found in sorted(versions.items()) if len(found) > 1]
    uncovered = [row.name for row in rows if row.devices and not row.variants]
    return [
        _condition(
            cluster,
            now,
            ClusterCondition.NODES_READY,
            bool(rows) and not unready,
            "no node has a report" if not rows else _names("not ready", unready),
        ),
        _condition(cluster, now, ClusterCondition.NCCL_CONSISTENT, not skewed, "; ".join(skewed)),
        _condition(
            cluster,
            now,
            ClusterCondition.VARIANT_COVERAGE,
            not uncovered,
            _names("no variant covers the devices of", uncovered),
        ),
        _condition(
            cluster,
            now,
            ClusterCondition.SHARED_VOLUME_CONSISTENT,
            not volume_problem,
            volume_problem,
        ),
    ]


def _condition(cluster: ClusterRecord, now: float, kind: ClusterCondition, good: bool, message: str) -> Condition:
    status = "True" if good else "False"
    old = next((entry for entry in cluster.status.conditions if entry.type == kind), None)
    at = old.last_transition_time if old is not None and old.status == status else clock.render(now)
    return Condition.model_validate(
        {
            "type": str(kind),
            "status": status,
            "observedGeneration": cluster.generation,
            "lastTransitionTime": at,
            "reason": str(Progress.AS_EXPECTED) if good else f"Not{kind}",
            "message": "" if good else message[:4000],
        }
    )


def _names(what: str, nodes: list[str]) -> str:
    if not nodes:
        return ""
    more = f" and {len(nodes) - 10} more" if len(nodes) > 10 else ""
    return f"{what}: {', '.join(nodes[:10])}{more}"


def _vendor(node: NodeRecord) -> str:
    text = node.labels.get(labels.GPU_VENDOR, "none")
    return text if text in ("nvidia", "amd", "mixed") else "none"


def _suffixes(node: NodeRecord, prefix: str) -> list[str]:
    return [key.removeprefix(prefix) for key in node.labels if key.startswith(prefix)]


def _number(text: str | None) -> int:
    return int(text) if text and text.isdigit() else 0


def _devices(nodes: list[NodeRecord]) -> str:
    sums = {
        vendor: sum(_number(node.labels.get(labels.count(vendor))) for node in nodes) for vendor in labels.GPU_VENDORS
    }
    return ", ".join(f"{number} {vendor}" for vendor, number in sums.items() if number) or "none"
