"""Nodes that get no new member: named by people, or, where FdlCluster asks for it, for failing deep checks.

What is decided follows from FdlCluster and the newest reports alone, so that it survives a restart of the operator.
Members that run are not touched; deep checks go on, and one that passes ends a quarantine that another one began.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fdl_api import labels
from fdl_api.cluster import FdlClusterSpec, QuarantineSpec, QuarantineStatus
from fdl_api.nodes import NodeRecord
from fdl_api.report import DeepResult, Report
from fdl_operator import clock

MAX_REASON = 300
SOURCES = ("spec", "deep-check")
"""Who puts a node there; also the values of the operator's own taints."""


@dataclass(frozen=True, slots=True)
class TaintChange:
    """The taint fdl.dev/quarantine to put on a node, or to take off it."""

    node: NodeRecord
    value: str
    """Value of the taint; empty to take it off."""


def quarantine(
    spec: FdlClusterSpec,
    nodes: Sequence[tuple[NodeRecord, Report | None]],
    old: Iterable[QuarantineStatus],
    now: float,
) -> tuple[QuarantineStatus, ...]:
    """The nodes in quarantine, by name.

    Args:
        spec: FdlCluster/default.
        nodes: all nodes, with their reports.
        old: the rows as they were; one that goes on keeps when it began.
        now: seconds since 1970.
    """
    before = {row.name: row for row in old}
    tainted = {node.name: _taint(node) is not None for node, _ in nodes}
    rows: dict[str, QuarantineStatus] = {}
    for name, (reason, until) in _failed(spec.quarantine, nodes, now).items():
        since = clock.render(now)
        rows[name] = QuarantineStatus(
            name=name, source="deep-check", reason=reason, since=since, until=clock.render(until), tainted=tainted[name]
        )
    for entry in spec.quarantine.nodes:
        reason = entry.reason or "named in spec.quarantine.nodes of FdlCluster/default"
        rows[entry.name] = QuarantineStatus(
            name=entry.name,
            source="spec",
            reason=reason,
            since=clock.render(now),
            tainted=tainted.get(entry.name, False),
        )
    return tuple(_going_on(row, before.get(row.name)) for _, row in sorted(rows.items()))


def _going_on(row: QuarantineStatus, before: QuarantineStatus | None) -> QuarantineStatus:
    if before is None or before.source != row.source:
        return row
    return row.model_copy(update={"since": before.since})


def _failed(
    spec: QuarantineSpec, nodes: Sequence[tuple[NodeRecord, Report | None]], now: float
) -> dict[str, tuple[str, float]]:
    """Nodes that failed deep checks too often: why, and until when. Images that fail everywhere do not count."""
    rule = spec.automatic
    if rule is None:
        return {}
    results = [
        (node.name, variant, result if _in_its_time(result, report) else result.model_copy(update={"wrong_at": None}))
        for node, report in nodes
        if report is not None and not report.simulated
        for variant, result in report.deep.items()
    ]
    blamed = _bad_images(results)
    found: dict[str, tuple[str, float]] = {}
    for name, variant, result in results:
        if result.wrong < rule.after_failures or result.wrong_at is None or result.image in blamed:
            continue
        until = result.wrong_at.timestamp() + rule.for_seconds
        if until > now and until > found.get(name, ("", 0.0))[1]:
            text = f"{result.wrong} deep checks of variant {variant} in a row went wrong here; see its report"
            found[name] = (text[:MAX_REASON], until)
    return found


def _in_its_time(result: DeepResult, report: Report) -> bool:
    """Whether the newest failure was read before its report was made: else that clock was set back meanwhile, and a
    time of the future would keep the node out for ever. The prober moves such a time to its own present.
    """
    return result.wrong_at is None or result.wrong_at <= report.time


def _bad_images(results: Iterable[tuple[str, str, DeepResult]]) -> set[str]:
    """Images whose kernels went wrong on each of at least two nodes that ran them."""
    ran: dict[str, list[bool]] = {}
    for _, _, result in results:
        if result.outcome != "no-result" or result.wrong:
            ran.setdefault(result.image, []).append(result.wrong > 0)
    return {image for image, wrong in ran.items() if len(wrong) > 1 and all(wrong)}


def taint_changes(
    spec: QuarantineSpec, rows: Iterable[QuarantineStatus], nodes: Mapping[str, NodeRecord]
) -> list[TaintChange]:
    """Taints to put on and to take off. A taint of this key that somebody else put there is left alone."""
    wanted: dict[str, str] = {row.name: row.source for row in rows} if spec.taint else {}
    changes: list[TaintChange] = []
    for name, node in sorted(nodes.items()):
        value = _taint(node)
        if name in wanted and value is None:
            changes.append(TaintChange(node, wanted[name]))
        elif name not in wanted and value in SOURCES:
            changes.append(TaintChange(node, ""))
    return changes


def patch(change: TaintChange) -> list[dict[str, object]]:
    """The JSON patch for a change. It applies only to the version of the node that the change was decided on."""
    operations: list[dict[str, object]] = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": change.node.resource_version}
    ]
    taints = change.node.taints
    if change.value:
        taint = {"key": labels.QUARANTINE, "value": change.value, "effect": "NoSchedule"}
        if taints:
            operations.append({"op": "add", "path": "/spec/taints/-", "value": taint})
        else:
            operations.append({"op": "add", "path": "/spec/taints", "value": [taint]})
    else:
        place = next(place for place, (key, _, _) in enumerate(taints) if key == labels.QUARANTINE)
        operations.append({"op": "remove", "path": f"/spec/taints/{place}"})
    return operations


def _taint(node: NodeRecord) -> str | None:
    """Value of the node's quarantine taint; ``None`` without one."""
    return next((value for key, value, _ in node.taints if key == labels.QUARANTINE), None)
