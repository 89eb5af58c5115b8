"""Settings from the environment."""

import re
from pathlib import Path

import pytest

from fdl_operator import rbac
from fdl_operator.client import Throttle
from fdl_operator.settings import SettingsError, from_env

ROOT = Path(__file__).parents[3]


def test_an_empty_environment_has_working_defaults() -> None:
    settings = from_env({})
    assert (settings.namespace, settings.image_pull_policy, settings.watch_namespaces) == (
        "fdl-system",
        "IfNotPresent",
        (),
    )


def test_what_the_chart_sets() -> None:
    settings = from_env(
        {
            "FDL_NAMESPACE": "ops",
            "FDL_VARIANTS": '[{"name": "cpu", "vendor": "cpu", "image": "i"}]',
            "FDL_WATCH_NAMESPACES": "a, b",
            "FDL_IMAGE_PULL_SECRETS": "one,two",
            "FDL_COORDINATOR_RESOURCES": '{"limits": {"memory": "1Gi"}}',
            "FDL_FINISH_TIMEOUT_SECONDS": "7",
        }
    )
    assert settings.variants[0]["image"] == "i" and settings.watch_namespaces == ("a", "b")
    assert settings.image_pull_secrets == ("one", "two") and settings.limits.finish_timeout == 7
    assert settings.coordinator_resources == {"limits": {"memory": "1Gi"}}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("FDL_VARIANTS", "{"),
        ("FDL_VARIANTS", "{}"),
        ("FDL_QPS", "many"),
        ("FDL_BURST", "-1"),
        ("FDL_COORDINATOR_RESOURCES", "[]"),
    ],
)
def test_a_value_that_cannot_be_used_is_named(name: str, value: str) -> None:
    with pytest.raises(SettingsError, match=name):
        from_env({name: value})


def test_every_variable_is_in_the_reference_and_no_other() -> None:
    source = (ROOT / "operator/fdl_operator/settings.py").read_text()
    page = (ROOT / "docs/reference/operator-settings.md").read_text()
    used = set(re.findall(r'"(FDL_[A-Z_]+|POD_NAME)"', source))
    told = {
        name
        for line in page.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`((?:FDL_|POD_)[A-Z_]+)`", line.split("|")[1])
    }
    assert used == told


def test_the_operator_asks_for_no_dangerous_right() -> None:
    rights = {(resource, verb) for rule in rbac.CLUSTER_RULES for resource in rule.resources for verb in rule.verbs}
    assert not {pair for pair in rights if pair[0] == "secrets"} - {("secrets", "get"), ("secrets", "create")}
    assert not {verb for _, verb in rights} & {"*", "escalate", "bind", "impersonate", "deletecollection"}
    assert not {resource for resource, _ in rights if "exec" in resource or "finalizers" in resource or resource == "*"}


def test_a_token_bucket_lets_a_burst_through_and_then_the_rate() -> None:
    now = [0.0]
    throttle = Throttle(10, 3, lambda: now[0])
    assert [round(throttle.delay(), 3) for _ in range(5)] == [0, 0, 0, 0.1, 0.2]
    now[0] = 10.0
    assert throttle.available() and throttle.delay() == 0
