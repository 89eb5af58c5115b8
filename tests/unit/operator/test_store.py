"""What the operator remembers, and which runs it wakes."""

import dataclasses
from typing import Any

import pytest

from fdl_api.cluster import FdlClusterSpec
from fdl_api.run import Condition, FdlRunStatus
from fdl_operator.build.pki import KeyMaterial
from fdl_operator.model import OwnedRecord, PodRecord, RunKey, RunRecord
from fdl_operator.settings import Limits
from fdl_operator.store import EXPECTATION_SECONDS, Store

from .builders import UID, World, node

KEY = ("ns", "run")


class Remembering:
    def __init__(self) -> None:
        self.woken: list[RunKey] = []
        self.now = 1000.0
        self.store = Store(Limits(), self.woken.append, lambda: self.now)
        self.store.put_run(World().run)
        self.woken.clear()

    def run(self, version: int, **changes: Any) -> RunRecord:
        return dataclasses.replace(World().run, resource_version=str(version), **changes)

    def pod(self, name: str = "run-a-0-1", **fields: Any) -> PodRecord:
        base = {"namespace": "ns", "name": name, "uid": "p", "run": "run", "run_uid": UID, "role": "member"}
        return PodRecord(**(base | fields))


def test_an_older_version_of_a_run_is_ignored() -> None:
    memory = Remembering()
    newer = memory.run(9, generation=2)
    assert memory.store.put_run(newer) and not memory.store.put_run(memory.run(8))
    assert memory.store.runs[KEY].generation == 2 and memory.woken == [KEY]


def test_a_run_that_was_made_anew_under_its_name_starts_from_nothing() -> None:
    memory = Remembering()
    memory.store.keys_found(UID, KeyMaterial("t", "ca", "c", "k"))
    memory.store.child_failed(UID, "x", 403, "no")
    memory.store.put_run(memory.run(1, uid="other"))
    snapshot = memory.store.snapshot(KEY)
    assert snapshot is not None and not snapshot.secret_ready and not snapshot.failures
    memory.store.drop_run(KEY, UID)
    assert KEY in memory.store.runs, "a late deletion of the first one does not hit the second"


def test_a_pod_wakes_its_run_only_when_something_changed() -> None:
    memory = Remembering()
    memory.store.put_pod("ns/run-a-0-1", memory.pod())
    memory.store.put_pod("ns/run-a-0-1", memory.pod())
    assert memory.woken == [KEY]
    memory.store.drop_pod("ns/run-a-0-1")
    assert memory.woken == [KEY, KEY] and not list(memory.store.pods_of(UID))


def test_lost_keys_are_told_until_there_are_new_ones() -> None:
    memory = Remembering()
    memory.woken.clear()
    memory.store.keys_gone(UID)
    snapshot = memory.store.snapshot(KEY)
    assert snapshot is not None and snapshot.secret_lost and not snapshot.secret_ready and memory.woken == [KEY]
    memory.store.keys_found(UID, KeyMaterial("t", "ca", "c", "k"))
    snapshot = memory.store.snapshot(KEY)
    assert snapshot is not None and not snapshot.secret_lost and snapshot.secret_ready
    assert snapshot.secret_checked_at == memory.now


def test_a_created_pod_counts_until_it_is_seen_or_forgotten() -> None:
    memory = Remembering()
    memory.store.expect_pod(UID, "run-a-0-1")
    assert memory.store.snapshot(KEY).created == {"run-a-0-1"}  # type: ignore[union-attr]
    memory.now += EXPECTATION_SECONDS
    assert memory.store.snapshot(KEY).created == frozenset()  # type: ignore[union-attr]
    memory.store.expect_pod(UID, "run-a-0-1")
    memory.store.put_pod("ns/run-a-0-1", memory.pod())
    assert memory.store.snapshot(KEY).created == frozenset()  # type: ignore[union-attr]


