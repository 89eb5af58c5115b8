"""Every key of floDl is carried over, which shows in the manifests, or named with what does its work here."""

import copy
from typing import Any

import pytest
import yaml

from fdl_api import legacy
from fdl_cli.convert.audit import TYPES, Finding, audit
from fdl_cli.convert.build import Wishes, build
from fdl_cli.convert.keys import BLOCKS, KEYS, Key
from fdl_cli.convert.source import parse

BASE: dict[str, Any] = {
    "cluster": {
        "controller": {"host": "10.0.0.1", "path": "/opt/x"},
        "workers": [{"host": "a", "local_devices": [0], "arch": "precompiled/cu128"}],
    },
    "commands": {"train": {"cluster": True}},
}
SAMPLES: dict[str, Any] = {
    "text": "x",
    "integer": 7,
    "number": 0.25,
    "flag": True,
    "texts": ["x"],
    "integers": [0, 1],
    "numbers": [1.0],
    "devices": [0, 1, 2],
    "anchor": 20,
    "progressive": "auto",
    "ssh": {"target": "x"},
    "env": {"NAME": "x"},
    "map": {},
    "maps": [{"host": "b", "local_devices": [0, 1]}],
    "any": {"model": "x"},
}
"""A value of each kind that differs from the base and from every default."""
SPECIAL: dict[str, Any] = {
    "mode": "cpu_async",
    "policy": "sync",
    "backend": "cpu",
    "start": "manual",
    "arch": "builds/sm61-sm120",
    "data_path": "/data",
    "min_rank_start": 1,
}
"""Values of keys for which just any text will not do."""
BIG = {"cluster.controller.join.min_rank_start", "cluster.controller.join.target_ranks"}
"""They count ranks, so they need a cohort in which ranks and members differ."""


def sample(key: Key) -> Any:
    return SPECIAL.get(key.path.rpartition(".")[2], SAMPLES[key.kind])


def with_key(key: Key, value: Any, base: dict[str, Any] = BASE) -> dict[str, Any]:
    """The base with one key more, in the first item of lists and in the command."""
    tree = copy.deepcopy(base)
    *above, last = key.path.replace("*", "train").split(".")
    block = tree
    for step in above:
        if step.endswith("[]"):
            items = block.setdefault(step[:-2], [{}])
            block = items[0]
        else:
            if not isinstance(block.get(step), dict):
                block[step] = {}
            block = block[step]
    block[last] = value
    return tree


def findings(tree: dict[str, Any]) -> list[Finding]:
    return audit(parse(yaml.safe_dump(tree, sort_keys=False), "f.yml")).findings


def objects(tree: dict[str, Any]) -> list[dict[str, Any]]:
    return build(audit(parse(yaml.safe_dump(tree, sort_keys=False), "f.yml")).tree, Wishes()).objects


def told(key: Key, tree: dict[str, Any]) -> Finding:
    found = [each for each in findings(tree) if each.key == key.path]
    assert len(found) == 1, found
    return found[0]


NONE = [key for key in KEYS.values() if not key.became and key.path not in BLOCKS]
CARRIED = [key for key in KEYS.values() if key.became]


@pytest.mark.parametrize("key", NONE, ids=lambda key: key.path)
def test_a_key_without_a_counterpart_is_named_with_what_does_its_work(key: Key) -> None:
    finding = told(key, with_key(key, sample(key)))
    assert (finding.verdict, finding.text, finding.legacy) == ("none", key.instead, key.legacy)
    assert len(finding.text) > 20 and not finding.text.endswith(".")


def base_for(key: Key) -> dict[str, Any]:
    base = copy.deepcopy(BASE)
    if key.path in BIG:
        base["cluster"]["workers"].append({"host": "b", "local_devices": [0]})
    if key.path.startswith("cluster.hosts[]."):
        base["cluster"]["hosts"] = [{"name": "b", "local_devices": [0]}]
    return base


def without(key: Key) -> dict[str, Any]:
    base = base_for(key)
    if key.path == "cluster.workers":
        base["cluster"]["workers"] = []
    if key.path == "cluster.workers[].host":
        del base["cluster"]["workers"][0]["host"]
    if key.path == "commands.*.cluster":
        base["commands"]["train"] = {"training": {"epochs": 3}}
    return base


NAMES = {f"cluster.{parent}[].{key}" for parent in ("workers", "hosts") for key in ("host", "name")}
"""A host is one member whatever it is called."""


@pytest.mark.parametrize("key", CARRIED, ids=lambda key: key.path)
def test_a_key_that_is_carried_over_shows_in_the_manifests(key: Key) -> None:
    tree = with_key(key, sample(key), without(key))
    finding = told(key, tree)
    assert (finding.verdict, finding.text, finding.legacy) == ("carried", key.became, key.legacy)
    if key.path not in NAMES:
        assert objects(tree) != objects(without(key))


@pytest.mark.parametrize("key", NONE, ids=lambda key: key.path)
def test_a_key_without_a_counterpart_changes_nothing(key: Key) -> None:
    if key.path.endswith("[].ranks"):
        return  # counts the devices of a host that does not list them: see test_build
    assert objects(with_key(key, sample(key), base_for(key))) == objects(base_for(key))


@pytest.mark.parametrize("key", legacy.SPEC, ids=lambda key: key.key)
def test_what_the_api_server_refuses_by_name_is_told_here_in_the_same_words(key: legacy.LegacyKey) -> None:
    if key.key == "hosts":
        assert KEYS["cluster.hosts"].legacy and "spec.cohorts" in KEYS["cluster.hosts"].became
        return
    path = f"cluster.{key.key}" if f"cluster.{key.key}" in KEYS else f"cluster.workers[].{key.key}"
    assert KEYS[path].legacy and KEYS[path].instead == key.instead


@pytest.mark.parametrize("key", legacy.COHORT, ids=lambda key: key.key)
def test_old_keys_of_a_host_are_told_in_the_same_words(key: legacy.LegacyKey) -> None:
    for parent in ("cluster.workers[]", "cluster.hosts[]"):
        assert KEYS[f"{parent}.{key.key}"].instead == key.instead


WRONG: dict[str, Any] = {kind: 3 if kind not in ("integer", "number", "anchor") else [1] for kind in TYPES}


@pytest.mark.parametrize(
    "key", [key for key in KEYS.values() if key.kind != "any" and key.path != "cluster"], ids=lambda key: key.path
)
def test_a_value_of_the_wrong_type_is_left_out_with_its_line(key: Key) -> None:
    tree = with_key(key, WRONG[key.kind])
    found = [each for each in findings(tree) if each.verdict == "wrong"]
    assert len(found) == 1 and found[0].path.rpartition(".")[2] == key.path.rpartition(".")[2]
    assert TYPES[key.kind][0] in found[0].text and found[0].place.startswith("f.yml:")


@pytest.mark.parametrize(
    "key", [key for key in NONE + CARRIED if key.path != "commands.*.cluster"], ids=lambda key: key.path
)
def test_an_empty_value_means_the_default(key: Key) -> None:
    tree = with_key(key, None, base_for(key))
    assert told(key, tree).text == "is empty, which means floDl's default"
