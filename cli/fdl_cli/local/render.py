"""Configuration files of the cluster's programs, as pure functions of the plan."""

import json
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

from fdl_cli.local import cgroups
from fdl_cli.local.nodespec import NodeSpec
from fdl_cli.local.subnets import Subnets

PAUSE_IMAGE = "fdl.local/pause:1"
CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
CONTAINERD_ROOT = "/var/lib/containerd"
DRIVER_ROOT = "/run/fdl/driver"
EVICTION_MEMORY = 100 * 2**20
STORAGE_CLASS = "fdl-local"
PROVISIONER = "fdl.dev/local"


@dataclass(frozen=True)
class Machine:
    """Size of this machine: cores, and memory in bytes."""

    cores: int
    memory: int


@dataclass(frozen=True)
class Site:
    """Everything that the configuration files of one cluster depend on."""

    cluster: str
    subnets: Subnets
    bin: Path
    pki: Path
    logs: Path
    root: Path

    def program(self, name: str) -> str:
        """Path of a program."""
        return str(self.bin / name)


def kubeconfig(server: str, authority: str, certificate: str, key: str, context: str) -> str:
    """A kubeconfig with base64 data inline (``authority``, ``certificate``, ``key``)."""
    user = f"{context}-admin"
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": context, "cluster": {"server": server, "certificate-authority-data": authority}}],
            "users": [{"name": user, "user": {"client-certificate-data": certificate, "client-key-data": key}}],
            "contexts": [{"name": context, "context": {"cluster": context, "user": user}}],
            "current-context": context,
        }
    )


AUDIT_POLICY = yaml.safe_dump(
    {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        # One line a request, when it has been answered: enough to count calls by user and verb.
        "omitStages": ["RequestReceived", "ResponseStarted"],
        "rules": [{"level": "Metadata"}],
    }
)


def containerd(bin_folder: Path) -> str:
    """containerd's configuration; paths are those inside a node."""
    return f"""version = 3
root = "{CONTAINERD_ROOT}"
state = "/run/containerd"
disabled_plugins = ["io.containerd.nri.v1.nri"]

[grpc]
  address = "{CONTAINERD_SOCKET}"

[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"

  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{PAUSE_IMAGE}"

[plugins."io.containerd.cri.v1.runtime"]
  # Without CAP_SYS_RESOURCE an oom score cannot be lowered; then the lowest allowed one is taken.
  restrict_oom_score_adj = true

  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{bin_folder}/cni"]
    conf_dir = "/run/fdl/cni"

  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"

    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "{bin_folder}/runc"
      SystemdCgroup = false
"""


def cni(pods: str) -> str:
    """The pods' network of a node: a routed link a pod, so that policies and services see all traffic."""
    return json.dumps(
        {
            "cniVersion": "1.0.0",
            "name": "fdl",
            "plugins": [
                {
                    "type": "ptp",
                    "ipMasq": False,
                    "ipam": {
                        "type": "host-local",
                        # Forgotten with the power, as the pods are.
                        "dataDir": "/run/cni",
                        "ranges": [[{"subnet": pods}]],
                        "routes": [{"dst": "0.0.0.0/0"}],
                    },
                },
                {"type": "portmap", "capabilities": {"portMappings": True}},
            ],
        },
        indent=1,
    )


def reserved(node: NodeSpec, machine: Machine) -> dict[str, str]:
    """The kubelet's ``systemReserved``, which makes ``allocatable`` just the node's size."""
    result: dict[str, str] = {}
    if node.cpu is not None:
        result["cpu"] = f"{int((Decimal(machine.cores) - node.cpu) * 1000)}m"
    if node.memory is not None:
        result["memory"] = str(machine.memory - node.memory - EVICTION_MEMORY)
    return result


def kubelet(site: Site, node: NodeSpec, machine: Machine) -> str:
    """A kubelet's configuration."""
    assert node.name is not None
    config: dict[str, Any] = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroups.kubelet_root(site.cluster, node.name),
        "featureGates": {"CustomCPUCFSQuotaPeriod": True},
        "cpuCFSQuotaPeriod": f"{cgroups.PERIOD_US // 1000}ms",
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(site.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(site.pki / f"node-{node.name}.crt"),
        "tlsPrivateKeyFile": str(site.pki / f"node-{node.name}.key"),
        "clusterDNS": [site.subnets.dns_service],
        "clusterDomain": "cluster.local",
        "resolvConf": "/run/fdl/resolv.conf",
        "failSwapOn": False,
        "readOnlyPort": 0,
        "volumePluginDir": "/var/lib/kubelet/plugins-exec",
        "evictionHard": {
            "nodefs.available": "1%",
            "imagefs.available": "1%",
            "nodefs.inodesFree": "0%",
            "imagefs.inodesFree": "0%",
            "memory.available": str(EVICTION_MEMORY),
        },
        "imageGCHighThresholdPercent": 100,
        "nodeStatusUpdateFrequency": "4s",
        "serializeImagePulls": False,
        "registryPullQPS": 0,
        "kubeAPIQPS": 100,
        "kubeAPIBurst": 200,
        "maxPods": 110,
        "systemReserved": reserved(node, machine),
    }
    return yaml.safe_dump(config)


