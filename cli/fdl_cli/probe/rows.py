"""What there is to say about each node: from the API server's objects to rows and problems. Pure."""

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from fdl_api import labels
from fdl_api import report as reports
from fdl_api.checks.conditions import finding as known
from fdl_api.checks.conditions import seen_in
from fdl_api.checks.machine import REPORT_AGE
from fdl_api.cluster import FdlClusterStatus
from fdl_api.network import cluster_of, confined
from fdl_api.nodes import NodeRecord, age_check, devices, node_record
from fdl_api.placement import Cluster, withheld_problem
from fdl_api.reasons import ClusterCondition
from fdl_api.report import Check, Report, Severity
from fdl_cli.fdlcluster import Found

State = Literal["ready", "not ready", "stale", "no report", "not probed"]
"""not probed: a control plane node, where no prober is expected to report."""

CONTROL_PLANE: Final = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
WHOLE: Final = ""
"""Name of the cluster as a whole, among names of nodes."""
MAX_FIELDS: Final = 4
"""Fields that a sentence names."""
CONDITIONS: Final[dict[str, Severity]] = {
    ClusterCondition.NCCL_CONSISTENT: "fail",
    ClusterCondition.SHARED_VOLUME_CONSISTENT: "fail",
    ClusterCondition.FABRIC_KNOWN: "warn",
    ClusterCondition.NETWORK_POLICY_ENFORCED: "warn",
    ClusterCondition.CLOCKS_AGREE: "warn",
}
"""Conditions of FdlCluster that say more than the nodes do, and how bad it is where they are False."""


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that a person should know.

    Attributes:
        node: the node; :data:`WHOLE` for the cluster.
        check: stable name of what found it.
        severity: warn, unknown or fail.
        message: what was seen.
        remedy: what to do about it.
        subject: the device, variant or interface that it is about.
        reason: stable name of what was found.
        blocking: whether it keeps every member off the node.
    """

    node: str
    check: str
    severity: Severity
    message: str
    remedy: str = ""
    subject: str = ""
    reason: str = ""
    blocking: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A node.

    Attributes:
        name: its name.
        state: whether new members may be placed there, or why that is not known.
        devices: working devices by vendor.
        plugged: vendor of the GPUs that are plugged in, working or not.
        archs: their architectures.
        nccl: NCCL or RCCL major.minor by variant.
        variants: what is known of each variant there.
        simulated: whether its devices are simulated.
        age: seconds since the report was made; ``None`` when there is none.
        report: the report.
        problems: what is wrong with it, worst first.
    """

    name: str
    state: State
    devices: Mapping[str, int]
    plugged: str
    archs: tuple[str, ...]
    nccl: Mapping[str, str]
    variants: Mapping[str, str]
    simulated: bool
    age: float | None
    report: Report | None
    problems: tuple[Problem, ...]


@dataclass(frozen=True, slots=True)
class Survey:
    """A cluster at one moment.

    Attributes:
        rows: its nodes, by name as people count (gpu-2 before gpu-10).
        problems: all problems, those of the cluster first.
    """

    rows: tuple[Row, ...]
    problems: tuple[Problem, ...]

    @property
    def good(self) -> bool:
        """Whether nothing is worse than a warning and every node that should be is ready."""
        ready = all(row.state in ("ready", "not probed") for row in self.rows)
        return ready and all(problem.severity == "warn" for problem in self.problems)


@dataclass(frozen=True, slots=True)
class ProberPod:
    """A prober's pod, for telling why a node has no report."""

    namespace: str
    name: str
    state: str

    @property
    def sentence(self) -> str:
        """Where to look."""
        log = f"kubectl logs -n {self.namespace} {self.name}"
        return f"its prober pod is {self.state}: see {log}"


def records(nodes: Iterable[Mapping[str, Any]]) -> dict[str, NodeRecord]:
    """Node objects as placement sees them, by name. Each node's report is parsed, so do it once."""
    return {str(node["metadata"]["name"]): node_record(dict(node)) for node in nodes}


