"""Faults of nodes, made by name."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from fdl_cli.local import Cluster
from fdl_cli.local.nodespec import parse_node

from .helpers import create, eventually, fetches, pod, remove

pytestmark = pytest.mark.e2e
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "data"},
    "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
}


@pytest.fixture(autouse=True)
def tidy(cluster: Cluster) -> Iterator[None]:
    """Leaves no pod to the next test."""
    yield
    remove(cluster, "pod", "pvc")


def counter(cluster: Cluster) -> Path:
    """A pod on ``slow`` that appends to a file; the file as this machine sees it."""
    create(cluster, CLAIM, pod("counter", "slow", "count", "/data/n", claim="data"))
    eventually("it counts", lambda: bool(list(cluster.paths.volumes.glob("*/n"))))
    return next(cluster.paths.volumes.glob("*/n"))


def grows(path: Path, limit_s: float = 10.0) -> bool:
    """Whether a file becomes longer within ``limit_s`` seconds."""
    before = path.stat().st_size
    try:
        eventually("it grows", lambda: path.stat().st_size > before, limit_s)
    except AssertionError:
        return False
    return True


def condition(cluster: Cluster, node: str) -> str:
    return next(s.condition for s in cluster.status() if s.spec.name == node)


def not_ready(cluster: Cluster, node: str) -> bool:
    return node not in cluster.kubectl().ready_nodes()


def test_a_cut_node_runs_on_unheard_and_heals(cluster: Cluster) -> None:
    counted = counter(cluster)
    create(cluster, pod("web", "slow", "serve", "hello"), pod("far", "plain", "serve", ""))
    address = cluster.kubectl().json("get", "pod", "web")["status"]["podIP"]
    eventually("they talk", lambda: fetches(cluster, "far", f"http://{address}:8080"))
    cluster.node_cut("slow")
    try:
        assert condition(cluster, "slow") == "cut"
        assert not fetches(cluster, "far", f"http://{address}:8080")
        assert grows(counted)
        eventually("the cluster notices", lambda: not_ready(cluster, "slow"))
        assert grows(counted)
    finally:
        cluster.node_heal("slow")
    eventually("the node is back", lambda: not not_ready(cluster, "slow"))
    assert fetches(cluster, "far", f"http://{address}:8080")


def test_a_frozen_node_stands_still_and_goes_on(cluster: Cluster) -> None:
    counted = counter(cluster)
    cluster.node_freeze("slow")
    try:
        assert condition(cluster, "slow") == "frozen"
        assert not grows(counted, 1.0)
        eventually("the cluster notices", lambda: not_ready(cluster, "slow"))
    finally:
        cluster.node_thaw("slow")
    assert grows(counted)
    eventually("the node is back", lambda: not not_ready(cluster, "slow"))


def test_a_stopped_node_is_dead_at_once_and_comes_back_with_its_images(cluster: Cluster) -> None:
    counted = counter(cluster)
    pids = cluster.node_pids("default", "counter")
    assert pids
    cluster.node_stop("slow")
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    assert not grows(counted, 0.5)
    assert condition(cluster, "slow") == "stopped"
    cluster.node_start("slow")
    assert not not_ready(cluster, "slow")
    assert condition(cluster, "slow") == "running"
    create(cluster, pod("again", "slow", "serve", ""))
    assert cluster.node_pids("default", "again")


def test_the_processes_of_a_pod_are_found_and_can_be_killed(cluster: Cluster) -> None:
    create(cluster, pod("victim", "plain", "serve", ""))
    pids = cluster.node_pids("default", "victim")
    assert [Path(f"/proc/{pid}/comm").read_text().strip() for pid in pids] == ["probe"]
    assert cluster.node_pids("default", "never-made") == []
    os.kill(pids[0], signal.SIGKILL)
    eventually(
        "the pod has failed", lambda: cluster.kubectl().json("get", "pod", "victim")["status"]["phase"] == "Failed"
    )


def test_a_killed_kubelet_comes_back_and_offers_its_devices_again(cluster: Cluster) -> None:
    kubectl = cluster.kubectl()
    before = kubectl.json("get", "lease", "sim", "-n", "kube-node-lease")["spec"]["renewTime"]
    record = cluster.node_path("sim", "/").parent
    inside = [p for p in Path("/proc").iterdir() if p.name.isdecimal() and is_kubelet_of(p, record)]
    assert len(inside) == 1
    os.kill(int(inside[0].name), signal.SIGKILL)
    eventually(
        "its lease is renewed",
        lambda: kubectl.json("get", "lease", "sim", "-n", "kube-node-lease")["spec"]["renewTime"] > before,
    )
    kubectl.wait_allocatable("sim", {"nvidia.com/gpu": 2, "amd.com/gpu": 1})


def is_kubelet_of(process: Path, holder: Path) -> bool:
    try:
        same = (process / "ns/mnt").readlink() == (holder / "ns/mnt").readlink()
        return same and (process / "exe").readlink().name == "kubelet"
    except OSError:
        return False


def test_simulated_hardware_changes_while_the_node_runs(cluster: Cluster) -> None:
    try:
        cluster.node_set(parse_node("name=sim,nvidia=1:sm_80"))
        driver = cluster.node_path("sim", "/run/fdl/driver")
        assert "arch 8.0" in (driver / "nvidia/etc/fdl-fake-nvml.conf").read_text()
        assert not (driver / "amd").exists()
        sizes = cluster.kubectl().json("get", "node", "sim")["status"]["allocatable"]
        assert (sizes["nvidia.com/gpu"], sizes["amd.com/gpu"]) == ("1", "0")
    finally:
        cluster.node_set(parse_node("name=sim,nvidia=2:sm_90,amd=1:gfx942"))
