"""What the FdlRun model takes, gives back and refuses without an API server."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fdl_api.run import Cohort, FdlRun, FdlRunStatus, MemberStatus, Mode, RunPhase

SMALLEST: dict[str, Any] = {
    "apiVersion": "fdl.dev/v1alpha1",
    "kind": "FdlRun",
    "metadata": {"name": "digits", "namespace": "team"},
    "spec": {
        "trainer": {"source": {"configMap": {"name": "digits"}}},
        "cohorts": [{"name": "cpu", "vendor": "cpu"}],
    },
}


def changed(path: str, value: Any) -> dict[str, Any]:
    """The smallest run with one value set; numbers in the path are list indices."""
    manifest = copy.deepcopy(SMALLEST)
    *steps, last = path.split(".")
    at: Any = manifest
    for step in steps:
        at = at[int(step)] if step.isdigit() else at.setdefault(step, {})
    at[last] = value
    return manifest


def test_the_smallest_run_has_the_documented_defaults() -> None:
    run = FdlRun.model_validate(SMALLEST)
    assert run.spec.mode is Mode.CPU_CADENCE
    assert run.spec.trainer.source.config_map is not None
    assert run.spec.trainer.source.config_map.key == "train.py"
    assert (run.spec.join.min_members, run.spec.join.cap_seconds) == (1, 600)
    assert (run.spec.elche.anchor, run.spec.elche.max_anchor, run.spec.elche.overhead_target) == (10, 1000, 0.05)
    assert run.spec.checkpoint is None
    assert run.status.phase is None


@pytest.mark.parametrize(
    "path,value",
    [
        ("spec.mode", "cpu-fast"),
        ("spec.cohorts", []),
        ("spec.cohorts.0.vendor", "intel"),
        ("spec.cohorts.0.name", "Big"),
        ("spec.cohorts.0.name", "two-words"),
        ("spec.cohorts.0.name", "a" * 21),
        ("spec.cohorts.0.replicas", -1),
        ("spec.cohorts.0.replicas", 1001),
        ("spec.cohorts.0.devicesPerReplica", 0),
        ("spec.cohorts.0.resources", {"limits": {"memory": "2 GB"}}),
        ("spec.join.minMembers", 0),
        ("spec.elche.anchor", 0),
        ("spec.elche.overheadTarget", 0.6),
        ("spec.checkpoint", {"claim": "c", "keep": 0}),
        ("spec.checkpoint", {"claim": ""}),
        ("spec.data.mountPath", "relative/path"),
        ("spec.data.sentinel", "/absolute"),
        ("spec.failurePolicy.onExceeded", "Panic"),
        ("spec.runPolicy.cleanPodPolicy", "Some"),
        ("spec.trainer.env", [{"name": "1ST", "value": "x"}]),
        ("spec.trainer.source.image", {}),
        ("spec.cohort", []),
        ("spec.runPolicy.suspended", True),
    ],
)
def test_a_bad_value_is_refused_with_its_place(path: str, value: Any) -> None:
    with pytest.raises(ValidationError) as refused:
        FdlRun.model_validate(changed(path, value))
    places = [".".join(str(step) for step in error["loc"]) for error in refused.value.errors()]
    assert any(place.startswith(path) for place in places), places


@pytest.mark.parametrize("key", ["master_addr", "master_port", "hosts", "ranks", "libtorch_path", "ssh_target"])
def test_a_legacy_key_is_refused_by_name_with_its_successor(key: str) -> None:
    with pytest.raises(ValidationError, match=rf"spec\.{key}: is a key of floDl, not of FdlRun; \w+"):
        FdlRun.model_validate(changed(f"spec.{key}", "x"))


def test_a_legacy_key_of_a_host_is_refused_in_a_cohort() -> None:
    with pytest.raises(ValidationError, match=r"spec\.cohorts\[\]\.libtorch_path: .*spec\.cohorts\[\]\.variant"):
        FdlRun.model_validate(changed("spec.cohorts.0.libtorch_path", "/opt"))


def test_a_pod_template_is_kept_as_it_is() -> None:
    overlay = {"metadata": {"labels": {"team": "x"}}, "spec": {"containers": [{"name": "trainer", "snake_case": 1}]}}
    run = FdlRun.model_validate(changed("spec.cohorts.0.podTemplate", overlay))
    assert run.to_dict()["spec"]["cohorts"][0]["podTemplate"] == overlay


def test_metadata_that_fdl_does_not_know_is_kept() -> None:
    run = FdlRun.model_validate(changed("metadata.finalizers", ["example.com/x"]))
    assert run.to_dict()["metadata"]["finalizers"] == ["example.com/x"]


def test_python_names_and_api_names_build_the_same_cohort() -> None:
    by_python = Cohort(name="a", vendor="nvidia", min_replicas=1, max_replicas=4, replicas=2)
    by_api = Cohort.model_validate({"name": "a", "vendor": "nvidia", "minReplicas": 1, "maxReplicas": 4, "replicas": 2})
    assert by_python == by_api
    assert by_api.ceiling == 4
    assert Cohort.model_validate({"name": "a", "vendor": "cpu", "replicas": 3}).ceiling == 3


@given(
    replicas=st.one_of(st.none(), st.integers(0, 10000)),
    cohorts=st.lists(
        st.builds(
            dict,
            name=st.from_regex(r"\A[a-z][a-z0-9]{0,19}\Z"),
            vendor=st.sampled_from(["nvidia", "amd", "cpu"]),
            replicas=st.integers(0, 1000),
            allowSimulated=st.booleans(),
            nodeSelector=st.dictionaries(st.text("ab/.", min_size=1), st.text("xy", max_size=5), max_size=3),
        ),
        min_size=1,
        max_size=4,
    ),
    failures=st.one_of(st.none(), st.integers(1, 99), st.just("50%")),
    target=st.floats(0.01, 0.5),
)
def test_a_run_comes_back_from_its_manifest_unchanged(
    replicas: int | None, cohorts: list[dict[str, Any]], failures: int | str | None, target: float
) -> None:
    manifest = copy.deepcopy(SMALLEST)
    manifest["spec"] |= {"cohorts": cohorts, "elche": {"overheadTarget": target}}
    if replicas is not None:
        manifest["spec"]["replicas"] = replicas
    if failures is not None:
        manifest["spec"]["failurePolicy"] = {"maxFailures": failures}
    run = FdlRun.model_validate(manifest)
    assert FdlRun.model_validate(run.to_dict()) == run
    assert FdlRun.model_validate_json(run.model_dump_json(by_alias=True)) == run


def test_a_status_of_a_newer_release_is_readable() -> None:
    status = FdlRunStatus.model_validate(
        {
            "phase": "Running",
            "later": 1,
            "members": [{"name": "m", "cohort": "cpu", "ordinal": 0, "incarnation": 1, "x": 2}],
        }
    )
    assert status.members == (MemberStatus(name="m", cohort="cpu", ordinal=0, incarnation=1),)
    assert "later" not in status.to_dict()


def test_the_run_uid_is_spelled_as_in_the_api_conventions() -> None:
    status = FdlRunStatus.model_validate({"training": {"runUID": "u"}})
    assert status.training is not None
    assert status.training.run_uid == "u"
    assert status.to_dict()["training"]["runUID"] == "u"


def test_only_succeeded_and_failed_are_terminal() -> None:
    assert {phase for phase in RunPhase if phase.is_terminal} == {RunPhase.SUCCEEDED, RunPhase.FAILED}


def test_modes_know_their_kind() -> None:
    assert {mode for mode in Mode if mode.is_sync} == {Mode.CPU_SYNC, Mode.NCCL_SYNC}
    assert {mode for mode in Mode if mode.is_nccl} == {Mode.NCCL_SYNC, Mode.NCCL_CADENCE}
