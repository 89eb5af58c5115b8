"""The generated CRDs are structural, complete and in step with the models."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fdl_api import crd
from fdl_api.model import MUTABLE_KEY, VALIDATIONS

ROOT = Path(__file__).parents[3]
CRDS = {"FdlRun": crd.run_crd(), "FdlCluster": crd.cluster_crd()}


def root(kind: str) -> dict[str, Any]:
    schema: dict[str, Any] = CRDS[kind]["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def walk(schema: dict[str, Any], path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    yield path, schema
    for name, child in schema.get("properties", {}).items():
        yield from walk(child, f"{path}.{name}")
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[]")
    if "additionalProperties" in schema:
        yield from walk(schema["additionalProperties"], f"{path}{{}}")


def nodes(kind: str, part: str) -> list[tuple[str, dict[str, Any]]]:
    return list(walk(root(kind)["properties"][part], part))


REFUSED = tuple(path for path, schema in nodes("FdlRun", "spec") if schema.get("description", "").startswith("Refused"))
"""Paths of floDl's old keys, which are declared only to be refused."""

WAYS_OUT = {
    "set",
    "use",
    "lower",
    "raise",
    "remove",
    "rename",
    "shorten",
    "give",
    "leave",
    "list",
    "correct",
    "undo",
    "edit",
    "cordon",
}
"""First words of the remedies."""

PARTS = [(kind, part) for kind in CRDS for part in ("spec", "status")]


def test_files_and_reference_pages_are_what_the_models_say() -> None:
    assert crd.stale(crd.generated(ROOT / "crds", ROOT / "docs" / "reference")) == []


def test_a_difference_is_found_and_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(tmp_path / "crds"), "--docs", str(tmp_path / "docs")]
    assert crd.main(["--write", *arguments]) == 0
    assert crd.main(["--check", *arguments]) == 0
    changed = tmp_path / "crds" / "fdlruns.yaml"
    changed.write_text(changed.read_text() + "# edited\n")
    (tmp_path / "docs" / "fdlcluster.md").unlink()
    assert crd.main(["--check", *arguments]) == 1
    said = capsys.readouterr().err
    assert "fdlruns.yaml: differs" in said
    assert "fdlcluster.md: differs" in said
    assert "fdlclusters.yaml" not in said


@pytest.mark.parametrize(("kind", "part"), PARTS)
def test_every_field_has_a_type_and_a_description(kind: str, part: str) -> None:
    bare = [
        path
        for path, schema in nodes(kind, part)
        if "type" not in schema and not schema.get("x-kubernetes-int-or-string")
    ]
    assert bare == []
    mute = [path for path, schema in nodes(kind, part) if path[-1] not in "]}" and not schema.get("description")]
    assert mute == []


@pytest.mark.parametrize(("kind", "part"), PARTS)
def test_every_string_list_map_and_number_in_a_spec_is_bounded(kind: str, part: str) -> None:
    def bounded(schema: dict[str, Any]) -> bool:
        kind_of = schema.get("type")
        if kind_of == "string":
            return "maxLength" in schema or "enum" in schema or schema.get("format") == "date-time"
        if kind_of == "array":
            return "maxItems" in schema
        if kind_of == "object":
            return "additionalProperties" not in schema or "maxProperties" in schema
        return True

    assert [path for path, schema in nodes(kind, part) if not bounded(schema)] == []


@pytest.mark.parametrize("kind", CRDS)
def test_numbers_of_a_spec_have_both_bounds(kind: str) -> None:
    open_ended = [
        path
        for path, schema in nodes(kind, "spec")
        if schema.get("type") in ("integer", "number")
        and not {"minimum", "maximum"} <= set(schema)
        and not any(path.startswith(old) for old in REFUSED)
    ]
    assert open_ended == []


@pytest.mark.parametrize("kind", CRDS)
def test_a_field_without_default_that_is_not_required_says_what_unset_means(kind: str) -> None:
    """Lists, maps and groups are empty when unset; a scalar has to say it."""
    silent = []
    for path, schema in nodes(kind, "spec"):
        for name, child in schema.get("properties", {}).items():
            if name in schema.get("required", ()) or "default" in child or child.get("type") in ("array", "object"):
                continue
            text = child["description"]
            if "unset" not in text and "Not available" not in text and not text.startswith("Refused"):
                silent.append(f"{path}.{name}")
    assert silent == []


