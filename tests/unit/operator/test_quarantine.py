"""Which nodes are in quarantine, and the taints for it."""

import dataclasses
import datetime
from typing import Any

import pytest

from fdl_api.cluster import FdlClusterSpec, FdlClusterStatus, QuarantineStatus
from fdl_api.network import sentences
from fdl_api.nodes import NodeRecord
from fdl_api.report import DeepResult, Report
from fdl_operator import clock
from fdl_operator.plan.cluster import ClusterRecord, describe
from fdl_operator.plan.quarantine import patch, quarantine, taint_changes
from tests.unit.nodes import T0, node, node_of

from .builders import World

HOUR = 3600.0


def failing(name: str, wrong: int, *, ago: float = 60, **more: Any) -> tuple[NodeRecord, Report]:
    """A node whose newest deep checks went wrong ``wrong`` times in a row, the last one ``ago`` seconds ago."""
    at = datetime.datetime.fromtimestamp(T0 - ago, datetime.UTC) if wrong else None
    values: dict[str, Any] = {"image": "reg/cuda:1", "outcome": "failed" if wrong else "passed"} | more
    result = DeepResult(fingerprint="f", time=datetime.datetime.fromtimestamp(T0, datetime.UTC), **values)
    result = result.model_copy(update={"wrong": wrong, "wrong_at": at})
    time = datetime.datetime.fromtimestamp(T0, datetime.UTC)
    report = Report(node=name, time=time, ready=True, deep={"cuda": result})
    return node_of(report), report


def spec(**section: Any) -> FdlClusterSpec:
    return FdlClusterSpec.model_validate({"quarantine": section})


AUTOMATIC = spec(automatic={"afterFailures": 2, "forSeconds": HOUR})


def names(rows: tuple[QuarantineStatus, ...]) -> list[str]:
    return [row.name for row in rows]


def test_a_node_that_people_name_is_in_until_they_take_it_back() -> None:
    (row,) = quarantine(spec(nodes=[{"name": "a", "reason": "bad fan"}]), [failing("a", 0)], (), T0)
    assert (row.name, row.source, row.reason, row.until) == ("a", "spec", "bad fan", None)


def test_nothing_is_automatic_unless_asked_for() -> None:
    assert quarantine(spec(), [failing("a", 9)], (), T0) == ()


@pytest.mark.parametrize(("wrong", "kept_out"), [(0, []), (1, []), (2, ["a"]), (5, ["a"])])
def test_so_many_failures_in_a_row_are_needed(wrong: int, kept_out: list[str]) -> None:
    assert names(quarantine(AUTOMATIC, [failing("a", wrong)], (), T0)) == kept_out


def test_it_expires_after_the_newest_failure_and_begins_again_with_the_next() -> None:
    (row,) = quarantine(AUTOMATIC, [failing("a", 2, ago=60)], (), T0)
    assert row.until == clock.render(T0 - 60 + HOUR)
    assert quarantine(AUTOMATIC, [failing("a", 2, ago=HOUR)], (), T0) == ()
    assert names(quarantine(AUTOMATIC, [failing("a", 3, ago=1)], (), T0)) == ["a"]


def test_a_failure_after_its_own_report_was_read_by_a_clock_that_was_wrong_and_keeps_nobody_out() -> None:
    for seconds in (1, 365 * 24 * HOUR, 7000 * 365 * 24 * HOUR):
        assert quarantine(AUTOMATIC, [failing("a", 2, ago=-seconds)], (), T0) == ()
    assert names(quarantine(AUTOMATIC, [failing("a", 2, ago=0)], (), T0)) == ["a"]


def test_a_check_without_a_result_does_not_end_it() -> None:
    assert names(quarantine(AUTOMATIC, [failing("a", 2, outcome="no-result")], (), T0)) == ["a"]


def test_an_image_that_goes_wrong_everywhere_is_not_the_nodes_fault() -> None:
    assert quarantine(AUTOMATIC, [failing("a", 2), failing("b", 3)], (), T0) == ()
    assert names(quarantine(AUTOMATIC, [failing("a", 2), failing("b", 0)], (), T0)) == ["a"]
    assert names(quarantine(AUTOMATIC, [failing("a", 2), failing("b", 2, image="reg/cuda:2")], (), T0)) == ["a", "b"]


