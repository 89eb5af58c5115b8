"""Nodes and trainer images as placement looks at them, for tests of the rules and of the operator."""

import dataclasses

from fdl_api import labels
from fdl_api.nodes import NodeRecord
from fdl_api.placement import Variant
from fdl_api.report import Report

T0 = 1_800_000_000.0
"""Now, in these tests: seconds since 1970."""

VARIANTS = (
    Variant("cpu", "cpu", "reg/trainer-cpu:1"),
    Variant("cuda", "nvidia", "reg/trainer-cuda:1", ("sm_90",)),
    Variant("rocm", "amd", "reg/trainer-rocm:1", ("gfx942",)),
)


def node(name: str = "n1", *, ready: bool = True, report_age: float | None = 1.0, **tags: str) -> NodeRecord:
    """A ready CPU node. ``tags`` are labels below fdl.dev/, with ``__`` for a dot."""
    own = {labels.DOMAIN + key.replace("__", ".").replace("_", "-"): text for key, text in tags.items()}
    if report_age is not None:
        own.setdefault(labels.READY, "true")
    return NodeRecord(
        name=name,
        uid=f"uid-{name}",
        labels=own,
        ready=ready,
        report_at=None if report_age is None else T0 - report_age,
    )


def node_of(report: Report, **tags: str) -> NodeRecord:
    """The node that a report is about, as :func:`node` makes it with these ``tags``, with the report on it."""
    return dataclasses.replace(node(report.node, **tags), report=report.render(), report_at=report.time.timestamp())