def survey(
    nodes: Mapping[str, NodeRecord],
    cluster: Found | None,
    pods: Mapping[str, ProberPod] | None,
    now: float,
    only: str = "",
) -> Survey:
    """Judge a cluster.

    Args:
        nodes: the nodes, from :func:`records`.
        cluster: FdlCluster/default; ``None`` when it does not exist.
        pods: prober pods by node; ``None`` when they could not be listed.
        now: seconds since 1970.
        only: name of the one node to judge; all when empty. The cluster's own problems are told in any case.
    """
    found = cluster or Found()
    context = cluster_of(found.spec, found.status.quarantine, nodes, now)
    chosen = sorted((name for name in nodes if only in ("", name)), key=natural)
    out = confined(found.status.quarantine)
    rows = tuple(_row(nodes[name], context, out, pods, found.mark) for name in chosen)
    whole = [*_missing(cluster, nodes.values(), pods), *_not_known(found), *_conditions(found.status)]
    return Survey(rows, (*whole, *(problem for row in rows for problem in row.problems)))


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key by which gpu-2 comes before gpu-10."""
    parts = re.split(r"([0-9]+)", name)
    return tuple((1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts)


def prober_pods(pods: Iterable[Mapping[str, Any]]) -> dict[str, ProberPod]:
    """Prober pods by node; of several on a node the one that does not run, since that is what explains."""
    found: dict[str, ProberPod] = {}
    for pod in pods:
        node = (pod.get("spec") or {}).get("nodeName") or ""
        entry = ProberPod(pod["metadata"]["namespace"], pod["metadata"]["name"], _pod_state(pod.get("status") or {}))
        if node and (node not in found or found[node].state == "Running"):
            found[node] = entry
    return found


def _pod_state(status: Mapping[str, Any]) -> str:
    for entry in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        waiting = (entry.get("state") or {}).get("waiting") or {}
        if waiting.get("reason"):
            return str(waiting["reason"])
    return str(status.get("phase") or "Unknown")


def _row(
    record: NodeRecord, context: Cluster, out: Mapping[str, Check], pods: Mapping[str, ProberPod] | None, mark: str
) -> Row:
    tags = record.labels
    report = reports.parse(record.report)
    own = list(_own_problems(record, context, out, pods))
    if report is not None and not any(problem.check == REPORT_AGE.name for problem in own):
        own += _before_the_change(record.name, report, mark)
    problems = [*own, *_found(record.name, report)]
    problems.sort(key=lambda problem: -reports.SEVERITIES.index(problem.severity))
    return Row(
        name=record.name,
        state=_state(record, context, problems),
        devices={vendor: count for vendor in labels.GPU_VENDORS if (count := devices(tags, vendor))},
        plugged=tags.get(labels.GPU_VENDOR, ""),
        archs=tuple(sorted(_below(tags, labels.ARCH_PREFIX))),
        nccl=_below(tags, labels.NCCL_PREFIX),
        variants=_below(tags, labels.VARIANT_PREFIX),
        simulated=tags.get(labels.SIMULATED) == "true",
        age=max(0.0, context.now - record.report_at) if record.report_at is not None else None,
        report=report,
        problems=tuple(problems),
    )


def _below(tags: Mapping[str, str], prefix: str) -> dict[str, str]:
    return {key.removeprefix(prefix): tags[key] for key in sorted(tags) if key.startswith(prefix)}


def is_control_plane(record: NodeRecord) -> bool:
    """Whether a node is kept for the control plane, where no prober is expected."""
    return any(key in CONTROL_PLANE for key, _, effect in record.taints if effect in ("NoSchedule", "NoExecute"))


def _has_reported(record: NodeRecord) -> bool:
    return labels.READY in record.labels or bool(record.report)


def _state(record: NodeRecord, context: Cluster, problems: Sequence[Problem]) -> State:
    if not _has_reported(record):
        return "not probed" if is_control_plane(record) else "no report"
    if any(problem.check == REPORT_AGE.name for problem in problems):
        return "stale"
    placeable = record.labels.get(labels.READY) == "true" and record.ready and not record.unschedulable
    return "ready" if placeable and not withheld_problem(record, context) else "not ready"


def _own_problems(
    record: NodeRecord, context: Cluster, out: Mapping[str, Check], pods: Mapping[str, ProberPod] | None
) -> Iterable[Problem]:
    """What keeps members off whatever the hardware is like."""
    name = record.name
    if not record.ready:
        remedy = f"See kubectl describe node {name}: its kubelet does not answer, or says why."
        yield Problem(name, "node", "fail", "the node is not ready", remedy, reason="not-ready", blocking=True)
    if record.unschedulable:
        remedy = f"kubectl uncordon {name}, when whoever cordoned it is done."
        yield Problem(name, "node", "warn", "the node is cordoned", remedy, reason="cordoned", blocking=True)
    if name in out:
        yield _problem(name, out[name])
    if not _has_reported(record):
        if not is_control_plane(record) and (pods is None or pods):
            yield Problem(
                name, "report-missing", "fail", "no prober has ever reported", _look(name, pods), blocking=True
            )
    elif (old := age_check(record.report_at, context.now, context.report_age)) is not None:
        remedy = _look(name, pods) if old.reason != "ahead" else old.remedy
        if old.reason == "old" and record.report_at is not None:
            remedy = f"It is {span(context.now - record.report_at)} old; {remedy}"
        yield dataclasses.replace(_problem(name, old), remedy=remedy)


def _before_the_change(node: str, report: Report, mark: str) -> Iterable[Problem]:
    """Whether the prober has not looked since FdlCluster was changed: what it says of variants is of before."""
    if report.is_outdated(mark):
        yield Problem(
            node,
            "cluster",
            "unknown",
            "FdlCluster/default was changed after the prober had read it: what is said of variants and interfaces here "
            "is by the spec of before",
            f'Wait for a minute, or ask at once: kubectl annotate node {node} {labels.PROBE_NOW}="$(date)" '
            "--overwrite. If it stays so, see the log of its prober pod.",
            reason="changed",
        )


def _look(node: str, pods: Mapping[str, ProberPod] | None) -> str:
    if pods is None:
        return f"see its prober pod: kubectl get pods -A -l {labels.ROLE}={labels.ROLE_PROBER} -o wide"
    if node in pods:
        return pods[node].sentence
    return "no prober pod is on it: see prober.nodeSelector and prober.tolerations in the chart's values"


def _found(node: str, report: Report | None) -> Iterable[Problem]:
    for check in report.checks if report is not None else ():
        if check.severity != "pass":
            yield _problem(node, check)


def _problem(node: str, check: Check) -> Problem:
    return Problem(
        node,
        check.name,
        check.severity,
        check.message,
        check.remedy,
        check.subject,
        check.reason,
        check.blocking and check.severity == "fail",
    )


def _not_known(cluster: Found) -> Iterable[Problem]:
    if cluster.left_out:
        told = ", ".join(cluster.left_out[:MAX_FIELDS])
        more = f" and {len(cluster.left_out) - MAX_FIELDS} more" if len(cluster.left_out) > MAX_FIELDS else ""
        yield Problem(
            WHOLE,
            "cluster",
            "warn",
            f"this release of fdl does not know {told}{more} of FdlCluster/default, and judges without",
            "Use the fdl of the operator's release.",
            reason="not-known",
        )


def _missing(
    cluster: Found | None, records: Iterable[NodeRecord], pods: Mapping[str, ProberPod] | None
) -> Iterable[Problem]:
    """What is not there at all."""
    if cluster is None:
        yield Problem(
            WHOLE,
            "cluster",
            "fail",
            "FdlCluster/default does not exist, so no trainer variant is known",
            "The operator makes it: see that it runs (kubectl get pods -n fdl-system).",
        )
    if pods == {} and not any(_has_reported(record) for record in records):
        yield Problem(
            WHOLE,
            "prober",
            "fail",
            "no prober runs in the cluster",
            "Set prober.enabled=true in the chart's values: helm upgrade fdl charts/fdl -n fdl-system --reuse-values "
            "--set prober.enabled=true.",
        )


def _conditions(status: FdlClusterStatus) -> Iterable[Problem]:
    for condition in status.conditions:
        severity = CONDITIONS.get(condition.type)
        if severity is not None and condition.status == "False":
            entry = known(condition.type, condition.reason)
            yield Problem(
                WHOLE,
                condition.type,
                severity,
                seen_in(condition.message, entry),
                entry.remedy if entry is not None else "",
                reason=condition.reason,
            )


def span(seconds: float) -> str:
    """A time that people can take in: one unit, whole."""
    for unit, length, limit in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172800)):
        if seconds < limit:
            return f"{int(seconds // length)} {unit}"
    return f"{int(seconds // 86400)} d"
