"""Command lines of the cluster's processes, as pure functions of the plan."""

from dataclasses import dataclass

from fdl_cli.local import render
from fdl_cli.local.render import Site

CONTROL = "control"
CONF = "/run/fdl"
"""Where a member of the cluster sees its own configuration."""


@dataclass(frozen=True)
class Program:
    """A process of a node: its name (also of its log), its command line, and the socket it waits for."""

    name: str
    argv: tuple[str, ...]
    wait_for: str = ""


def _etcd(site: Site) -> tuple[str, ...]:
    return (
        site.program("etcd"),
        f"--data-dir={site.root}/etcd",
        # A local cluster's data need not outlive a crash of the machine, and each sync costs milliseconds.
        "--unsafe-no-fsync",
        "--listen-client-urls=http://127.0.0.1:2379",
        "--advertise-client-urls=http://127.0.0.1:2379",
        "--listen-peer-urls=http://127.0.0.1:2380",
    )


def _apiserver(site: Site) -> tuple[str, ...]:
    net, pki = site.subnets, site.pki
    return (
        site.program("kube-apiserver"),
        "--etcd-servers=http://127.0.0.1:2379",
        f"--advertise-address={net.control}",
        "--secure-port=6443",
        f"--service-cluster-ip-range={net.services}",
        f"--client-ca-file={pki}/ca.crt",
        f"--tls-cert-file={pki}/apiserver.crt",
        f"--tls-private-key-file={pki}/apiserver.key",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={pki}/sa.pub",
        f"--service-account-signing-key-file={pki}/sa.key",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--kubelet-client-certificate={pki}/kubelet-client.crt",
        f"--kubelet-client-key={pki}/kubelet-client.key",
        f"--kubelet-certificate-authority={pki}/ca.crt",
        "--kubelet-preferred-address-types=InternalIP",
        "--allow-privileged=true",
        "--cert-dir=/tmp/apiserver",
        f"--audit-policy-file={CONF}/audit-policy.yaml",
        f"--audit-log-path={site.logs}/audit.log",
        "--audit-log-maxsize=200",
        "--audit-log-maxbackup=1",
    )


def _manager(site: Site) -> tuple[str, ...]:
    net, pki = site.subnets, site.pki
    return (
        site.program("kube-controller-manager"),
        f"--kubeconfig={pki}/controller-manager.kubeconfig",
        f"--authentication-kubeconfig={pki}/controller-manager.kubeconfig",
        f"--authorization-kubeconfig={pki}/controller-manager.kubeconfig",
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


def _scheduler(site: Site) -> tuple[str, ...]:
    pki = site.pki
    return (
        site.program("kube-scheduler"),
        f"--kubeconfig={pki}/scheduler.kubeconfig",
        f"--authentication-kubeconfig={pki}/scheduler.kubeconfig",
        f"--authorization-kubeconfig={pki}/scheduler.kubeconfig",
        "--leader-elect=false",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
        "--cert-dir=/tmp/scheduler",
    )


def control_programs(site: Site) -> list[Program]:
    """The control plane's processes. All ports are the usual ones: the network namespace is their own."""
    provisioner = (
        site.program("hostpath-provisioner"),
        f"--kubeconfig={site.pki}/provisioner.kubeconfig",
        f"--root={site.root}/volumes",
    )
    return [
        Program("etcd", _etcd(site)),
        Program("kube-apiserver", _apiserver(site)),
        Program("kube-controller-manager", _manager(site)),
        Program("kube-scheduler", _scheduler(site)),
        Program("coredns", (site.program("coredns"), "-conf", f"{CONF}/Corefile")),
        Program("hostpath-provisioner", provisioner),
        # Services from outside the nodes: the API server's calls of webhooks, and this machine's own.
        Program("kube-proxy", _proxy(site, CONTROL, (f"--bind-address={site.subnets.control}",))),
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
        f"--config={CONF}/kubelet.yaml",
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
        Program("containerd", (site.program("containerd"), "-c", f"{CONF}/containerd.toml")),
        Program("kubelet", kubelet, render.CONTAINERD_SOCKET),
        Program("kube-proxy", _proxy(site, node)),
        Program("kube-router", router),
        Program("fdl-device-plugin", (site.program("fdl-device-plugin"), f"--root={render.DRIVER_ROOT}")),
    ]
