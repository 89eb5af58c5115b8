"""The chart's values: the file, the model and the schema say the same, and a misspelt key is refused everywhere."""

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from fdl_operator import rbac
from tools.generate import chart

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "charts" / "fdl"
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
FREE = {"env", "nodeSelector", "affinity", "podLabels", "podAnnotations", "requests", "limits", "global"}
"""Values whose keys are the user's own."""


def objects(node: Any, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Paths of all objects whose keys fdl defines."""
    if isinstance(node, dict):
        yield path
        for key, child in node.items():
            if key not in FREE:
                yield from objects(child, (*path, key))
    elif isinstance(node, list):
        for index, child in enumerate(node):
            yield from objects(child, (*path, index))


def with_key(path: tuple[str | int, ...], key: str) -> dict[str, Any]:
    """The values with one more key at a path."""
    changed: Any = copy.deepcopy(VALUES)
    here = changed
    for part in path:
        here = here[part]
    here[key] = True
    return changed  # type: ignore[no-any-return]


def test_the_file_has_exactly_the_defaults_of_the_model() -> None:
    assert chart.defaults() == VALUES


def test_the_schema_takes_the_defaults() -> None:
    jsonschema.validate(VALUES, SCHEMA)


@pytest.mark.parametrize("path", list(objects(VALUES)), ids=lambda path: ".".join(map(str, path)) or "top")
def test_a_misspelt_key_is_refused_by_name(path: tuple[str | int, ...]) -> None:
    with pytest.raises(jsonschema.ValidationError, match="tolerationz"):
        jsonschema.validate(with_key(path, "tolerationz"), SCHEMA)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("operator", "replicas", 3),
        ("operator", "replicas", "1"),
        ("operator", "logLevel", "verbose"),
        ("prober", "periodSeconds", 0),
        ("prober", "driverRoot", "run/nvidia"),
        ("image", "pullPolicy", "Sometimes"),
    ],
)
def test_a_value_out_of_bounds_is_refused(section: str, key: str, value: object) -> None:
    changed = copy.deepcopy(VALUES)
    changed[section][key] = value
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(changed, SCHEMA)


def test_a_crd_in_the_chart_is_kept_on_uninstall_and_otherwise_the_generated_one() -> None:
    for source in (ROOT / "crds").glob("*.yaml"):
        lines = (CHART / "templates" / "crds" / source.name).read_text().splitlines()
        copied = yaml.safe_load("\n".join(line for line in lines if not line.startswith("{{")))
        assert copied["metadata"]["annotations"].pop("helm.sh/resource-policy") == "keep"
        original = yaml.safe_load(source.read_text())
        original["metadata"].setdefault("annotations", {})
        assert copied == original


def test_a_crd_that_helm_would_expand_is_refused() -> None:
    with pytest.raises(ValueError, match="Helm would expand"):
        chart.crd_template("metadata: {name: x}\n# {{ .Values }}\n")


def test_the_operators_roles_are_those_of_its_own_list() -> None:
    text = (CHART / "templates" / "operator-rbac.yaml").read_text()
    plain = re.sub(r'\{\{ include "fdl.fullname" \. \}\}', "fdl", text)
    plain = "\n".join(line for line in plain.splitlines() if "{{" not in line)
    roles = {item["kind"]: item["rules"] for item in yaml.safe_load_all(plain) if "rules" in item}
    assert by_what(roles["ClusterRole"]) == by_what([rule.render() for rule in rbac.CLUSTER_RULES])
    assert by_what(roles["Role"]) == by_what([rule.render() for rule in rbac.namespace_rules("fdl-operator")])


def test_the_right_to_taint_is_a_role_of_its_own_that_has_to_be_asked_for() -> None:
    text = (CHART / "templates" / "operator-taints.yaml").read_text()
    assert text.splitlines()[0] == "{{- if .Values.operator.taintNodes }}" and not VALUES["operator"]["taintNodes"]
    plain = "\n".join(line for line in text.splitlines() if "{{" not in line)
    rules = next(item["rules"] for item in yaml.safe_load_all(plain) if "rules" in item)
    assert by_what(rules) == by_what([rule.render() for rule in rbac.TAINT_RULES])


def by_what(rules: list[dict[str, Any]]) -> dict[tuple[Any, ...], set[str]]:
    """Verbs by (group, resource, names), so that the order and the grouping of rules do not matter."""
    found: dict[tuple[Any, ...], set[str]] = {}
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                key = (group, resource, *rule.get("resourceNames", []))
                found.setdefault(key, set()).update(rule["verbs"])
    return found
