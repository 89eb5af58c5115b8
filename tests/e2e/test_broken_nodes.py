"""Faults of nodes from the prober's finding to the placement of members, and back once they are mended."""

from pathlib import Path
from typing import Any

import pytest

from fdl_api import labels
from fdl_api.checks.conditions import finding
from fdl_cli.local import Cluster
from fdl_cli.local.nodespec import parse_node
from tests.e2e.support import build, fleet, nodes
from tests.e2e.support.fleet import label, remedy
from tests.e2e.support.kube import Kube, condition, members, training, until

RED = "name=red,amd=1:gfx942"
VIDEO = 44


@pytest.mark.parametrize(
    ("node", "vendor", "file"), [("red", "amd", "kfd"), ("green", "nvidia", "nvidia1")], ids=["amd", "nvidia"]
)
def test_a_device_file_that_members_cannot_open(
    kube: Kube, cluster: Cluster, namespace: str, node: str, vendor: str, file: str
) -> None:
    """A group alone may open it: the finding names it and the field. Nobody may: no member comes until it is mended."""
    path = f"/run/fdl/driver/{vendor}/dev/{file}"
    seen = cluster.node_path(node, path)
    with nodes.opened_by(seen, 0o660, VIDEO):
        fleet.probe_now(kube, node)
        found = fleet.wait_problem(kube, node, "device-files", f"{path} has mode 0660 and group video (44)")
        assert (found["severity"], found["remedy"]) == ("warning", remedy("device-files", "group-needed"))
        assert "securityContext.supplementalGroups" in found["remedy"]
        assert label(kube, node, labels.READY) == "true"
    with nodes.opened_by(seen, 0):
        fleet.probe_now(kube, node)
        found = fleet.wait_problem(kube, node, "device-files", f"{path} has mode 0000")
        assert (found["severity"], found["remedy"]) == ("error", remedy("device-files", "closed"))
        assert label(kube, node, labels.READY) == "false"
        assert node in fleet.wait_condition(kube, "NodesReady", "False")["message"]
        kube.create(
            namespace, build.digits("shut", cohorts=[{"name": "gpu", "vendor": vendor, "allowSimulated": True}])
        )
        run = kube.wait(namespace, "shut", "it has no place", lambda r: condition(r, "Placeable") != {}, 60)
        told = condition(run, "Placeable")
        assert (told["status"], told["reason"]) == ("False", "NoFittingNode")
        assert f"node {node} has label fdl.dev/ready=false" in told["message"]
        assert kube.pods(namespace, "shut") == []
    fleet.probe_now(kube, node)
    fleet.wait_no_problem(kube, node, "device-files")
    fleet.wait_condition(kube, "NodesReady", "True")
    until(
        f"its member is on {node}",
        lambda: [pod.spec.node_name for pod in kube.pods(namespace, "shut")] == [node],
        60,
        told=lambda: kube.diagnose(namespace, "shut"),
    )


def test_a_disk_that_fills_up_under_a_run(kube: Kube, cluster: Cluster, namespace: str) -> None:
    """The node's finding and the run's condition say it, training goes on, and space makes both well again."""
    path, roomy = fleet.volume_path(kube), "40g"
    with nodes.disk(cluster, "fast", path, roomy) as disk, nodes.claim(kube, namespace, "disk", path):
        (disk.root / fleet.SENTINEL).write_bytes((Path(path) / fleet.SENTINEL).read_bytes())
        try:
            fleet.restart_prober(kube, "fast")
            cohort = {**build.cpu_cohort("fills", 1), "nodeSelector": {"kubernetes.io/hostname": "fast"}}
            checkpoint = {"claim": "disk", "intervalSeconds": 1, "keep": 2}
            kube.create(
                namespace, build.digits("fills", epochs=5000, cohorts=[cohort], data=None, checkpoint=checkpoint)
            )
            wait_durable(kube, namespace, "fills", "True")
            fleet.wait_no_problem(kube, "fast", "disk-space")

            disk.fill("4m")
            fleet.probe_now(kube, "fast")
            found = fleet.wait_problem(kube, "fast", "disk-space", f"{fleet.CHECKPOINTS_PATH}: less than 1 GiB is free")
            assert (found["severity"], found["remedy"]) == ("warning", remedy("disk-space", "full"))
            told = fleet.fdl(cluster, "probe", "--node", "fast")
            assert "disk-space/full" in told.stdout and found["remedy"] in told.stdout, told.stdout
            assert label(kube, "fast", labels.READY) == "true", "who needs no checkpoints there may come"
            run = wait_durable(kube, namespace, "fills", "False")
            assert "CheckpointVolumeFull" in condition(run, "CheckpointDurable")["message"]
            kube.wait_window(namespace, "fills", training(run)["window"] + 3, seconds=60)

            disk.clear(roomy)
            fleet.probe_now(kube, "fast")
            fleet.wait_no_problem(kube, "fast", "disk-space")
            run = wait_durable(kube, namespace, "fills", "True")
            assert [member["incarnation"] for member in members(run)] == [1]
        finally:
            kube.delete_all(namespace)
    fleet.restart_prober(kube, "fast")
    fleet.probe_now(kube, "fast")
    fleet.wait_condition(kube, "SharedVolumeConsistent", "True", "5 nodes see the same content")