COREFILE_TEMPLATE = """.:53 {{
    errors
    ready 127.0.0.1:8181
    kubernetes cluster.local in-addr.arpa ip6.arpa {{
        kubeconfig {kubeconfig}
        ttl 5
    }}
    cache 5 {{
        denial 9984 1
    }}
}}
"""


def corefile(kubeconfig_path: Path) -> str:
    """CoreDNS's configuration: the cluster's own names only; other names are refused at once."""
    return COREFILE_TEMPLATE.format(kubeconfig=kubeconfig_path)


def binding(role: str, subject: dict[str, Any]) -> dict[str, Any]:
    """Gives a subject a cluster role; the binding is named like the role."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": f"fdl:{role.removeprefix('fdl:')}"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [subject],
    }


def _user(role: str, user: str) -> dict[str, Any]:
    return binding(role, {"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"})


def _role(name: str, rules: list[tuple[list[str], list[str], list[str]]]) -> dict[str, Any]:
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": [{"apiGroups": g, "resources": r, "verbs": v} for g, r, v in rules],
    }


_WATCH = ["get", "list", "watch"]
_VOLUMES = [*_WATCH, "create", "delete", "patch", "update"]


def provisioner_role() -> dict[str, Any]:
    """What the volume provisioner may do."""
    return _role(
        "fdl:provisioner",
        [
            ([""], ["persistentvolumes"], _VOLUMES),
            ([""], ["persistentvolumeclaims"], [*_WATCH, "update", "patch"]),
            ([""], ["nodes"], _WATCH),
            (["storage.k8s.io"], ["storageclasses"], _WATCH),
            ([""], ["events"], ["create", "patch", "update"]),
            (["events.k8s.io"], ["events"], ["create", "patch", "update"]),
        ],
    )


def storage_class(default: bool) -> dict[str, Any]:
    """The class ``fdl-local``: volumes that all nodes can mount at once."""
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"} if default else {}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": STORAGE_CLASS, "annotations": annotations},
        "provisioner": PROVISIONER,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate",
    }


def addons(subnets: Subnets) -> list[dict[str, Any]]:
    """Objects that every cluster starts with: rights of its own programs, DNS service, default storage class."""
    dns_ports = [("dns", "UDP"), ("dns-tcp", "TCP")]
    return [
        _role(
            "fdl:dns",
            [
                ([""], ["services", "pods", "namespaces", "endpoints"], _WATCH),
                (["discovery.k8s.io"], ["endpointslices"], _WATCH),
            ],
        ),
        _user("fdl:dns", "fdl:coredns"),
        _role(
            "fdl:router",
            [
                ([""], ["namespaces", "pods", "services", "nodes", "endpoints"], _WATCH),
                (["discovery.k8s.io"], ["endpointslices"], _WATCH),
                (["networking.k8s.io"], ["networkpolicies"], _WATCH),
            ],
        ),
        _user("fdl:router", "fdl:kube-router"),
        provisioner_role(),
        _user("fdl:provisioner", "fdl:hostpath-provisioner"),
        _user("system:node-proxier", "system:kube-proxy"),
        storage_class(default=True),
        # CoreDNS runs in the control plane's namespace and not as a pod, so that a fault of a node never
        # takes DNS away; the service therefore has no selector and its slice is written by hand.
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}},
            "spec": {
                "clusterIP": subnets.dns_service,
                "ports": [{"name": n, "port": 53, "targetPort": 53, "protocol": p} for n, p in dns_ports],
            },
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": "kube-dns",
                "namespace": "kube-system",
                "labels": {"kubernetes.io/service-name": "kube-dns"},
            },
            "addressType": "IPv4",
            "endpoints": [{"addresses": [subnets.control], "conditions": {"ready": True}}],
            "ports": [{"name": n, "port": 53, "protocol": p} for n, p in dns_ports],
        },
    ]


def node_object(node: NodeSpec, pods: str) -> dict[str, Any]:
    """The Node as it is made before its kubelet starts: its range of pod addresses must be ours."""
    labels = {"kubernetes.io/hostname": node.name, "kubernetes.io/os": "linux"}
    if node.simulated:
        labels["fdl.dev/simulated"] = "true"
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "labels": labels},
        "spec": {"podCIDR": pods, "podCIDRs": [pods]},
    }