def test_a_pod_that_came_and_went_before_it_was_written_down_is_remembered() -> None:
    memory = Remembering()
    row = {"name": "run-a-0-1", "cohort": "a", "ordinal": 0, "incarnation": 1}
    memory.store.put_run(memory.run(2, status=FdlRunStatus.model_validate({"members": [row]})))
    memory.store.put_pod("ns/run-a-0-1", memory.pod())
    memory.store.drop_pod("ns/run-a-0-1")
    assert memory.store.snapshot(KEY).gone == {"run-a-0-1"}  # type: ignore[union-attr]
    memory.store.put_run(memory.run(3))
    assert memory.store.snapshot(KEY).gone == frozenset()  # type: ignore[union-attr]


def test_a_refused_child_is_tried_later_and_later() -> None:
    memory = Remembering()
    waits = []
    for _ in range(4):
        memory.store.child_failed(UID, "pod", 403, "no")
        waits.append(memory.store.snapshot(KEY).failures["pod"].retry_at - memory.now)  # type: ignore[union-attr]
    assert waits == [5, 10, 20, 40]
    memory.store.child_worked(UID, "pod")
    assert not memory.store.snapshot(KEY).failures  # type: ignore[union-attr]


def test_a_node_wakes_the_runs_on_it_and_those_without_a_place() -> None:
    memory = Remembering()
    placed = Condition(type="Placeable", status="True", last_transition_time="2026-01-01T00:00:00Z", reason="x")
    memory.store.put_run(memory.run(2, status=FdlRunStatus(conditions=(placed,))))
    memory.store.put_node("/n1", node("n1"))
    memory.store.put_pod("ns/run-a-0-1", memory.pod(node="n1"))
    memory.woken.clear()
    assert memory.store.put_node("/n1", node("n1", ready=False)) and memory.woken == [KEY]
    memory.woken.clear()
    memory.store.put_node("/n2", node("n2"))
    assert memory.woken == [], "a run that has its place does not care"
    waiting = placed.model_copy(update={"status": "False"})
    memory.store.put_run(memory.run(3, status=FdlRunStatus(conditions=(waiting,))))
    memory.woken.clear()
    memory.store.put_node("/n3", node("n3"))
    assert memory.woken == [KEY]


def test_a_report_that_is_only_newer_wakes_no_run() -> None:
    memory = Remembering()
    memory.store.put_node("/n1", node("n1"))
    memory.woken.clear()
    newer = dataclasses.replace(node("n1"), report="new", report_at=5.0)
    assert memory.store.put_node("/n1", newer) and memory.woken == []


def test_a_report_after_one_that_was_too_old_wakes_runs_without_a_place() -> None:
    memory = Remembering()
    memory.store.put_node("/n1", dataclasses.replace(node("n1"), report="old", report_at=memory.now - 5000))
    memory.woken.clear()
    memory.store.put_node("/n1", dataclasses.replace(node("n1"), report="new", report_at=memory.now - 5))
    assert memory.woken == [KEY]


@pytest.mark.parametrize("change", [{"a": "failed"}, {}])
def test_a_change_of_the_quarantine_wakes_runs_without_a_place(change: dict[str, str]) -> None:
    memory = Remembering()
    memory.store.put_quarantine({"b": "failed"})
    memory.woken.clear()
    memory.store.put_quarantine({"b": "failed"})
    assert memory.woken == []
    memory.store.put_quarantine(change)
    assert memory.woken == [KEY] and memory.store.snapshot(KEY).quarantined == change  # type: ignore[union-attr]


def test_variants_of_the_cluster_wake_runs_without_a_place() -> None:
    memory = Remembering()
    spec = FdlClusterSpec.model_validate({"variants": [{"name": "cpu", "vendor": "cpu", "image": "i"}]})
    memory.store.put_cluster(spec)
    memory.store.put_cluster(spec)
    assert memory.woken == [KEY] and memory.store.variants()[0].image == "i"
    assert memory.store.snapshot(KEY).limits.report_age == 900  # type: ignore[union-attr]


def test_an_applied_object_that_is_gone_wakes_its_run() -> None:
    memory = Remembering()
    memory.store.put_owned("ns/run-coordinator", OwnedRecord("Service", "ns", "run-coordinator", "u", UID, "h"))
    snapshot = memory.store.snapshot(KEY)
    assert snapshot is not None and snapshot.owned["Service", "run-coordinator"].spec_hash == "h"
    memory.woken.clear()
    memory.store.drop_owned("Service", "ns/run-coordinator")
    assert memory.woken == [KEY]
