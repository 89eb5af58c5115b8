"""Faults of a node that its pods meet: disks without space, device files that stay shut, a network with a hole."""

import os
import re
import signal
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from fdl_cli.local import Cluster
from tests.e2e.support.kube import Kube, until

_LIMIT_SECONDS = 20.0


def enter(cluster: Cluster, node: str, *command: str) -> str:
    """Run a command among a node's mounts and in its network; what it printed."""
    holder = re.match(r"/proc/(\d+)/root", str(cluster.node_path(node, "/")))
    assert holder is not None
    words = ["nsenter", f"--target={holder[1]}", "--mount", "--net", *command]
    done = subprocess.run(words, capture_output=True, text=True, timeout=_LIMIT_SECONDS, check=False)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
    return done.stdout


@contextmanager
def opened_by(path: Path, mode: int, group: int = 0) -> Iterator[None]:
    """A file has another mode and group."""
    before = path.stat()
    os.chown(path, -1, group)
    path.chmod(mode)
    try:
        yield
    finally:
        os.chown(path, -1, before.st_gid)
        path.chmod(before.st_mode)


class Disk:
    """A file system in memory that is mounted at a path of one node only. Pods see it that are made afterwards.

    Args:
        cluster: the cluster.
        node: its node.
        path: where it is mounted.
    """

    def __init__(self, cluster: Cluster, node: str, path: str) -> None:
        self._cluster = cluster
        self._node = node
        self._path = path

    @property
    def root(self) -> Path:
        """Its top folder, as this machine reaches it."""
        return self._cluster.node_path(self._node, self._path)

    def resize(self, size: str) -> None:
        """Give it another size, such as ``50m``; it may be far more than the machine's memory."""
        self._run("mount", "-n", "-o", f"remount,size={size}", self._path)

    def fill(self, size: str) -> None:
        """Shrink it to ``size`` and leave no byte of it free."""
        self.resize(size)
        with (self.root / "filler").open("wb", buffering=0) as file:
            block = bytes(4096)
            try:
                while file.write(block) == len(block):
                    pass
            except OSError as error:
                assert "No space left" in str(error), error

    def clear(self, size: str) -> None:
        """Free what was filled, and grow it."""
        (self.root / "filler").unlink()
        self.resize(size)

    def _run(self, *command: str) -> None:
        enter(self._cluster, self._node, *command)


@contextmanager
def disk(cluster: Cluster, node: str, path: str, size: str) -> Iterator[Disk]:
    """Mount a :class:`Disk` that everybody may write to; pods that still use it at the end keep it until they end."""
    enter(cluster, node, "mkdir", "-p", path)
    enter(cluster, node, "mount", "-n", "-t", "tmpfs", "-o", f"size={size},mode=0777", "tmpfs", path)
    try:
        yield Disk(cluster, node, path)
    finally:
        enter(cluster, node, "umount", "-n", path)


@contextmanager
def claim(kube: Kube, namespace: str, name: str, path: str) -> Iterator[None]:
    """A claim of a folder of the nodes; all runs and pods of the namespace are deleted before it goes."""
    volume = f"{namespace}-{name}"
    common = {"accessModes": ["ReadWriteOnce"], "storageClassName": ""}
    spec = {
        **common,
        "capacity": {"storage": "1Mi"},
        "persistentVolumeReclaimPolicy": "Retain",
        "hostPath": {"path": path},
        "claimRef": {"namespace": namespace, "name": name},
    }
    kube.core.create_persistent_volume({"metadata": {"name": volume}, "spec": spec})
    try:
        wanted = {**common, "volumeName": volume, "resources": {"requests": {"storage": "1Mi"}}}
        kube.core.create_namespaced_persistent_volume_claim(namespace, {"metadata": {"name": name}, "spec": wanted})
        yield
    finally:
        kube.delete_all(namespace)
        until("no pod uses the volume", lambda: not kube.core.list_namespaced_pod(namespace).items, 60)
        kube.core.delete_persistent_volume(volume)


@contextmanager
def hanging(cluster: Cluster, node: str, program: str) -> Iterator[None]:
    """A program of a node itself, such as ``kube-router``, stands still."""
    marks = (f"/{program}\0", f"={node}\0", f"/{cluster.name}/")
    pids = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if _has(path, marks)]
    assert len(pids) == 1, f"{program} of {node}: {pids}"
    os.kill(pids[0], signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pids[0], signal.SIGCONT)


def _has(command_line: Path, marks: Iterable[str]) -> bool:
    try:
        text = command_line.read_text(errors="replace")
    except OSError:  # the process has ended meanwhile
        return False
    return all(mark in text for mark in marks)


@contextmanager
def cordoned(kube: Kube, *nodes: str) -> Iterator[None]:
    """New pods go to other nodes."""
    try:
        for node in nodes:
            kube.core.patch_node(node, {"spec": {"unschedulable": True}})
        yield
    finally:
        for node in nodes:
            kube.core.patch_node(node, {"spec": {"unschedulable": False}})


@contextmanager
def dropping(cluster: Cluster, node: str, *match: str) -> Iterator[None]:
    """A node loses the packets from and to its pods that iptables matches so."""
    # kube-router writes the table "filter" anew now and then; this one is not its own.
    rule = ["FORWARD", *match, "-j", "DROP"]
    enter(cluster, node, "iptables", "-w", "-t", "mangle", "-I", *rule)
    try:
        yield
    finally:
        enter(cluster, node, "iptables", "-w", "-t", "mangle", "-D", *rule)
