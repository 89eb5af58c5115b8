"""Starting, growing, crashing and removing clusters; what is left on the machine afterwards."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from fdl_cli.local import Cluster, LocalError, network, processes
from fdl_cli.local.nodespec import parse_node
from fdl_cli.local.paths import LOCK_ROOT, ClusterPaths

from .conftest import require_native
from .helpers import create, eventually, phase, pod

pytestmark = pytest.mark.e2e


def command_output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout


@dataclass(frozen=True)
class Remains:
    """What a cluster's name can be found in, on the whole machine."""

    processes: tuple[str, ...]
    groups: tuple[str, ...]
    links: tuple[str, ...]
    mounts: tuple[str, ...]
    files: tuple[str, ...]
    namespaces: tuple[str, ...]


def remains(name: str) -> Remains:
    """Looks for a cluster's remains by other ways than ``down`` does."""
    state = str(ClusterPaths(name).root)
    processes = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                groups = (entry / "cgroup").read_text()
            except OSError:
                continue
            if f"{state}/" in line or f"/fdl.{name}/" in groups:
                processes.append(f"{entry.name} {line}")
    named = Path("/run/netns")
    return Remains(
        tuple(processes),
        tuple(str(p) for p in Path("/sys/fs/cgroup").glob(f"**/fdl.{name}")),
        tuple(p.name for p in Path("/sys/class/net").glob(f"{network.host_link(name)}*")),
        tuple(m for m in Path("/proc/self/mountinfo").read_text().splitlines() if state in m),
        tuple(str(p) for p in (ClusterPaths(name).root, LOCK_ROOT / f"fdl-local-{name}.lock") if p.exists()),
        tuple(p.name for p in named.iterdir() if "fdl" in p.name) if named.is_dir() else (),
    )


NOTHING = Remains((), (), (), (), (), ())


def assert_nothing_left(name: str, limit_s: float = 10.0) -> None:
    """Nothing is left, once the machine's first process has reaped the dead it inherited."""
    deadline = time.monotonic() + limit_s
    while (found := remains(name)) != NOTHING and time.monotonic() < deadline:
        time.sleep(0.1)
    assert found == NOTHING


def rules() -> tuple[str, str, str]:
    """The machine's own firewall and routes."""
    return (
        command_output("nft", "list", "ruleset"),
        command_output("iptables-save"),
        "\n".join(line for line in command_output("ip", "route").splitlines() if "fdl." not in line),
    )


def started(name: str, *options: str) -> subprocess.Popen[bytes]:
    """``fdl local up`` as a process of its own."""
    command = [sys.executable, "-m", "fdl_cli.main", "local", "up", "--name", name, "--provider", "native", *options]
    # Workers of pytest-xdist ignore SIGINT, and a program inherits that; one that a person starts does not.
    command = ["env", "--default-signal=INT", *command]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def kill_when(process: subprocess.Popen[bytes], seen: Callable[[], bool], with_signal: int) -> None:
    """Signals a process as soon as ``seen`` holds."""
    deadline = time.monotonic() + 60
    while not seen():
        assert process.poll() is None, "it ended before the point at which it was to be killed"
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.send_signal(with_signal)
    process.wait(30)


POINTS: dict[str, Callable[[ClusterPaths], bool]] = {
    "the record is written": lambda p: p.record.exists(),
    "the control plane's cgroups exist": lambda p: bool(list(Path("/sys/fs/cgroup").glob(f"*/fdl.{p.name}"))),
    "the control plane's namespaces exist": lambda p: (p.holder("control") / "pid").exists(),
    "the machine's link exists": lambda p: Path(f"/sys/class/net/{network.host_link(p.name)}").exists(),
    "the first node's namespaces exist": lambda p: (p.holder("node1") / "pid").exists(),
    "the last node runs": lambda p: (p.holder("node2") / "conf/start").exists(),
    "the kubelets run": lambda p: (p.logs / "node2" / "kubelet.log").exists(),
}


@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_any_point_of_up_leaves_nothing_after_down(point: str) -> None:
    require_native()
    name = "t-kill"
    Cluster(name).down()
    before = rules()
    process = started(name, "--nodes", "2")
    try:
        kill_when(process, lambda: POINTS[point](ClusterPaths(name)), signal.SIGKILL)
    finally:
        Cluster(name).down()
    assert_nothing_left(name)
    assert rules() == before