@pytest.mark.parametrize(("kind", "part"), PARTS)
def test_schemas_have_nothing_that_kubernetes_does_not_know(kind: str, part: str) -> None:
    unknown = {"title", "$ref", "$defs", "const", "oneOf", "allOf", "prefixItems", "propertyNames", MUTABLE_KEY}
    assert [path for path, schema in nodes(kind, part) if unknown & set(schema)] == []
    assert [
        path for path, schema in nodes(kind, part) if "anyOf" in schema and "x-kubernetes-int-or-string" not in schema
    ] == []


@pytest.mark.parametrize("kind", CRDS)
def test_a_status_has_no_defaults(kind: str) -> None:
    assert [path for path, schema in nodes(kind, "status") if "default" in schema] == []


@pytest.mark.parametrize("kind", CRDS)
def test_every_rule_names_a_field_and_a_way_out(kind: str) -> None:
    for rule in crd.rules_of(CRDS[kind]):
        field, _, sentence = rule["message"].partition(": ")
        assert field.startswith(("spec.", "metadata.")), rule["message"]
        assert " " not in field, rule["message"]
        imperative = sentence.split("; ")[-1].split(" ")[0].rstrip(":,")
        assert imperative in WAYS_OUT, rule["message"]


def test_only_what_is_said_to_be_mutable_has_no_transition_rule() -> None:
    frozen = {rule["message"].split(":")[0] for rule in crd.rules_of(CRDS["FdlRun"]) if "oldSelf" in rule["rule"]}
    assert "spec.cohorts" in frozen, "cohorts must not come or go"
    frozen.remove("spec.cohorts")
    leaves = [
        path
        for path, schema in nodes("FdlRun", "spec")
        if not {"properties", "items", "additionalProperties"} & set(schema)
        and not any(path.startswith(old) for old in REFUSED)
    ]
    free = [
        path
        for path in leaves
        if not any(path == top or path.startswith((f"{top}.", f"{top}[", f"{top}{{")) for top in frozen)
    ]
    assert free == [
        "spec.replicas",
        "spec.cohorts[].name",
        "spec.cohorts[].replicas",
        "spec.cohorts[].minReplicas",
        "spec.cohorts[].maxReplicas",
        "spec.runPolicy.suspend",
        "spec.runPolicy.ttlSecondsAfterFinished",
        "spec.runPolicy.activeDeadlineSeconds",
        "spec.runPolicy.startupDeadlineSeconds",
        "spec.runPolicy.allowFreshStart",
    ]


def test_mutable_fields_say_so() -> None:
    saying = {path for path, schema in nodes("FdlRun", "spec") if "May be changed" in schema.get("description", "")}
    assert len(saying) == 9
    assert all(
        "oldSelf" not in str(schema.get(VALIDATIONS)) for path, schema in nodes("FdlRun", "spec") if path in saying
    )


def test_columns_scale_and_names() -> None:
    spec = CRDS["FdlRun"]["spec"]
    assert [column["name"] for column in spec["versions"][0]["additionalPrinterColumns"]] == [
        "Phase",
        "Mode",
        "Members",
        "Progress",
        "Goodput",
        "Reason",
        "Age",
        "Message",
    ]
    assert spec["names"]["shortNames"] == ["fdr"]
    assert spec["scope"] == "Namespaced"
    assert spec["versions"][0]["subresources"]["scale"] == {
        "specReplicasPath": ".spec.replicas",
        "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    }
    cluster = CRDS["FdlCluster"]["spec"]
    assert (cluster["names"]["shortNames"], cluster["scope"]) == (["fdc"], "Cluster")


def test_columns_and_scale_point_at_fields_that_exist() -> None:
    for kind, manifest in CRDS.items():
        version = manifest["spec"]["versions"][0]
        scale = version["subresources"].get("scale", {})
        paths = [column["jsonPath"] for column in version["additionalPrinterColumns"]] + list(scale.values())
        known = {f".{path}" for part in ("spec", "status") for path, _ in nodes(kind, part)} | {
            ".metadata.creationTimestamp"
        }
        assert set(paths) <= known


@pytest.mark.parametrize("kind", CRDS)
def test_field_paths_of_rules_exist(kind: str) -> None:
    for _, schema in walk(root(kind), ""):
        for rule in schema.get(VALIDATIONS, ()):
            at = schema
            for step in rule.get("fieldPath", "").split(".")[1:]:
                assert step in at["properties"], rule
                at = at["properties"][step]