def test_a_row_that_goes_on_keeps_when_it_began() -> None:
    (first,) = quarantine(AUTOMATIC, [failing("a", 2)], (), T0)
    (again,) = quarantine(AUTOMATIC, [failing("a", 2)], (first,), T0 + 100)
    assert again == first
    (named,) = quarantine(spec(nodes=[{"name": "a"}]), [failing("a", 2)], (first,), T0 + 100)
    assert named.since == clock.render(T0 + 100) and "spec.quarantine.nodes" in named.reason


def test_the_table_shows_it_and_the_node_is_not_ready() -> None:
    each, _ = failing("a", 2)
    status = describe(ClusterRecord("default", "u", 1, "1", AUTOMATIC, FdlClusterStatus()), [each], T0)
    assert names(status.quarantine) == ["a"] and not status.nodes[0].ready
    assert status.nodes[0].problems[0].check == "quarantine"
    assert "a: in quarantine: 2 deep checks of variant cuda in a row went wrong" in status.conditions[0].message


class TestTaints:
    def changes(self, section: FdlClusterSpec, *nodes: NodeRecord) -> list[tuple[str, str]]:
        rows = quarantine(section, [(each, None) for each in nodes], (), T0)
        found = taint_changes(section.quarantine, rows, {each.name: each for each in nodes})
        return [(change.node.name, change.value) for change in found]

    def tainted(self, name: str, value: str) -> NodeRecord:
        taints = (("gpu", "", "NoSchedule"), ("fdl.dev/quarantine", value, "NoSchedule"))
        return dataclasses.replace(node(name), taints=taints, resource_version="7")

    def test_only_where_asked_for(self) -> None:
        assert self.changes(spec(nodes=[{"name": "a"}]), node("a"), node("b")) == []
        assert self.changes(spec(nodes=[{"name": "a"}], taint=True), node("a"), node("b")) == [("a", "spec")]

    def test_one_that_is_there_is_left(self) -> None:
        assert self.changes(spec(nodes=[{"name": "a"}], taint=True), self.tainted("a", "spec")) == []

    def test_it_goes_with_the_quarantine_and_with_the_switch(self) -> None:
        assert self.changes(spec(taint=True), self.tainted("a", "spec")) == [("a", "")]
        assert self.changes(spec(nodes=[{"name": "a"}]), self.tainted("a", "deep-check")) == [("a", "")]

    def test_one_that_somebody_else_made_is_not_touched(self) -> None:
        assert self.changes(spec(), self.tainted("a", "ours")) == []

    def test_the_row_says_whether_it_is_there(self) -> None:
        rows = quarantine(spec(nodes=[{"name": "a"}, {"name": "b"}]), [(self.tainted("a", "spec"), None)], (), T0)
        assert [row.tainted for row in rows] == [True, False]

    def test_a_change_is_for_one_version_of_the_node_and_one_taint(self) -> None:
        (off,) = taint_changes(spec(taint=True).quarantine, (), {"a": self.tainted("a", "spec")})
        assert patch(off) == [
            {"op": "test", "path": "/metadata/resourceVersion", "value": "7"},
            {"op": "remove", "path": "/spec/taints/1"},
        ]


def test_a_run_gets_no_new_member_there_and_running_ones_go_on() -> None:
    world = World(cohorts=[{"name": "a", "vendor": "cpu", "replicas": 2, "maxReplicas": 8}]).training()
    rows = quarantine(spec(nodes=[{"name": "n1"}, {"name": "n2"}]), [], (), T0)
    world.quarantined = sentences(rows)
    world.settle()
    assert world.status.phase == "Running" and len(world.status.members) == 2
    world.edit(cohorts__0__replicas=3).settle()
    assert "node n1 is in quarantine: named in spec.quarantine.nodes" in world.condition("Placeable").message
    assert len(world.status.members) == 2
