"""What an older release knows of what a newer one wrote."""

from typing import Any

import pytest
from pydantic import ValidationError

from fdl_api import reading
from fdl_api.cluster import FdlClusterSpec, FdlClusterStatus
from fdl_api.report import Report
from fdl_api.run import FdlRunSpec, FdlRunStatus, RunPhase

VARIANT = {"name": "cuda", "vendor": "nvidia", "image": "i:1", "archs": ["sm_90"]}


def run_spec(**more: Any) -> dict[str, Any]:
    cohort = {"name": "a", "vendor": "cpu", "replicas": 2}
    return {"trainer": {"source": {"configMap": {"name": "s"}}}, "cohorts": [cohort], **more}


def test_what_this_release_knows_wholly_is_read_wholly() -> None:
    found = reading.strict(FdlRunSpec, run_spec(mode="cpu-sync"))
    assert (found.value, found.left_out) == (FdlRunSpec.model_validate(run_spec(mode="cpu-sync")), ())


def test_new_fields_of_a_spec_are_left_out_and_named_and_the_object_stays_as_it_was() -> None:
    content = {
        "variants": [VARIANT | {"quant": {"a": 1}}, VARIANT | {"name": "b", "z": 0}],
        "mesh": {},
        "prober": {"y": 1},
    }
    found = reading.strict(FdlClusterSpec, content)
    assert found.value == FdlClusterSpec.model_validate({"variants": [VARIANT, VARIANT | {"name": "b"}]})
    assert found.left_out == ("mesh", "prober.y", "variants.0.quant", "variants.1.z")
    assert content["mesh"] == {} and "quant" in content["variants"][0]  # type: ignore[index]


@pytest.mark.parametrize(
    "change", [{"mode": "tpu-sync"}, {"mode": "tpu-sync", "new": 1}, {"cohorts": 3}, {"cohorts": []}]
)
def test_a_value_of_a_spec_that_this_release_does_not_know_is_an_error(change: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        reading.strict(FdlRunSpec, run_spec(**change))


CONDITION = {"type": "Formed", "status": "True", "reason": "New", "lastTransitionTime": "2030-01-01T00:00:00Z"}
MEMBER = {"name": "run-a-0-0", "cohort": "a", "ordinal": 0, "incarnation": 0}


def test_of_a_status_only_what_is_not_understood_is_left_out() -> None:
    found = reading.lenient(
        FdlRunStatus,
        {
            "phase": "Hibernating",
            "attempt": 3,
            "new": True,
            "conditions": [CONDITION, CONDITION | {"type": "New", "status": "Perhaps"}, CONDITION | {"type": "Newer"}],
            "members": [MEMBER | {"phase": "Draining"}, MEMBER | {"ordinal": "first"}, MEMBER | {"ordinal": 1}],
            "nextIncarnations": {"a-0": 1, "a-1": -1},
            "training": {"runUID": "u", "window": "many", "refusals": [{"message": "no reason"}, {"reason": "New"}]},
        },
    )
    status = found.value
    assert (status.phase, status.attempt, dict(status.next_incarnations)) == (None, 3, {"a-0": 1})
    assert [condition.type for condition in status.conditions] == ["Formed", "Newer"]
    assert [(member.ordinal, str(member.phase)) for member in status.members] == [(0, "Pending"), (1, "Pending")]
    assert status.training is not None and status.training.run_uid == "u" and status.training.window == 0
    assert [refusal.reason for refusal in status.training.refusals] == ["New"]
    assert "phase" in found.left_out and "conditions.1" in found.left_out


def test_a_list_stays_though_without_its_new_items_it_is_too_short_for_a_moment() -> None:
    cohort = run_spec()["cohorts"][0] | {"new": 1}
    found = reading.strict(FdlRunSpec, run_spec(cohorts=[cohort]))
    assert found.value == FdlRunSpec.model_validate(run_spec()) and found.left_out == ("cohorts.0.new",)


@pytest.mark.parametrize("phase", ["Archived", 3, None, {"a": 1}])
def test_no_phase_raises(phase: Any) -> None:
    assert reading.lenient(FdlRunStatus, {"phase": phase}).value.phase is None
    assert reading.lenient(FdlRunStatus, {"phase": "Failed"}).value.phase is RunPhase.FAILED


@pytest.mark.parametrize("content", [3, "x", []])
def test_what_is_no_status_at_all_is_an_error(content: Any) -> None:
    with pytest.raises(ValidationError):
        reading.lenient(FdlClusterStatus, content)


def test_a_list_that_has_become_longer_than_this_release_believes_is_left_out() -> None:
    found = reading.lenient(FdlClusterStatus, {"conditions": [CONDITION | {"type": f"C{n}"} for n in range(33)]})
    assert (found.value, found.left_out) == (FdlClusterStatus(), ("conditions",))


REPORT = '{"node":"n","time":"2030-01-02T03:04:05Z","ready":true,"checks":[%s],"drivers":{"tpu":{"state":"asleep"}}}'


def test_a_report_with_words_of_a_newer_prober_is_a_report() -> None:
    known = '{"name":"clock","severity":"warn","message":"m"}'
    new = '{"name":"x","severity":"grave","message":"m"}'
    found = reading.lenient_text(Report, REPORT % f"{known},{new}")
    assert found is not None and found.ready and not found.drivers
    assert [check.name for check in found.checks] == ["clock"]


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"node":"n"}', '{"node":"n","time":"soon"}', "[" * 100_000])
def test_a_text_that_is_no_report_is_none(text: str) -> None:
    assert reading.lenient_text(Report, text) is None
