"""The kind provider: used where a Docker or Podman engine answers and can pull."""

import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from fdl_cli.local import images, render
from fdl_cli.local.errors import LocalError
from fdl_cli.local.kubectl import Kubectl
from fdl_cli.local.nodespec import NodeSpec
from fdl_cli.local.paths import ClusterPaths, tools_source

PROVISIONER_IMAGE = "fdl.local/hostpath-provisioner:1"
_PROBE_LIMIT_S = 20.0
_PULL_LIMIT_S = 300.0
_UP_LIMIT_S = 900.0


def settings() -> dict[str, Any]:
    """``tools/cluster/kind/settings.yaml``: the node image and what every kind cluster is configured with."""
    raw: dict[str, Any] = yaml.safe_load((tools_source() / "kind" / "settings.yaml").read_text())
    return raw


def _answers(command: Sequence[str], limit_s: float) -> bool:
    try:
        return subprocess.run(command, capture_output=True, timeout=limit_s, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def find_engine() -> str | None:
    """``docker`` or ``podman``, whichever's engine answers; a client alone proves nothing."""
    for engine in ("docker", "podman"):
        if shutil.which(engine) and _answers([engine, "info"], _PROBE_LIMIT_S):
            return engine
    return None


def usable() -> str | None:
    """The engine that kind can use: it answers, kind is installed, and the node image is here or can be pulled."""
    engine = find_engine()
    if engine is None or shutil.which("kind") is None:
        return None
    image = settings()["nodeImage"]
    here = _answers([engine, "image", "inspect", image], _PROBE_LIMIT_S)
    return engine if here or _answers([engine, "pull", image], _PULL_LIMIT_S) else None


def config(base: dict[str, Any], nodes: Sequence[NodeSpec], volumes: Path) -> str:
    """kind's configuration: one control plane and a worker for each node, all sharing the folder ``volumes``.

    Raises:
        LocalError: a node has a size or simulated devices, which only the native provider gives.
    """
    for node in nodes:
        if node.cpu is not None or node.memory is not None or node.simulated:
            raise LocalError(
                f"node {node.name}: kind's nodes have neither sizes nor simulated accelerators. Use --provider native."
            )
    shared = {"extraMounts": [{"hostPath": str(volumes), "containerPath": str(volumes)}]}
    workers = [{"role": "worker", "labels": {"fdl.dev/local-node": n.name}} | shared for n in nodes]
    return yaml.safe_dump(base | {"nodes": [{"role": "control-plane"} | shared, *workers]}, sort_keys=False)


def provisioner(volumes: Path) -> list[dict[str, Any]]:
    """Objects of the volume provisioner and its storage class, as in a native cluster."""
    namespace, name = "kube-system", "fdl-provisioner"
    account = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
    container = {
        "name": "provisioner",
        "image": PROVISIONER_IMAGE,
        "imagePullPolicy": "Never",
        "args": [f"--root={volumes}"],
        "securityContext": {"runAsUser": 0},
        "volumeMounts": [{"name": "volumes", "mountPath": str(volumes)}],
    }
    template = {
        "metadata": {"labels": {"app": name}},
        "spec": {
            "serviceAccountName": name,
            "containers": [container],
            "volumes": [{"name": "volumes", "hostPath": {"path": str(volumes)}}],
        },
    }
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}},
        render.provisioner_role(),
        render.binding("fdl:provisioner", account),
        render.storage_class(default=False),
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"selector": {"matchLabels": {"app": name}}, "template": template},
        },
    ]


class Kind:
    """One cluster made by kind."""

    def __init__(self, paths: ClusterPaths, engine: str, say: Callable[[str], None]) -> None:
        self._paths = paths
        self._engine = engine
        self._say = say

    def _kind(self, *arguments: str, limit_s: float = _UP_LIMIT_S) -> str:
        env_engine = {"KIND_EXPERIMENTAL_PROVIDER": self._engine}
        command = ["env", *(f"{k}={v}" for k, v in env_engine.items()), "kind", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
        if done.returncode:
            raise LocalError(f"`kind {' '.join(arguments)}` failed: {done.stderr.strip()[-1500:]}")
        return done.stdout

    def exists(self) -> bool:
        """Whether kind knows the cluster."""
        return self._paths.name in self._kind("get", "clusters", limit_s=60).split()

    def start(self, tools: Path, nodes: Sequence[NodeSpec], archives: Sequence[Path]) -> None:
        """Makes the cluster, loads images, and starts the volume provisioner; ``tools`` has kubectl."""
        base = settings()
        volumes = self._paths.volumes
        volumes.mkdir(parents=True, exist_ok=True)
        path = self._paths.root / "kind.yaml"
        path.write_text(config(base["cluster"], nodes, volumes))
        self._say(f"Starting {len(nodes)} nodes by kind on {self._engine}")
        arguments = ["--name", self._paths.name, "--image", base["nodeImage"], "--config", str(path)]
        kubeconfig = ["--kubeconfig", str(self._paths.kubeconfig), "--wait", "120s"]
        self._kind("create", "cluster", *arguments, *kubeconfig)
        archive = self._paths.root / "provisioner.tar"
        program = tools / "hostpath-provisioner"
        images.write_archive(archive, PROVISIONER_IMAGE, {"provisioner": program}, ["/provisioner"])
        self.load([archive, *archives])
        Kubectl(tools / "kubectl", self._paths.kubeconfig).apply(provisioner(volumes))

    def load(self, archives: Sequence[Path]) -> None:
        """Loads image archives into all nodes."""
        for archive in archives:
            self._say(f"Loading {archive.name}")
            self._kind("load", "image-archive", str(archive), "--name", self._paths.name)

    def clear(self) -> None:
        """Removes the cluster and its files."""
        self._kind("delete", "cluster", "--name", self._paths.name)
        if self._paths.root.exists():
            shutil.rmtree(self._paths.root)
