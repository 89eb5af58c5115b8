"""A node as placement and people look at it: labels, taints, and the age of its report. Pure."""

from dataclasses import dataclass
from typing import Any

from fdl_api import labels
from fdl_api import report as reports


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """A node."""

    name: str
    uid: str
    labels: dict[str, str]
    ready: bool
    unschedulable: bool = False
    taints: tuple[tuple[str, str, str], ...] = ()
    """Key, value and effect of each taint."""
    report: str = ""
    """Content of the annotation fdl.dev/report."""
    report_at: float | None = None
    interfaces: tuple[str, ...] | None = None
    """Network interfaces that pods on it have and that are up; ``None`` when no report tells."""
    resource_version: str = ""


def node_record(item: dict[str, Any]) -> NodeRecord:
    """A node."""
    meta, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    conditions = {condition["type"]: condition["status"] for condition in status.get("conditions") or []}
    text = (meta.get("annotations") or {}).get(labels.REPORT, "")
    report = reports.parse(text)
    return NodeRecord(
        name=meta["name"],
        uid=meta["uid"],
        labels=dict(meta.get("labels") or {}),
        ready=conditions.get("Ready") == "True",
        unschedulable=bool(spec.get("unschedulable")),
        taints=tuple((taint["key"], taint.get("value") or "", taint["effect"]) for taint in spec.get("taints") or []),
        report=text,
        report_at=report.time.timestamp() if report is not None else None,
        interfaces=_interfaces(report) if report is not None else None,
        resource_version=meta.get("resourceVersion", ""),
    )


def _interfaces(report: reports.Report) -> tuple[str, ...] | None:
    """Names of the interfaces that are up; ``None`` for a report that lists none at all."""
    found = report.host.interfaces
    return tuple(interface.name for interface in found if interface.up) if found else None
