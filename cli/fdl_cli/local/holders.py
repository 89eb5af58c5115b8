"""The namespaces of a node, or of the control plane: described, launched, and ended."""

import base64
import json
import shutil
import subprocess
import time
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from fdl_cli.local import cgroups, processes, render, state
from fdl_cli.local.errors import LocalError
from fdl_cli.local.nodespec import NodeSpec
from fdl_cli.local.paths import image_store
from fdl_cli.local.render import Site
from fdl_cli.local.system import search_path

CONTROL = "control"
_CONF = "/run/fdl"
_START_LIMIT_S = 20.0


@dataclass(frozen=True)
class Program:
    """A process of a node: its name (also of its log), its command line, and the socket it waits for."""

    name: str
    argv: tuple[str, ...]
    wait_for: str = ""


def control_programs(site: Site) -> list[Program]:
    """The control plane's processes. All ports are the usual ones: the network namespace is their own."""
    net, pki = site.subnets, site.pki
    certificate = lambda name: (f"{pki}/{name}.crt", f"{pki}/{name}.key")  # noqa: E731
    server, server_key = certificate("apiserver")
    client, client_key = certificate("kubelet-client")
    config = lambda name: f"{pki}/{name}.kubeconfig"  # noqa: E731
    etcd = (
        site.program("etcd"),
        f"--data-dir={site.root}/etcd",
        # A local cluster's data need not outlive a crash of the machine, and each sync costs milliseconds.
        "--unsafe-no-fsync",
        "--listen-client-urls=http://127.0.0.1:2379",
        "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
    )
    apiserver = (
        site.program("kube-apiserver"),
        "--etcd-servers=http://127.0.0.1:2379",
        f"--advertise-address={net.control}",
        "--secure-port=6443",
        f"--service-cluster-ip-range={net.services}",
        f"--client-ca-file={pki}/ca.crt",
        f"--tls-cert-file={server}",
        f"--tls-private-key-file={server_key}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki}/sa.pub",
        f"--service-account-signing-key-file={pki}/sa.key",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--kubelet-client-certificate={client}",
        f"--kubelet-client-key={client_key}",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        "--kubelet-preferred-address-types=InternalIP",
        "--allow-privileged=true",
        "--cert-dir=/tmp/apiserver",
        f"--audit-policy-file={_CONF}/audit-policy.yaml",
        f"--audit-log-path={site.logs}/audit.log",
        "--audit-log-maxsize=200",
        "--audit-log-maxbackup=1",
    )
    manager = (
        site.program("kube-controller-manager"),
        f"--kubeconfig={config('controller-manager')}",
        f"--authentication-kubeconfig={config('controller-manager')}",
        f"--authorization-kubeconfig={config('controller-manager')}",
        f"--service-account-private-key-file={pki}/sa.key",
        f"--root-ca-file={pki}/ca.crt",
        "--use-service-account-credentials",
        "--leader-elect=false",
        # Pod ranges are given by `fdl local`, which also lays the routes to them.
        "--allocate-node-cidrs=false",
        f"--service-cluster-ip-range={net.services}",
        f"--cluster-signing-cert-file={pki}/ca.crt",
        f"--cluster-signing-key-file={pki}/ca.key",
        "--node-monitor-grace-period=20s",
        "--node-monitor-period=2s",
        "--kube-api-qps=100",
        "--kube-api-burst=200",
        "--cert-dir=/tmp/controller-manager",
    )
    scheduler = (
        site.program("kube-scheduler"),
        f"--kubeconfig={config('scheduler')}",
        f"--authentication-kubeconfig={config('scheduler')}",
        f"--authorization-kubeconfig={config('scheduler')}",
        "--leader-elect=false",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
        "--cert-dir=/tmp/scheduler",
    )
    provisioner = (
        site.program("hostpath-provisioner"),
        f"--kubeconfig={config('provisioner')}",
        f"--root={site.root}/volumes",
    )
    dns = (site.program("coredns"), "-conf", f"{_CONF}/Corefile")
    return [
        Program("etcd", etcd),
        Program("kube-apiserver", apiserver),
        Program("kube-controller-manager", manager),
        Program("kube-scheduler", scheduler),
        Program("coredns", dns),
        Program("hostpath-provisioner", provisioner),
        # Services from outside the nodes: the API server's calls of webhooks, and this machine's own.
        Program("kube-proxy", _proxy(site, CONTROL, (f"--bind-address={net.control}",))),
    ]


