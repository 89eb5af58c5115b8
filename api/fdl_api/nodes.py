"""A node as placement and people look at it: labels, taints, and the age of its report. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from fdl_api import labels
from fdl_api import report as reports
from fdl_api.checks.machine import REPORT_AGE
from fdl_api.report import Check

AgeFault = Literal["unreadable", "old", "ahead"]
"""Findings of the check ``report-age``."""

MAX_DIGITS: Final = 6
"""Of a number of devices that is believed: anybody may set a label."""


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


def devices(tags: Mapping[str, str], vendor: str) -> int | None:
    """Working devices of a vendor by a node's labels; ``None`` where they tell no number."""
    text = tags.get(labels.count(vendor), "")
    return int(text) if text.isdecimal() and len(text) <= MAX_DIGITS else None


def age_fault(at: float | None, now: float, limit: float) -> AgeFault | None:
    """Why a report must not be used; ``None`` while it is fresh.

    A report of the future is not fresh for ever: how old it is cannot be told.

    Args:
        at: when it was made, by the node's clock (seconds since 1970); ``None`` when there is none.
        now: seconds since 1970.
        limit: seconds after which it is too old (FdlCluster's reportMaxAgeSeconds).
    """
    if at is None:
        return "unreadable"
    if now - at > limit:
        return "old"
    return "ahead" if at - now > limit else None


def age_check(at: float | None, now: float, limit: float) -> Check | None:
    """The same as a finding, in words that do not move with time."""
    fault = age_fault(at, now, limit)
    if fault is None:
        return None
    told = {
        "unreadable": f"the annotation {labels.REPORT} is missing or cannot be read",
        "old": f"the newest report is older than {int(limit)} s",
        "ahead": f"the newest report is of a time more than {int(limit)} s ahead: the node's clock is wrong",
    }
    return REPORT_AGE.found(fault, told[fault])


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
