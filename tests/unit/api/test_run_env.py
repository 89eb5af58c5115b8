"""What is wrong in the environment that a run gives its members."""

from typing import Any

import pytest

from fdl_api.run import FdlRunSpec
from fdl_api.run_env import found, sentence

IGNORE = {"name": "NCCL_IGNORE_NET_MISMATCH", "value": "1"}
NO_P2P, NO_SHM = {"name": "NCCL_P2P_DISABLE", "value": "1"}, {"name": "NCCL_SHM_DISABLE", "value": "1"}


def spec(*env: dict[str, Any], mode: str = "nccl-sync", cohorts: tuple[dict[str, Any], ...] = ({},)) -> FdlRunSpec:
    """A run; each cohort may give a ``template``: the variables of its trainer in a pod template."""
    listed = []
    for number, cohort in enumerate(cohorts):
        body = {"name": f"c{number}", "vendor": cohort.get("vendor", "nvidia")}
        if "template" in cohort:
            container = {"name": cohort.get("container", "trainer"), "env": cohort["template"]}
            body["podTemplate"] = {"spec": {"containers": [container]}}
        listed.append(body)
    trainer = {"source": {"image": {"path": "/a.py"}}, "env": list(env)}
    return FdlRunSpec.model_validate({"trainer": trainer, "mode": mode, "cohorts": listed})


def reasons(run: FdlRunSpec) -> list[tuple[str, str]]:
    return [(check.reason, check.severity) for check in found(run)]


def test_a_sound_environment_has_nothing() -> None:
    assert found(spec({"name": "NCCL_DEBUG", "value": "INFO"}, {"name": "NCCL_SOCKET_IFNAME", "value": "eth7"})) == ()


def test_a_finding_names_variable_value_place_and_remedy() -> None:
    (check,) = found(spec(IGNORE))
    assert (check.severity, check.persistence) == ("fail", "permanent")
    text = sentence(check)
    assert text.startswith("NCCL_IGNORE_NET_MISMATCH=1 (spec.trainer.env): ")
    assert "Remove NCCL_IGNORE_NET_MISMATCH" in text and text.endswith("(nccl-environment/ignore-mismatch)")


def test_what_does_not_work_comes_before_what_is_slow() -> None:
    assert reasons(
        spec(NO_P2P, NO_SHM, {"name": "NCCL_NET", "value": "IB"}, {"name": "NCCL_IB_DISABLE", "value": "1"})
    ) == [
        ("contradiction", "fail"),
        ("slow-path", "warn"),
    ]


def test_ncclss_variables_count_only_where_nccl_is_used() -> None:
    assert reasons(spec(IGNORE, NO_P2P, NO_SHM, mode="cpu-cadence")) == []
    assert reasons(spec(IGNORE, mode="cpu-sync", cohorts=({"vendor": "cpu"},))) == []


def test_a_template_is_laid_over_the_run_and_is_named() -> None:
    (check,) = found(spec(NO_P2P, cohorts=({"template": [NO_SHM]},)))
    assert (
        "NCCL_P2P_DISABLE=1 (spec.trainer.env) and NCCL_SHM_DISABLE=1 (spec.cohorts[c0].podTemplate)" in check.message
    )
    assert reasons(spec(IGNORE, cohorts=({"template": [{"name": IGNORE["name"], "value": "0"}]},))) == []


def test_what_all_cohorts_share_is_told_once() -> None:
    assert len(found(spec(IGNORE, cohorts=({}, {})))) == 1
    assert len(found(spec(cohorts=({"template": [IGNORE]}, {"template": [IGNORE]})))) == 2


def test_another_container_of_a_template_is_no_member() -> None:
    assert reasons(spec(cohorts=({"template": [IGNORE], "container": "sidecar"},))) == []


@pytest.mark.parametrize("mode", ["nccl-sync", "cpu-cadence"])
def test_devices_that_a_template_hides_count_in_all_modes(mode: str) -> None:
    hidden = [{"name": "ROCR_VISIBLE_DEVICES", "value": "0"}]
    assert reasons(spec(mode=mode, cohorts=({"vendor": "amd", "template": hidden},))) == [("visible-devices", "warn")]


def test_what_members_set_themselves_is_part_of_it() -> None:
    """Members switch NVLink multicast off, so that asking for nothing else cannot work."""
    (check,) = found(spec({"name": "NCCL_ALGO", "value": "NVLS"}))
    assert "NCCL_NVLS_ENABLE=0 (fdl's own)" in check.message
    assert found(spec({"name": "NCCL_ALGO", "value": "NVLS"}, {"name": "NCCL_NVLS_ENABLE", "value": "1"})) == ()


def test_values_from_elsewhere_are_not_judged() -> None:
    source = {"configMapKeyRef": {"name": "m", "key": "k"}}
    assert found(spec({"name": "NCCL_IGNORE_NET_MISMATCH", "valueFrom": source})) == ()
    assert found(spec({"name": "NCCL_ALGO", "value": "NVLS"}, {"name": "NCCL_NVLS_ENABLE", "valueFrom": source})) == ()
    overlaid = [{"name": "NCCL_IGNORE_NET_MISMATCH", "valueFrom": source}]
    assert found(spec(IGNORE, cohorts=({"template": overlaid},))) == ()


def test_an_empty_variable_is_unset() -> None:
    assert found(spec({"name": "NCCL_IGNORE_NET_MISMATCH"})) == ()


@pytest.mark.parametrize(
    "content", [{}, {"spec": 3}, {"spec": {"containers": [3, {"env": 4}, {"name": "trainer", "env": [5, {}]}]}}]
)
def test_a_template_may_hold_anything(content: dict[str, Any]) -> None:
    run = FdlRunSpec.model_validate(
        {
            "trainer": {"source": {"image": {"path": "/a.py"}}},
            "mode": "nccl-sync",
            "cohorts": [{"name": "a", "vendor": "nvidia", "podTemplate": content}],
        }
    )
    assert found(run) == ()
