"""Nodes that are broken for real, from outside: FdlCluster, labels and commands say it until they are mended."""

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from fdl_api import labels
from fdl_cli.local import Cluster
from fdl_cli.local.nodespec import parse_node
from tests.e2e.support import build, faults, fleet
from tests.e2e.support.fleet import label, remedy
from tests.e2e.support.kube import Kube, members, training, until

GREEN, RED = "name=green,nvidia=2:sm_90", "name=red,amd=1:gfx942"
LIBRARY = "/run/fdl/driver/nvidia/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
TOPOLOGY = "/run/fdl/driver/amd/sys/class/kfd/kfd/topology/nodes/1/properties"


def test_a_checkpoint_volume_that_one_node_cannot_write_keeps_members_off(kube: Kube, cluster: Cluster) -> None:
    """Read-only on one node: an error there with its remedy, not ready, and `fdl probe` says so and ends with 1."""
    fleet.wait_condition(kube, "NodesReady", "True")
    with fleet.read_only(fleet.prober_pid(cluster, kube, "medium"), fleet.CHECKPOINTS_PATH):
        fleet.probe_now(kube, "medium")
        found = fleet.wait_problem(kube, "medium", "data-path", "Read-only file system")
        assert (found["severity"], found["remedy"]) == ("error", remedy("data-path", "read-only"))
        assert label(kube, "medium", labels.READY) == "false"
        assert not fleet.row(kube, "medium")["ready"]
        assert "medium" in fleet.wait_condition(kube, "NodesReady", "False")["message"]
        told = fleet.fdl(cluster, "probe")
        assert told.returncode == 1, told.stdout
        assert "data-path/read-only  medium" in told.stdout, told.stdout
        assert found["remedy"] in told.stdout, told.stdout
        one = fleet.fdl(cluster, "probe", "--node", "slow")
        assert one.returncode == 0, one.stdout
    fleet.probe_now(kube, "medium")
    fleet.wait_no_problem(kube, "medium", "data-path")
    fleet.wait_condition(kube, "NodesReady", "True")
    assert label(kube, "medium", labels.READY) == "true"
    told = fleet.fdl(cluster, "probe", "--json")
    assert told.returncode == 0, told.stdout
    assert json.loads(told.stdout)["nodesReady"] == len(fleet.NODES)


def test_a_stale_copy_of_the_shared_volume_on_one_node_is_named(kube: Kube, cluster: Cluster) -> None:
    """Every node can read the sentinel, and one of them reads something else: no node is at fault by itself."""
    fleet.wait_condition(kube, "SharedVolumeConsistent", "True", "5 nodes see the same content")
    with fleet.stale(fleet.prober_pid(cluster, kube, "slow"), fleet.SENTINEL_PATH, "what was there yesterday\n"):
        fleet.probe_now(kube, "slow")
        found = fleet.wait_condition(kube, "SharedVolumeConsistent", "False", " on slow")
        assert found["reason"] == "ContentDiffers"
        assert "on fast, green, medium, red" in found["message"]
        assert not fleet.problem(kube, "slow", "shared-volume")
    fleet.probe_now(kube, "slow")
    fleet.wait_condition(kube, "SharedVolumeConsistent", "True", "5 nodes see the same content")


@contextmanager
def cut_short(path: Path) -> Iterator[None]:
    """A file is half-written, as by an installation that goes on."""
    whole = path.with_name("whole")
    path.rename(whole)
    try:
        path.write_bytes(whole.read_bytes()[:1000])
        path.chmod(0o755)
        yield
    finally:
        whole.rename(path)


@contextmanager
def closed(path: Path) -> Iterator[None]:
    """A file may be read by root alone."""
    mode = path.stat().st_mode
    path.chmod(0o600)
    try:
        yield
    finally:
        path.chmod(mode)