def test_up_after_a_kill_clears_the_remains_and_down_leaves_nothing(probe_archive: Path) -> None:
    require_native()
    cluster = Cluster("t-again")
    cluster.down()
    before = rules()
    try:
        kill_when(started("t-again", "--nodes", "2"), lambda: POINTS["the kubelets run"](cluster.paths), signal.SIGKILL)
        said: list[str] = []
        again = Cluster("t-again", say=said.append)
        assert again.up([parse_node("name=only")], provider="native", images=[probe_archive])
        assert any("Clearing the remains" in s for s in said)
        assert again.node_names == ["only"]
        create(again, pod("p", "only", "serve", ""))
    finally:
        cluster.down()
    assert_nothing_left("t-again")
    assert rules() == before


def test_an_interrupt_ends_up_with_a_sentence_and_down_leaves_nothing() -> None:
    require_native()
    name = "t-int"
    Cluster(name).down()
    process = started(name, "--nodes", "1")
    try:
        kill_when(process, lambda: POINTS["the first node's namespaces exist"](ClusterPaths(name)), signal.SIGINT)
        assert process.returncode == 130
    finally:
        Cluster(name).down()
    assert_nothing_left(name)


def test_up_twice_is_a_no_op_that_says_so_and_adds_what_is_missing(cluster: Cluster) -> None:
    said: list[str] = []
    again = Cluster(cluster.name, say=said.append)
    assert again.up() is False
    assert said == [f"The cluster {cluster.name} is running already"]
    assert again.up([parse_node("name=late")]) is False
    assert "late" in again.node_names
    assert "late" in again.kubectl().ready_nodes()


def test_up_starts_a_node_again_that_died_but_not_one_that_was_stopped(cluster: Cluster) -> None:
    holder = int(cluster.node_path("plain", "/").parent.name)
    cluster.node_stop("slow")
    try:
        started = processes.start_time(holder)
        assert started is not None
        assert processes.kill(holder, started), "the node's process outlived SIGKILL"
        said: list[str] = []
        assert Cluster(cluster.name, say=said.append).up() is False
        assert said == ["plain had died: starting it again"]
        conditions = {s.spec.name: s.condition for s in cluster.status()}
        assert (conditions["plain"], conditions["slow"]) == ("running", "stopped")
    finally:
        cluster.node_start("slow")


def test_two_clusters_side_by_side_do_not_meet(cluster: Cluster, probe_archive: Path) -> None:
    other = Cluster("t-other")
    other.down()
    try:
        with ThreadPoolExecutor() as pool:
            # Both at once: a load into the first while the second starts.
            loading = pool.submit(cluster.load, [probe_archive])
            other.up([parse_node("name=plain")], provider="native", images=[probe_archive])
            loading.result()
        create(other, pod("here", "plain", "serve", "other"))
        create(cluster, pod("here", "plain", "serve", "first"))
        addresses = [c.kubectl().json("get", "pod", "here")["status"]["podIP"] for c in (cluster, other)]
        assert addresses[0].split(".")[:2] != addresses[1].split(".")[:2]
        first = cluster.kubectl().json("get", "namespace", "kube-system")["metadata"]["uid"]
        assert first != other.kubectl().json("get", "namespace", "kube-system")["metadata"]["uid"]
        other.down()
        assert_nothing_left("t-other")
        assert phase(cluster, "here") == "Running"
        eventually("the first still works", lambda: set(cluster.kubectl().ready_nodes()) >= {"plain", "slow", "sim"})
    finally:
        other.down()
        cluster.kubectl().run("delete", "pod", "here", "--force", "--grace-period=0", "--ignore-not-found", check=False)


def test_a_load_twice_is_skipped(cluster: Cluster, probe_archive: Path) -> None:
    images, _ = cluster.load([probe_archive])
    assert [i.name for i in images] == ["fdl.local/probe:1"]
    _, new = cluster.load([probe_archive])
    assert set(new.values()) == {0}


def test_a_damaged_archive_is_refused_by_name(cluster: Cluster, probe_archive: Path, tmp_path: Path) -> None:
    raw = bytearray(probe_archive.read_bytes())
    index = json.loads(command_output("tar", "-xOf", str(probe_archive), "index.json"))
    assert index["manifests"]
    raw = raw.replace(b'"Entrypoint"', b'"Entrypoin7"')
    damaged = tmp_path / "damaged.tar"
    damaged.write_bytes(raw)
    with pytest.raises(LocalError, match=r"damaged\.tar.*damaged"):
        cluster.load([damaged])
    with pytest.raises(LocalError, match="does not exist"):
        cluster.load([tmp_path / "none.tar"])


def test_a_node_larger_than_the_machine_is_refused_before_anything_starts() -> None:
    require_native()
    with pytest.raises(LocalError, match=r"cpu=4096 is more than the machine's"):
        Cluster("t-large").up([parse_node("cpu=4096")], provider="native")
    assert_nothing_left("t-large")
