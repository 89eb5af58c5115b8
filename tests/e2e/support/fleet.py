"""FdlCluster/default as the tests read it, and faults of nodes that a prober has to find."""

import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kubernetes.client.exceptions import ApiException

from fdl_api import labels
from fdl_api.checks import CHECKS
from fdl_cli.demo import setup
from fdl_cli.local import Cluster
from tests.e2e.support import build
from tests.e2e.support.kube import Kube, until

CLUSTERS = ("fdl.dev", "v1alpha1", "fdlclusters", "default")
NODES = ("fast", "medium", "slow", "green", "red")
PROBED = "probed"
"""Claim of the volume that all probers mount: with the file that they should see alike, and for checkpoints."""
SENTINEL = "sentinel"
VALUES = (
    f"prober.sentinel.claim={PROBED}",
    f"prober.sentinel.path={SENTINEL}",
    f"prober.volumes[0].claim={PROBED}",
    "prober.volumes[0].kind=checkpoints",
)
"""Values of the chart that let the probers look at it."""
SENTINEL_PATH = f"/sentinel/{SENTINEL}"
CHECKPOINTS_PATH = "/volumes/0"
_LIMIT_SECONDS = 20.0
_asks = itertools.count(1)


def make_volume(cluster: Cluster, kube: Kube) -> None:
    """Make the volume of the probers, with its sentinel, before the chart is installed; one that is there is kept."""
    for create in (
        lambda: kube.core.create_namespace({"metadata": {"name": setup.SYSTEM}}),
        lambda: kube.core.create_namespaced_persistent_volume_claim(setup.SYSTEM, build.claim(PROBED)),
    ):
        try:
            create()
        except ApiException as error:
            if error.status != 409:
                raise

    def bound() -> bool:
        return bool(kube.core.read_namespaced_persistent_volume_claim(PROBED, setup.SYSTEM).status.phase == "Bound")

    until("the probers' claim is bound", bound, 60)
    folder = Path(volume_path(kube))
    folder.chmod(0o777)
    (folder / SENTINEL).write_text("all nodes see this\n")


def volume_path(kube: Kube) -> str:
    """Where the probers' volume is, on each node and on this machine."""
    claim = kube.core.read_namespaced_persistent_volume_claim(PROBED, setup.SYSTEM)
    persistent = kube.core.read_persistent_volume(claim.spec.volume_name)
    return str((persistent.spec.host_path or persistent.spec.local).path)


# -- what the cluster says -------------------------------------------------------------------------------


def read(kube: Kube) -> dict[str, Any]:
    """FdlCluster/default; empty while there is none."""
    try:
        return dict(kube.custom.get_cluster_custom_object(*CLUSTERS))
    except ApiException as error:
        if error.status == 404:
            return {}
        raise


def row(kube: Kube, node: str) -> dict[str, Any]:
    """A node's row of the status; empty while it has none."""
    rows = read(kube).get("status", {}).get("nodes", [])
    return next((each for each in rows if each["name"] == node), {})


def problem(kube: Kube, node: str, check: str) -> dict[str, Any]:
    """What a check found on a node, as the status says it; empty for nothing."""
    return next((each for each in row(kube, node).get("problems", []) if each["check"] == check), {})


def remedy(check: str, reason: str) -> str:
    """What the catalogue says is to be done about a finding."""
    return next(f.remedy for info in CHECKS if info.name == check for f in info.findings if f.reason == reason)


def label(kube: Kube, node: str, key: str) -> str | None:
    """A label of a node."""
    found: str | None = kube.core.read_node(node).metadata.labels.get(key)
    return found


def wait_problem(kube: Kube, node: str, check: str, words: str, seconds: float = 45.0) -> dict[str, Any]:
    """Wait until a check has found something on a node whose message has these words."""
    until(
        f"{check} says of {node}: {words}",
        lambda: words in problem(kube, node, check).get("message", ""),
        seconds,
        told=lambda: str(row(kube, node)),
    )
    return problem(kube, node, check)


def wait_no_problem(kube: Kube, node: str, check: str, seconds: float = 45.0) -> None:
    """Wait until a node has a row in which a check finds nothing."""
    until(
        f"{check} finds nothing on {node}",
        lambda: bool(row(kube, node)) and not problem(kube, node, check),
        seconds,
        told=lambda: str(row(kube, node)),
    )


def wait_condition(kube: Kube, kind: str, status: str, words: str = "", seconds: float = 45.0) -> dict[str, Any]:
    """Wait until a condition of FdlCluster has a status and a message with these words."""

    def found() -> dict[str, Any]:
        conditions = read(kube).get("status", {}).get("conditions", [])
        return next((each for each in conditions if each["type"] == kind), {})

    def holds() -> bool:
        now = found()
        return now.get("status") == status and words in now.get("message", "")

    until(f"{kind} is {status}: {words}", holds, seconds, told=lambda: str(found()))
    return found()


# -- what people change ----------------------------------------------------------------------------------