@pytest.mark.parametrize(
    ("node", "vendor", "path", "broken", "reason", "words"),
    [
        ("green", "nvidia", LIBRARY, cut_short, "nonsense", "the look at NVML was ended by SIGBUS"),
        ("red", "amd", TOPOLOGY, closed, "amd-hidden", "the kernel hides 1 GPU(s)"),
    ],
    ids=["library-half-written", "topology-not-readable"],
)
def test_a_driver_that_cannot_be_used_takes_its_labels_away(
    kube: Kube,
    cluster: Cluster,
    node: str,
    vendor: str,
    path: str,
    broken: Callable[[Path], AbstractContextManager[None]],
    reason: str,
    words: str,
) -> None:
    """The finding says why; the vendor's labels go, so that no member comes, and the node stays good for others."""
    key = labels.vendor(vendor)
    until(f"{node} has its label", lambda: label(kube, node, key) == "true", 60)
    with broken(cluster.node_path(node, path)):
        fleet.probe_now(kube, node)
        found = fleet.wait_problem(kube, node, "gpu-driver", words)
        assert found["message"].startswith(f"{vendor}: driver-not-ready: ")
        assert (found["severity"], found["remedy"]) == ("warning", remedy("gpu-driver", reason))
        assert label(kube, node, key) is None
        assert fleet.row(kube, node)["devices"] == 0
        assert fleet.row(kube, node)["ready"]
    fleet.probe_now(kube, node)
    fleet.wait_no_problem(kube, node, "gpu-driver")
    assert label(kube, node, key) == "true"


def test_a_device_that_vanishes_is_missed(kube: Kube, cluster: Cluster) -> None:
    """One of two devices is gone while the driver answers: it is missed until it is back."""
    until("green has two devices", lambda: fleet.row(kube, "green").get("devices") == 2, 60)
    cluster.node_set(parse_node("name=green,nvidia=1:sm_90"))
    try:
        found = fleet.wait_problem(kube, "green", "device-presence", "NVIDIA H100 80GB HBM3 was there and is gone")
        assert (found["severity"], found["remedy"]) == ("warning", remedy("device-presence", "vanished"))
        assert label(kube, "green", labels.count("nvidia")) == "1"
    finally:
        cluster.node_set(parse_node(GREEN))
    fleet.wait_no_problem(kube, "green", "device-presence")
    assert label(kube, "green", labels.count("nvidia")) == "2"


def test_the_interface_for_collectives_is_followed_and_the_annotation_asks_at_once(
    kube: Kube, cluster: Cluster, spec: dict[str, Any]
) -> None:
    """Missing, then down, then good. Probers read FdlCluster once a minute, unless fdl.dev/probe-now asks."""

    def name_it(interface: str) -> None:
        group = {"name": "one", "nodeSelector": {"kubernetes.io/hostname": "fast"}, "socketInterface": interface}
        fleet.patch(kube, {"fabric": {"groups": [group]}})
        fleet.probe_now(kube, "fast")

    name_it("fab9")
    fleet.wait_problem(kube, "fast", "socket-interface", "there is no such interface", 30)
    # It was read just now, so the next reading would be a minute away.
    name_it("fab0")
    until(
        "the report is about fab0",
        lambda: '"fab0"' in kube.core.read_node("fast").metadata.annotations[labels.REPORT],
        30,
    )
    found = fleet.wait_problem(kube, "fast", "socket-interface", "there are: eth0", 30)
    assert (found["severity"], found["remedy"]) == ("warning", remedy("socket-interface", "missing"))
    interface = fleet.Interface(fleet.prober_pid(cluster, kube, "fast"), "fab0")
    interface.plug()
    try:
        fleet.probe_now(kube, "fast")
        found = fleet.wait_problem(kube, "fast", "socket-interface", "it is down")
        assert found["remedy"] == remedy("socket-interface", "down")
        assert label(kube, "fast", labels.READY) == "true", "CPU modes do not need it"
        interface.up()
        fleet.probe_now(kube, "fast")
        fleet.wait_no_problem(kube, "fast", "socket-interface")
    finally:
        interface.unplug()


