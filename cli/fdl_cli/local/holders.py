"""The namespaces of a node, or of the control plane: described, launched, and ended."""

import base64
import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from fdl_cli.local import cgroups, processes, render, state
from fdl_cli.local.errors import LocalError
from fdl_cli.local.nodespec import NodeSpec
from fdl_cli.local.paths import image_store
from fdl_cli.local.programs import CONF, CONTROL, Program
from fdl_cli.local.render import Site
from fdl_cli.local.system import search_path

_START_LIMIT_S = 20.0


def _bind(source: Path, target: str | Path | None = None, read_only: bool = False) -> dict[str, Any]:
    return {"source": str(source), "target": str(target or source), "readOnly": read_only}


def description(
    site: Site, member: str, programs: list[Program], *, procs: list[Path], binds: list[dict[str, Any]]
) -> dict[str, Any]:
    """What ``fdl-node`` reads; ``procs`` are the ``cgroup.procs`` files to join."""
    folder = site.root / "members" / member
    return {
        "hostname": member,
        "cgroupProcs": [str(p) for p in procs],
        "root": str(folder / "root"),
        "binds": [
            # A node's /var comes first: the folders below lie in it.
            *binds,
            _bind(folder / "conf", CONF),
            _bind(site.bin, read_only=True),
            _bind(site.pki, read_only=True),
            _bind(site.logs),
            _bind(site.root / "volumes"),
        ],
        "tmpfs": ["/tmp", "/run"],  # noqa: S108 - folders of the node's own root
        "sysctls": {
            "net.ipv4.ip_forward": "1",
            # Nodes reach each other's pods by way of the gateway, which would tell them shorter ways.
            "net.ipv4.conf.all.send_redirects": "0",
            "net.ipv4.conf.default.send_redirects": "0",
            "net.bridge.bridge-nf-call-iptables": "0",
        },
        "pidFile": str(folder / "pid"),
        "startFile": f"{CONF}/start",
        "log": str(site.logs / member / "node.log"),
        "env": [f"PATH={site.bin}:{search_path()}", "HOME=/tmp", "LANG=C.UTF-8"],
        "processes": [
            {
                "name": p.name,
                "argv": list(p.argv),
                "waitFor": p.wait_for,
                "log": str(site.logs / member / f"{p.name}.log"),
            }
            for p in programs
        ],
    }


def node_binds(folder: Path) -> list[dict[str, Any]]:
    """What a node sees beyond that: its own ``/var``, which outlives its power, and the images' layers."""
    store = image_store()
    return [_bind(folder / "var", "/var"), _bind(store, read_only=True)]


def control_binds(site: Site) -> list[dict[str, Any]]:
    """What the control plane sees beyond that: its data."""
    return [_bind(site.root / "etcd")]


def kubeconfig_of(site: Site, name: str, server: str, context: str) -> str:
    """A kubeconfig with the certificate ``name``."""

    def data(file: str) -> str:
        return base64.b64encode((site.pki / file).read_bytes()).decode()

    return render.kubeconfig(server, data("ca.crt"), data(f"{name}.crt"), data(f"{name}.key"), context)


def prepare(site: Site, member: str, files: dict[str, str]) -> Path:
    """Makes a member's folders and configuration files; returns its folder."""
    folder = site.root / "members" / member
    for name in ("root", "conf/cni", "conf/driver"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    if member != CONTROL:
        (folder / "var").mkdir(exist_ok=True)
    (site.logs / member).mkdir(parents=True, exist_ok=True)
    for name in ("pid", "conf/start"):
        (folder / name).unlink(missing_ok=True)
    for name, text in files.items():
        path = folder / "conf" / name
        path.touch(mode=0o600)
        path.write_text(text)
    return folder


def node_files(site: Site, node: NodeSpec, index: int, machine: render.Machine) -> dict[str, str]:
    """A node's configuration files."""
    return {
        "kubelet.yaml": render.kubelet(site, node, machine),
        "containerd.toml": render.containerd(site.bin),
        "cni/10-fdl.conflist": render.cni(site.subnets.node_pods(index)),
        # For pods that ask for the node's own resolver: the same names as everybody's.
        "resolv.conf": f"nameserver {site.subnets.control}\n",
    }


def launch(site: Site, folder: Path, described: dict[str, Any]) -> state.Holder:
    """Starts the first process of new namespaces; it waits for :func:`let_go` before it runs the rest.

    Raises:
        LocalError: the namespaces cannot be made.
    """
    path = folder / "spec.json"
    path.write_text(json.dumps(described, indent=1))
    command = [site.program("fdl-node"), str(path)]
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_START_LIMIT_S,
        start_new_session=True,
        check=False,
    )
    if done.returncode:
        raise LocalError(f"The namespaces of {described['hostname']} cannot be made: {done.stderr.strip()}")
    pid = int((folder / "pid").read_text())
    started = processes.start_time(pid)
    if started is None:
        raise LocalError(f"{described['hostname']} ended at once: see {described['log']}.")
    return state.Holder(pid, started)


def let_go(folder: Path) -> None:
    """Tells a launched member that its network is laid."""
    (folder / "conf" / "start").touch()


def wait_for_socket(holder: state.Holder, socket: str, name: str, log: Path, limit_s: float = 60.0) -> Path:
    """Waits until a node has a socket and returns its path as this machine reaches it.

    Raises:
        LocalError: the node ended, or the socket does not come.
    """
    path = Path(f"/proc/{holder.pid}/root{socket}")
    deadline = time.monotonic() + limit_s
    while not path.is_socket():
        if not processes.alive(holder.pid, holder.started):
            raise LocalError(f"{name} ended while it started: see {log}.")
        if time.monotonic() > deadline:
            raise LocalError(f"{name} has no {socket} after {limit_s:.0f} s: see {log}.")
        time.sleep(0.02)
    return path


def end(
    trees: cgroups.Hierarchies, cluster: str, member: str, holder: state.Holder | None, limit_s: float = 20.0
) -> None:
    """Cuts a member's power: its first process is killed, the kernel kills the rest, its groups are removed.

    Raises:
        LocalError: a process does not end.
    """
    cgroups.freeze(trees, cluster, member, frozen=False)
    if holder is not None and not processes.kill(holder.pid, holder.started, limit_s):
        raise LocalError(f"Process {holder.pid} of {member} does not end: see `ps {holder.pid}`, then try again.")
    cgroups.kill_all(trees, cluster, member, limit_s)


def forget_power(folder: Path) -> None:
    """Removes what a real node would lose with its power and no mount holds here."""
    for name in ("pid", "conf/start"):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "var" / "run", ignore_errors=True)
