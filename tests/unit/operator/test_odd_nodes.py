"""Nodes whose labels and reports are not the prober's: each costs its own row at most, and never the others."""

import datetime
import json
from typing import Any

import pytest

from fdl_api import labels
from fdl_api.cluster import FdlClusterSpec, FdlClusterStatus
from fdl_api.nodes import node_record
from fdl_operator.plan.cluster import ClusterRecord, describe
from tests.unit.nodes import T0

SPEC = FdlClusterSpec.model_validate({"quarantine": {"automatic": {"afterFailures": 1}, "taint": True}})
CLUSTER = ClusterRecord("default", "u", 1, "1", SPEC, FdlClusterStatus())
NOW = datetime.datetime.fromtimestamp(T0, datetime.UTC).isoformat()
GOOD: dict[str, Any] = {"node": "odd", "time": NOW, "ready": True}


def described(tags: dict[str, str], report: dict[str, Any]) -> FdlClusterStatus:
    """The status of a cluster with an odd node and a sound one, as an API server would give it back."""
    items = [
        {
            "metadata": {
                "name": name,
                "uid": name,
                "labels": {labels.READY: "true", **own},
                "annotations": {labels.REPORT: json.dumps(told)},
            },
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }
        for name, own, told in (("odd", tags, report), ("sound", {}, GOOD))
    ]
    status = describe(CLUSTER, [node_record(item) for item in items], T0)
    assert status.nodes[1].name == "sound" and status.nodes[1].ready
    return FdlClusterStatus.model_validate(status.to_dict())


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00", "9999-12-31T23:59:59-23:59", "2026-11-30T06:00:00", 1e18])
def test_a_time_that_cannot_be_counted_with_makes_no_report(time: object) -> None:
    row = described({}, GOOD | {"time": time}).nodes[0]
    assert not row.ready and [problem.check for problem in row.problems] == ["report-age"]


@pytest.mark.parametrize("at", ["0001-01-01T00:00:00", "9999-12-31T00:00:00Z"])
def test_a_failure_at_such_a_time_makes_no_report_either(at: str) -> None:
    result = {"image": "i", "fingerprint": "f", "time": NOW, "outcome": "failed", "wrong": 9, "wrongAt": at}
    assert described({}, GOOD | {"deep": {"cuda": result}}).quarantine == ()


@pytest.mark.parametrize(
    "names",
    [["SM_90"], ["a.b-c"], [""], ["a" * 50], [f"sm_{number}" for number in range(50, 90)]],
    ids=["capitals", "dots", "nothing", "long", "many"],
)
def test_labels_that_name_no_architecture_are_left_out(names: list[str]) -> None:
    found = described({labels.ARCH_PREFIX + name: "true" for name in names} | {labels.arch("gfx942"): "true"}, GOOD)
    assert found.nodes[0].archs[0] == "gfx942" and len(found.nodes[0].archs) <= 16


def test_more_variants_and_longer_versions_than_there_can_be_are_cut() -> None:
    tags = {labels.nccl(f"v{number}"): "2.27" for number in range(60)} | {labels.nccl("long"): "9" * 63}
    tags |= {labels.variant(f"v{number}"): "covers" for number in range(60)}
    row = described(tags, GOOD).nodes[0]
    assert (len(row.nccl), len(row.variants)) == (32, 32) and "long" not in row.nccl


@pytest.mark.parametrize(("text", "count"), [("9" * 63, 0), ("-3", 0), ("16", 16), ("x", 0)])
def test_a_number_of_devices_that_cannot_be_counts_as_none(text: str, count: int) -> None:
    found = described({labels.count("nvidia"): text}, GOOD)
    assert found.nodes[0].devices == count


@pytest.mark.parametrize(("variant", "wrong"), [("v" * 9000, 3), ("cuda", 10**4000)])
def test_a_reason_of_any_length_is_cut(variant: str, wrong: int) -> None:
    result = {"image": "i", "fingerprint": "f", "time": NOW, "outcome": "failed", "wrong": wrong, "wrongAt": NOW}
    found = described({}, GOOD | {"deep": {variant: result}})
    assert [entry.name for entry in found.quarantine] == ["odd"] and len(found.quarantine[0].reason) <= 300