def test_nodes_of_one_vendor_with_different_nccl(
    kube: Kube, cluster: Cluster, namespace: str, spec: dict[str, Any]
) -> None:
    """Both are named with their versions; an NCCL cohort gets one of them, a CPU mode's cohort both."""
    image = next(each["image"] for each in spec["variants"] if each["name"] == "cuda")
    old = {"name": "cuda-old", "vendor": "nvidia", "image": image, "archs": ["sm_75"], "ncclVersion": "2.27.3"}
    group = {"name": "all", "socketInterface": "eth0"}
    fleet.patch(kube, {"variants": [*spec["variants"], old], "fabric": {"groups": [group]}})
    cluster.node_set(parse_node("name=red,nvidia=2:sm_75"))
    try:
        fleet.probe_now(kube, *fleet.NODES)
        found = fleet.wait_condition(kube, "NCCLConsistent", "False")
        assert found["reason"] == "VersionSkew"
        assert "2.27 (cuda-old) on red; 2.28 (cuda) on green" in found["message"]
        assert fleet.row(kube, "red")["nccl"]["cuda-old"] == "2.27"

        cohort = {"name": "gpu", "vendor": "nvidia", "allowSimulated": True, "replicas": 2}
        suspended = {"suspend": True}
        kube.create(namespace, build.digits("nccl", mode="nccl-cadence", cohorts=[cohort], runPolicy=suspended))
        told = fleet.fdl(cluster, "explain", "run", "nccl", "--namespace", namespace)
        assert told.returncode == 0, told.stdout + told.stderr
        rows = {line.split()[0]: line for line in told.stdout.splitlines() if line.startswith(("green ", "red "))}
        assert rows["green"].split()[1] == "yes", told.stdout
        assert rows["red"].split()[1] == "no", told.stdout
        assert "loads NCCL 2.27 and the cohort runs 2.28" in rows["red"], told.stdout

        # Members that need all devices of a node each.
        kube.create(namespace, build.digits("both", cohorts=[{**cohort, "devicesPerReplica": 2}]))
        until(
            "a CPU mode's members are on both nodes",
            lambda: {pod.spec.node_name for pod in kube.pods(namespace, "both")} == {"green", "red"},
            60,
            told=lambda: kube.diagnose(namespace, "both"),
        )
    finally:
        cluster.node_set(parse_node(RED))
    fleet.replace(kube, spec)
    fleet.probe_now(kube, *fleet.NODES)
    fleet.wait_condition(kube, "NCCLConsistent", "True")


def test_quarantine_and_a_lost_cluster_object_do_not_disturb_a_run(
    kube: Kube, cluster: Cluster, namespace: str, spec: dict[str, Any]
) -> None:
    """Who runs on the node stays; who comes goes elsewhere; without FdlCluster the run goes on, and it comes back."""
    name = "calm"
    kube.create(namespace, build.digits(name, epochs=2000, cohorts=[build.cpu_cohort(name, 3, one_a_node=True)]))
    window = training(kube.wait_window(namespace, name, 2, seconds=120))["window"]
    before = {pod.spec.node_name: pod for pod in kube.live_pods(namespace, name)}
    assert set(before) == {"fast", "medium", "slow"}
    fleet.wait_condition(kube, "NetworkPolicyEnforced", "True", seconds=90)

    fleet.patch(kube, {"quarantine": {"nodes": [{"name": "slow", "reason": "a noisy fan"}]}})
    found = fleet.wait_problem(kube, "slow", "quarantine", "in quarantine: a noisy fan")
    assert found["severity"] == "error"
    assert "members that run here go on" in found["remedy"]
    assert [each["name"] for each in fleet.read(kube)["status"]["quarantine"]] == ["slow"]
    window = training(kube.wait_window(namespace, name, window + 3))["window"]
    assert kube.pod(namespace, before["slow"].metadata.name).metadata.uid == before["slow"].metadata.uid

    faults.kill(cluster, namespace, before["slow"].metadata.name)

    def trains(run: dict[str, Any]) -> bool:
        return any(each["incarnation"] == 2 and each["phase"] == "Running" for each in members(run))

    run = kube.wait(namespace, name, "a successor trains", trains, 120)
    assert "slow" not in {each["node"] for each in members(run)}
    told = fleet.fdl(cluster, "explain", "node", "slow", "--namespace", namespace)
    assert "in quarantine: a noisy fan" in told.stdout, told.stdout

    uid = fleet.read(kube)["metadata"]["uid"]
    pods = {pod.metadata.uid for pod in kube.live_pods(namespace, name)}
    kube.custom.delete_cluster_custom_object(*fleet.CLUSTERS)
    until("FdlCluster is back", lambda: fleet.read(kube).get("metadata", {}).get("uid", uid) != uid, 60)
    until("its status names all nodes", lambda: len(fleet.read(kube).get("status", {}).get("nodes", [])) == 5, 60)
    again = fleet.read(kube)
    assert [each["name"] for each in again["spec"]["variants"]] == [each["name"] for each in spec["variants"]]
    assert fleet.row(kube, "slow")["ready"], "the new object quarantines nobody"
    kube.wait_window(namespace, name, training(kube.run(namespace, name))["window"] + 3)
    assert {pod.metadata.uid for pod in kube.live_pods(namespace, name)} == pods