def _proxy(site: Site, node: str, extra: tuple[str, ...] = ()) -> tuple[str, ...]:
    return (
        site.program("kube-proxy"),
        f"--kubeconfig={site.pki}/proxy.kubeconfig",
        "--proxy-mode=nftables",
        f"--hostname-override={node}",
        f"--cluster-cidr={site.subnets.pods}",
        "--conntrack-max-per-core=0",
        "--nodeport-addresses=primary",
        "--healthz-bind-address=127.0.0.1:10256",
        "--metrics-bind-address=127.0.0.1:10249",
        *extra,
    )


def node_programs(site: Site, node: str, address: str) -> list[Program]:
    """A node's processes."""
    kubelet = (
        site.program("kubelet"),
        f"--config={_CONF}/kubelet.yaml",
        f"--kubeconfig={site.pki}/node-{node}.kubeconfig",
        f"--hostname-override={node}",
        f"--node-ip={address}",
        "--root-dir=/var/lib/kubelet",
        "--cert-dir=/var/lib/kubelet/pki",
        "--v=1",
    )
    router = (
        site.program("kube-router"),
        f"--kubeconfig={site.pki}/router.kubeconfig",
        "--run-firewall=true",
        "--run-router=false",
        "--run-service-proxy=false",
        "--enable-cni=false",
        f"--hostname-override={node}",
        f"--service-cluster-ip-range={site.subnets.services}",
        "--health-port=0",
        "--cache-sync-timeout=2m",
    )
    return [
        Program("containerd", (site.program("containerd"), "-c", f"{_CONF}/containerd.toml")),
        Program("kubelet", kubelet, render.CONTAINERD_SOCKET),
        Program("kube-proxy", _proxy(site, node)),
        Program("kube-router", router),
        Program("fdl-device-plugin", (site.program("fdl-device-plugin"), f"--root={render.DRIVER_ROOT}")),
    ]


def _bind(source: Path, target: str | Path | None = None, read_only: bool = False) -> dict[str, Any]:
    return {"source": str(source), "target": str(target or source), "readOnly": read_only}


def description(
    site: Site, member: str, folder: Path, programs: list[Program], procs: list[Path], binds: list[dict[str, Any]]
) -> dict[str, Any]:
    """What ``fdl-node`` reads; ``procs`` are the ``cgroup.procs`` files to join."""
    return {
        "hostname": member,
        "cgroupProcs": [str(p) for p in procs],
        "root": str(folder / "root"),
        "binds": [
            # A node's /var comes first: the folders below lie in it.
            *binds,
            _bind(folder / "conf", _CONF),
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
        "startFile": f"{_CONF}/start",
        "log": str(site.logs / member / "node.log"),
        "env": [f"PATH={site.bin}:{search_path()}", "HOME=/tmp", "LANG=C.UTF-8"],
        "processes": [
            {"name": p.name, "argv": list(p.argv), "waitFor": p.wait_for, "log": str(site.logs / member / f"{p.name}.log")}
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
    encoded = [base64.b64encode((site.pki / f).read_bytes()).decode() for f in ("ca.crt", f"{name}.crt", f"{name}.key")]
    return render.kubeconfig(server, *encoded, context)


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


def end(trees: cgroups.Hierarchies, cluster: str, member: str, holder: state.Holder | None, limit_s: float = 20.0) -> None:
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


def size(node: NodeSpec) -> Decimal | None:
    """The CPU quota of a node's pods in cores."""
    return node.cpu
