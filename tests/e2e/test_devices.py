"""Nodes with simulated accelerators: labelled like real ones, marked as simulated, used only on request."""

import json
from typing import Any

import pytest

from fdl_cli.local import Cluster
from fdl_cli.local.nodespec import parse_node
from tests.e2e.support import build
from tests.e2e.support.kube import Kube, condition, until

GREEN = {
    "fdl.dev/gpu-vendor": "nvidia",
    "fdl.dev/gpu-arch": "sm_90",
    "fdl.dev/vendor.nvidia": "true",
    "fdl.dev/count.nvidia": "2",
    "fdl.dev/arch.sm_90": "true",
    "fdl.dev/variant.cuda": "simulated",
    "fdl.dev/simulated": "true",
    "fdl.dev/ready": "true",
}
RED = {
    "fdl.dev/gpu-vendor": "amd",
    "fdl.dev/gpu-arch": "gfx942",
    "fdl.dev/vendor.amd": "true",
    "fdl.dev/count.amd": "1",
    "fdl.dev/arch.gfx942": "true",
    "fdl.dev/variant.rocm": "simulated",
    "fdl.dev/simulated": "true",
    "fdl.dev/ready": "true",
}
PLAIN = {"fdl.dev/gpu-vendor": "none", "fdl.dev/ready": "true"}


def node_labels(kube: Kube, name: str) -> dict[str, str]:
    """fdl's labels of a node."""
    found = kube.core.read_node(name).metadata.labels
    return {key: value for key, value in found.items() if key.startswith("fdl.dev/")}


def has(kube: Kube, name: str, wanted: dict[str, str]) -> bool:
    """Whether a node has all of these labels."""
    found = node_labels(kube, name)
    return all(found.get(key) == value for key, value in wanted.items())


@pytest.mark.parametrize(("node", "wanted"), [("green", GREEN), ("red", RED), ("fast", PLAIN)])
def test_a_node_is_labelled_by_what_it_has(kube: Kube, node: str, wanted: dict[str, str]) -> None:
    """All labels of the design, and a report that says when and from what."""
    until(f"{node} is labelled {wanted}", lambda: has(kube, node, wanted), 90)
    assert "verified" not in node_labels(kube, node).values() or node == "fast"
    report = json.loads(kube.core.read_node(node).metadata.annotations["fdl.dev/report"])
    assert report
    assert "fdl.dev/simulated" not in node_labels(kube, "fast")


def test_labels_follow_the_hardware(kube: Kube, cluster: Cluster) -> None:
    """The devices of a node change: its labels follow, and those of the old devices go; other labels are left alone."""
    kube.core.patch_node("green", {"metadata": {"labels": {"example.org/mine": "kept"}}})
    until("green is labelled", lambda: has(kube, "green", GREEN), 90)
    cluster.node_set(parse_node("name=green,nvidia=1:sm_80"))
    try:
        wanted = {"fdl.dev/count.nvidia": "1", "fdl.dev/gpu-arch": "sm_80", "fdl.dev/arch.sm_80": "true"}
        until("green is labelled anew", lambda: has(kube, "green", wanted), 90)
        assert "fdl.dev/arch.sm_90" not in node_labels(kube, "green")
        assert kube.core.read_node("green").metadata.labels["example.org/mine"] == "kept"
    finally:
        cluster.node_set(parse_node("name=green,nvidia=2:sm_90"))
    until("green is labelled as before", lambda: has(kube, "green", GREEN), 90)
    assert "fdl.dev/arch.sm_80" not in node_labels(kube, "green")


def test_the_cluster_object_shows_every_node(kube: Kube) -> None:
    """FdlCluster/default: a row a node, written by the operator."""

    def rows() -> dict[str, Any]:
        found = kube.custom.get_cluster_custom_object("fdl.dev", "v1alpha1", "fdlclusters", "default")
        return {node["name"]: node for node in found.get("status", {}).get("nodes", [])}

    until("five nodes are in the status", lambda: set(rows()) >= {"fast", "medium", "slow", "green", "red"}, 90)
    until(
        "green's row is right",
        lambda: rows()["green"].get("vendor") == "nvidia" and rows()["green"]["devices"] == 2,
        60,
    )
    assert rows()["green"]["simulated"]
    assert rows()["red"]["vendor"] == "amd"
    assert rows()["red"]["archs"] == ["gfx942"]
    assert rows()["fast"]["vendor"] == "none"


def test_a_cohort_without_a_fitting_node_is_told_what_each_node_lacks(kube: Kube, namespace: str) -> None:
    """vendor nvidia without allowSimulated: no pod is made, and the condition names label and node."""
    kube.create(namespace, build.digits("picky", cohorts=[{"name": "gpu", "vendor": "nvidia"}]))

    def told(run: dict[str, Any]) -> bool:
        return condition(run, "Placeable").get("status") == "False"

    run = kube.wait(namespace, "picky", "Placeable is False", told, 60)
    found = condition(run, "Placeable")
    assert found["reason"] == "NoFittingNode"
    assert "node fast lacks label fdl.dev/vendor.nvidia=true" in found["message"]
    assert "node green has label fdl.dev/variant.cuda=simulated" in found["message"]
    assert kube.pods(namespace, "picky") == []


def test_a_mixed_run_of_simulated_vendors(kube: Kube, namespace: str) -> None:
    """One cohort a vendor with allowSimulated: each lands on its own vendor's node, and they train together."""
    cohorts = [
        {"name": "green", "vendor": "nvidia", "allowSimulated": True},
        {"name": "red", "vendor": "amd", "allowSimulated": True},
    ]
    kube.create(namespace, build.digits("mixed", epochs=4, cohorts=cohorts))
    run = kube.wait_phase(namespace, "mixed", "Succeeded", seconds=240)
    placed = {pod.metadata.labels["fdl.dev/cohort"]: pod.spec.node_name for pod in kube.pods(namespace, "mixed")}
    assert placed == {"green": "green", "red": "red"}
    assert run["status"]["coordinator"]["node"] in ("fast", "medium", "slow"), "it went to a node with devices"
    assert {member["variant"] for member in run["status"]["members"]} == {"cuda", "rocm"}