def wait_durable(kube: Kube, namespace: str, name: str, status: str) -> dict[str, Any]:
    """Wait until a run's condition CheckpointDurable has a status."""

    def holds(run: dict[str, Any]) -> bool:
        return bool(condition(run, "CheckpointDurable").get("status") == status)

    return kube.wait(namespace, name, f"CheckpointDurable is {status}", holds, 120)


def test_nodes_whose_interfaces_have_different_mtus(kube: Kube, cluster: Cluster, spec: dict[str, Any]) -> None:
    """Each is named with its MTU and with what is to be done, until they have one again."""
    fleet.patch(kube, {"fabric": {"groups": [{"name": "all", "socketInterface": "eth0"}]}})
    cluster.node_set(parse_node("name=red,nvidia=2:sm_90"))
    try:
        fleet.probe_now(kube, *fleet.NODES)
        good = "all 2 nodes with devices have their interface"
        fleet.wait_condition(kube, "FabricKnown", "True", good)
        with fleet.Interface(fleet.prober_pid(cluster, kube, "red"), "eth0").mtu(1400):
            fleet.probe_now(kube, "red")
            found = fleet.wait_condition(kube, "FabricKnown", "False")
            assert found["reason"] == "MtuDiffers"
            entry = finding("FabricKnown", "MtuDiffers")
            assert entry is not None and found["message"].endswith(entry.remedy)
            assert "1400 on red; 1500 on green" in found["message"]
            told = fleet.fdl(cluster, "probe")
            assert "FabricKnown/MtuDiffers" in told.stdout and entry.remedy in told.stdout, told.stdout
        fleet.probe_now(kube, "red")
        fleet.wait_condition(kube, "FabricKnown", "True", good)
    finally:
        cluster.node_set(parse_node(RED))


def test_a_network_that_loses_large_packets_of_one_node(kube: Kube, cluster: Cluster, namespace: str) -> None:
    """The run names the pairs of ranks, the node and the remedy, and trains once the packets arrive."""
    name = "hole"
    # The coordinator's port and the API server's are spared: who is not heard at all could not be told of.
    large = ("-p", "tcp", "-m", "length", "--length", "1300:65535", "-m", "multiport", "!", "--ports", "7337,6443,443")
    with nodes.dropping(cluster, "slow", *large):
        kube.create(namespace, build.digits(name, epochs=2000, cohorts=[build.cpu_cohort(name, 3, one_a_node=True)]))

        def told(run: dict[str, Any]) -> bool:
            return bool(condition(run, "Progressing").get("reason") == "GroupFails")

        message = condition(kube.wait(namespace, name, "the pairs are named", told, 120), "Progressing")["message"]
        assert "small packets arrive, and large ones on the way there do not (MTU)" in message
        assert "All 2 broken pairs are with an end on node slow." in message
        assert remedy("pairs", "large-out") in message
    run = kube.wait_window(namespace, name, 3, seconds=120)
    assert condition(run, "Progressing")["reason"] == "Training"


def test_a_network_plugin_that_stands_still_on_one_node(kube: Kube, cluster: Cluster, namespace: str) -> None:
    """What starts there is open to everybody: found by trying, named with the node, and so is that it is mended."""
    with nodes.cordoned(kube, "medium", "slow"):
        with nodes.hanging(cluster, "fast", "kube-router"):
            cohort = build.cpu_cohort("open", 1)
            kube.create(namespace, build.digits("open", epochs=5000, data=None, cohorts=[cohort]))
            found = fleet.wait_condition(kube, "NetworkPolicyEnforced", "False", " on fast", seconds=120)
            entry = finding("NetworkPolicyEnforced", "PolicyNotEnforced")
            assert found["reason"] == "PolicyNotEnforced"
            assert entry is not None and found["message"].endswith(entry.remedy)
            told = fleet.fdl(cluster, "probe")
            assert "NetworkPolicyEnforced/PolicyNotEnforced" in told.stdout and entry.remedy in told.stdout, told.stdout
            window = training(kube.wait_window(namespace, "open", 1))["window"]
        # It is tried again with the next coordinator.
        (coordinator,) = kube.live_pods(namespace, "open", labels.ROLE_COORDINATOR)
        kube.delete_pod(namespace, coordinator.metadata.name, grace=0)
        fleet.wait_condition(kube, "NetworkPolicyEnforced", "True", seconds=90)
        kube.wait_window(namespace, "open", window + 3)