def patch(kube: Kube, spec: dict[str, Any]) -> None:
    """JSON merge patch of the spec of FdlCluster/default."""
    kube.custom.patch_cluster_custom_object(*CLUSTERS, {"spec": spec}, _content_type="application/merge-patch+json")


def replace(kube: Kube, spec: dict[str, Any]) -> None:
    """Put a whole spec in place of that of FdlCluster/default."""
    change = [{"op": "replace", "path": "/spec", "value": spec}]
    kube.custom.patch_cluster_custom_object(*CLUSTERS, change, _content_type="application/json-patch+json")


def probe_now(kube: Kube, *nodes: str) -> None:
    """Ask the probers of these nodes for a look."""
    for node in nodes:
        text = f"{os.getpid()}-{next(_asks)}"
        kube.core.patch_node(node, {"metadata": {"annotations": {labels.PROBE_NOW: text}}})


def fdl(cluster: Cluster, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Call the command ``fdl`` on this cluster, as a person would whose terminal is wide."""
    environment = os.environ | {"KUBECONFIG": str(cluster.kubeconfig), "COLUMNS": "250"}
    command = [str(Path(sys.executable).with_name("fdl")), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


# -- faults ----------------------------------------------------------------------------------------------


def probers(kube: Kube, node: str) -> list[str]:
    """Names of a node's prober pods that run and are not on their way out."""
    selector = f"{labels.ROLE}={labels.ROLE_PROBER}"
    pods = kube.core.list_namespaced_pod(
        setup.SYSTEM, label_selector=selector, field_selector=f"spec.nodeName={node},status.phase=Running"
    ).items
    return [str(pod.metadata.name) for pod in pods if pod.metadata.deletion_timestamp is None]


def prober_pid(cluster: Cluster, kube: Kube, node: str) -> int:
    """The first process of a node's prober. It has others, which look at a driver or a volume and end."""
    alive = probers(kube, node)
    assert alive, f"{node} has no prober"
    pids = [pid for pid in cluster.node_pids(setup.SYSTEM, alive[0]) if _is_first(pid)]
    assert pids, f"{alive[0]} has no process"
    return pids[0]


def _is_first(pid: int) -> bool:
    """Whether a process has number 1 in its own namespace."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:  # it has ended meanwhile
        return False
    numbers = next((line.split()[1:] for line in status.splitlines() if line.startswith("NSpid:")), [])
    return numbers[-1:] == ["1"]


def restart_prober(kube: Kube, node: str) -> None:
    """Have a node's prober replaced by one that finds mounts and network as they are now."""
    before = probers(kube, node)
    for name in before:
        kube.delete_pod(setup.SYSTEM, name, grace=0)
    until(f"{node} has another prober", lambda: bool(set(probers(kube, node)) - set(before)), 60)


@contextmanager
def read_only(pid: int, path: str) -> Iterator[None]:
    """A mount of a pod becomes read-only, as a volume does whose file system met an error."""
    _enter(pid, "mnt", "mount", "-n", "-o", "remount,bind,ro", path)
    try:
        yield
    finally:
        _enter(pid, "mnt", "mount", "-n", "-o", "remount,bind,rw", path)


@contextmanager
def stale(pid: int, path: str, content: str) -> Iterator[None]:
    """A file has other content for one pod than for all others, as by a file server's cache that was not renewed."""
    (Path(f"/proc/{pid}/root/tmp") / "stale").write_text(content)
    _enter(pid, "mnt", "mount", "-n", "--bind", "/tmp/stale", path)
    try:
        yield
    finally:
        _enter(pid, "mnt", "umount", "-n", path)


class Interface:
    """A network interface of a pod: the one that it has, or one more, one end of a pair that lies in the pod whole.

    Args:
        pid: a process of the pod.
        name: of the interface.
    """

    def __init__(self, pid: int, name: str) -> None:
        self._pid = pid
        self._name = name

    def plug(self) -> None:
        """The interface is there, with an address, and down."""
        peer = f"{self._name}p"
        self._ip("link", "add", self._name, "type", "veth", "peer", "name", peer)
        self._ip("addr", "add", "192.0.2.1/24", "dev", self._name)
        self._ip("link", "set", peer, "up")

    def up(self) -> None:
        """The interface works."""
        self._ip("link", "set", self._name, "up")

    @contextmanager
    def mtu(self, size: int) -> Iterator[None]:
        """It takes packets of another size, in bytes, for a while."""
        before = int(Path(f"/proc/{self._pid}/root/sys/class/net/{self._name}/mtu").read_text())
        self._ip("link", "set", self._name, "mtu", str(size))
        try:
            yield
        finally:
            self._ip("link", "set", self._name, "mtu", str(before))

    def unplug(self) -> None:
        """The interface is gone."""
        self._ip("link", "del", self._name)

    def _ip(self, *arguments: str) -> None:
        _enter(self._pid, "net", "ip", *arguments)


def _enter(pid: int, kind: str, *command: str) -> None:
    # mount and umount read /proc/self, which the pod's /proc has for processes of its own namespace only.
    options = {"mnt": ("--mount", "--pid"), "net": ("--net",)}[kind]
    words = ["nsenter", f"--target={pid}", *options, *command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
