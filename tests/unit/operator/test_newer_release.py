"""An operator that is older than the schema, or than the one before it: it goes on without what it does not know."""

import dataclasses
import json
from typing import Any

import pytest

from fdl_api.cluster import FdlClusterStatus
from fdl_api.run import FdlRunStatus, RunPhase
from fdl_operator.model import RunRecord, WriteStatus
from fdl_operator.plan import plan
from fdl_operator.plan.cluster import describe
from fdl_operator.records import cluster_record, run_record
from tests.unit.nodes import T0, node

from .builders import World

NEW = {"shape": {"of": ["things", 3]}}


def grown(value: Any) -> Any:
    """JSON data with a field that no release has in each of its objects that hold others: the rest may be maps."""
    if isinstance(value, list):
        return [grown(each) for each in value]
    if not isinstance(value, dict) or not any(isinstance(each, dict | list) for each in value.values()):
        return value
    return {key: grown(each) for key, each in value.items()} | {"fieldOfTomorrow": NEW}


def item_of(run: RunRecord, **changes: Any) -> dict[str, Any]:
    """The object as the API server has it."""
    assert run.spec is not None
    meta = {"name": run.name, "namespace": run.namespace, "uid": run.uid, "generation": 1, "resourceVersion": "2"}
    meta["creationTimestamp"] = "2027-01-15T08:00:00Z"
    found = {"metadata": meta, "spec": run.spec.to_dict(), "status": run.status.to_dict()}
    return json.loads(json.dumps(found | changes))  # type: ignore[no-any-return]


def running() -> World:
    return World().training()


def actions(world: World, run: RunRecord) -> list[Any]:
    return list(plan(dataclasses.replace(world.snapshot(), run=run), world.now))


def test_fields_of_tomorrow_in_spec_and_status_change_nothing_of_what_is_done() -> None:
    world = running()
    item = item_of(world.run)
    old, new = run_record(item), run_record(item | {"spec": grown(item["spec"]), "status": grown(item["status"])})
    assert (new.spec, new.status, new.problem) == (old.spec, old.status, "")
    assert "spec.fieldOfTomorrow" in new.unknown and "spec.trainer.fieldOfTomorrow" in new.unknown and not old.unknown
    assert actions(world, new) == actions(world, old)


def test_a_run_that_is_new_with_such_fields_starts_and_is_told_of_them_once() -> None:
    world = World()
    item = item_of(world.run)
    new = run_record(item | {"spec": item["spec"] | {"fieldOfTomorrow": NEW}})
    written = next(each for each in actions(world, new) if isinstance(each, WriteStatus))
    assert [note.reason for note in written.events if note.reason == "FieldsNotKnown"] == ["FieldsNotKnown"]
    assert any("spec.fieldOfTomorrow" in note.message for note in written.events)
    told = dataclasses.replace(new, status=written.status)
    again = [each for each in actions(world, told) if isinstance(each, WriteStatus)]
    assert not any(note.reason == "FieldsNotKnown" for each in again for note in each.events)


@pytest.mark.parametrize(
    "edit",
    [
        {
            "conditions": [
                {"type": "Tomorrow", "status": "Maybe", "reason": "R", "lastTransitionTime": "2027-01-15T08:00:00Z"}
            ]
        },
        {"members": [{"name": "x", "cohort": "a", "ordinal": 0, "incarnation": 0, "phase": "Hibernating"}]},
        {"seatCounters": [{"seat": "all"}, {"seat": ""}]},
        {"nextIncarnations": {"a-x": 1, "a": 2}},
        {"training": {"refusals": [{"reason": 3}]}, "attempt": "first"},
        {"summary": "well"},
    ],
    ids=lambda edit: next(iter(edit)),
)
def test_words_of_tomorrow_in_a_status_raise_nothing(edit: dict[str, Any]) -> None:
    world = running()
    item = item_of(world.run)
    run = run_record(item | {"status": item["status"] | edit})
    assert run.status.phase is world.run.status.phase and run.status.coordinator == world.run.status.coordinator
    actions(world, run)


VARIANT = {"name": "cuda", "vendor": "nvidia", "image": "i:1", "archs": ["sm_90"]}
FOREIGN = {"type": "Admitted", "status": "True", "reason": "Quota", "lastTransitionTime": "2027-01-15T08:00:00Z"}


def test_conditions_that_others_put_there_are_no_reason_to_write() -> None:
    world = running()
    item = item_of(world.run)
    told = item["status"]["conditions"]
    run = run_record(item | {"status": item["status"] | {"conditions": [FOREIGN, *reversed(told)]}})
    assert run.status == world.run.status and actions(world, run) == []


def test_nor_are_they_in_a_cluster() -> None:
    meta = {"name": "default", "uid": "u", "generation": 2, "resourceVersion": "9"}
    item: dict[str, Any] = {"metadata": meta, "spec": {"variants": [VARIANT]}}
    made = describe(cluster_record(item), [node("n1")], T0)
    status = json.loads(json.dumps(made.to_dict()))
    status["conditions"] = [FOREIGN, *reversed(status["conditions"])]
    assert cluster_record(item | {"status": status}).status == made


def test_a_run_in_a_phase_of_tomorrow_is_left_alone() -> None:
    """It may be an end, and what has ended must create nothing again."""
    world = running()
    item = item_of(world.run)
    run = run_record(item | {"status": item["status"] | {"phase": "Archived"}})
    assert not run.phase_known and "'Archived'" in run.problem and actions(world, run) == []
    assert actions(World(), World().run), "a run without a phase is worked on"


def test_a_run_whose_spec_asks_for_what_this_release_cannot_do_is_told_so() -> None:
    world = World()
    item = item_of(world.run)
    run = run_record(item | {"spec": item["spec"] | {"mode": "tpu-sync", "fieldOfTomorrow": 1}})
    written = next(each for each in actions(world, run) if isinstance(each, WriteStatus))
    assert written.status.phase is RunPhase.PENDING
    assert any("spec.mode" in condition.message for condition in written.status.conditions)


def test_of_a_cluster_what_is_known_stands() -> None:
    spec = {
        "variants": [VARIANT | {"fieldOfTomorrow": NEW}, {"name": "tpu", "vendor": "google", "image": "i:2"}],
        "quarantine": {"nodes": [{"name": "n1", "reason": "bad fan", "by": "me"}], "taint": True},
        "fieldOfTomorrow": NEW,
    }
    since = {"since": "2027-01-15T08:00:00Z"}
    status = {
        "quarantine": [{"name": "n1", "source": "spec", **since}, {"name": "n2", "source": "oracle", **since}],
        "nodes": [{"name": "n1", "vendor": "google"}],
        "counts": 7,
        "fieldOfTomorrow": NEW,
    }
    meta = {"name": "default", "uid": "u", "generation": 2, "resourceVersion": "9"}
    found = cluster_record({"metadata": meta, "spec": spec, "status": status})
    assert [variant.name for variant in found.spec.variants] == ["cuda"]
    assert [entry.name for entry in found.spec.quarantine.nodes] == ["n1"] and found.spec.quarantine.taint
    assert [row.name for row in found.status.quarantine] == ["n1"]
    assert "spec.fieldOfTomorrow" in found.unknown and "spec.variants.1" in found.unknown
    made = describe(found, [node("n1")], T0)
    assert [row.since for row in made.quarantine] == ["2027-01-15T08:00:00Z"]
    assert FdlClusterStatus.model_validate(made.to_dict()) == made


def test_what_a_status_is_written_with_can_be_read_again() -> None:
    world = running()
    assert FdlRunStatus.model_validate(world.run.status.to_dict()) == world.run.status
