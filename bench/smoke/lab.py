"""A cluster with fdl, runs on it, and what the runs log on their volume."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console

from bench.smoke.figures import read_commits, resident
from fdl_api import labels
from fdl_api.wire import State
from fdl_cli.demo import setup
from fdl_cli.demo.kube import DemoError, Kube, Tools
from fdl_cli.demo.peek import Peek
from fdl_cli.images.command import ensure_images
from fdl_cli.local import Cluster
from fdl_cli.local.nodespec import parse_node

NAMESPACE = "fdl-bench"
CLAIM = "work"
SCRIPT = "/opt/fdl/examples/digits/train.py"
BATCH_SIZE, WIDTH = 64, 48
NEVER = 100_000
"""Epochs of runs that are deleted when they have served."""

GPU_NODE = "green"


class Lab:
    """One cluster for all figures."""

    def __init__(self, name: str, console: Console) -> None:
        self.console = console
        self.cluster = Cluster(name, say=lambda sentence: console.print(f"  {sentence}", markup=False, highlight=False))
        self._archives: list[Path] = []
        self._tools: Tools | None = None
        self._kube: Kube | None = None

    @property
    def tools(self) -> Tools:
        """kubectl and helm."""
        assert self._tools is not None, "the cluster is not up"
        return self._tools

    @property
    def kube(self) -> Kube:
        """The API server."""
        assert self._kube is not None, "the cluster is not up"
        return self._kube

    def up(self) -> float:
        """Start the cluster with all images; seconds that it took."""
        self._archives = list(ensure_images(console=self.console).values())
        self.cluster.build()
        self.cluster.down()
        started = time.monotonic()
        self.cluster.up(setup.NODES, provider="native", images=self._archives)
        took = time.monotonic() - started
        programs = self.cluster.bin
        self._tools = Tools(self.cluster.kubeconfig, programs / "kubectl", programs / "helm")
        self._kube = Kube(self.cluster.kubeconfig)
        return took

    def install(self) -> None:
        """The chart, and a namespace with a claim."""
        setup.install(self.tools, setup.checkout())
        self.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        spec = {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "fdl-local",
            "resources": {"requests": {"storage": "1Gi"}},
        }
        self.apply({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": CLAIM}, "spec": spec})

    def add_devices(self, devices: str) -> None:
        """Add a node with simulated devices, such as ``nvidia=2:sm_90``, with all images."""
        self.cluster.up([parse_node(f"name={GPU_NODE},{devices}")], images=self._archives)

    def set_devices(self, devices: str) -> None:
        """Change the devices of that node; returns when its kubelet offers them."""
        self.cluster.node_set(parse_node(f"name={GPU_NODE},{devices}"))

    def node_labels(self, node: str) -> dict[str, str]:
        """Labels of a node."""
        text = self.tools.call(self.tools.kubectl, "get", "node", node, "-o", "json")
        return dict(json.loads(text)["metadata"]["labels"])

    def probers(self) -> dict[str, str]:
        """Names of the probers' pods that run, by node."""
        selector = f"{labels.ROLE}={labels.ROLE_PROBER}"
        words = ("get", "pods", "-n", setup.SYSTEM, "-l", selector, "--field-selector=status.phase=Running")
        found = json.loads(self.tools.call(self.tools.kubectl, *words, "-o", "json"))["items"]
        return {pod["spec"]["nodeName"]: pod["metadata"]["name"] for pod in found}

    def memory(self, pod: str) -> float:
        """Resident memory of the largest process of a system pod, in MB of 1024 * 1024 bytes."""
        sizes = []
        for pid in self.cluster.node_pids(setup.SYSTEM, pod):
            with suppress(OSError):  # a look's own process may have ended
                sizes.append(resident(Path(f"/proc/{pid}/status").read_text()))
        return max(sizes, default=0.0)

    def apply(self, *objects: dict[str, Any]) -> None:
        """Apply objects into the namespace."""
        text = yaml.safe_dump_all(objects)
        self.tools.call(self.tools.kubectl, "-n", NAMESPACE, "apply", "-f", "-", text=text)

    def start(self, name: str, members: int = 3, node: str = "", epochs: int = NEVER, suspend: bool = False) -> None:
        """Apply a run of the digits example, pinned to a node if one is given."""
        cohort: dict[str, Any] = {"name": "cpu", "vendor": "cpu", "replicas": members}
        if node:
            cohort["nodeSelector"] = {"kubernetes.io/hostname": node}
        else:
            spread = {
                "topologyKey": "kubernetes.io/hostname",
                "maxSkew": 1,
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"fdl.dev/run": name, "fdl.dev/role": "member"}},
            }
            cohort["podTemplate"] = {"spec": {"topologySpreadConstraints": [spread]}}
        arguments = ["--epochs", str(epochs), "--batch-size", str(BATCH_SIZE), "--width", str(WIDTH)]
        spec = {
            "mode": "cpu-cadence",
            "trainer": {
                "image": "fdl.local/examples:dev",
                "source": {"image": {"path": SCRIPT}},
                "args": arguments,
            },
            "cohorts": [cohort],
            "checkpoint": {"claim": CLAIM, "intervalSeconds": 600},
            "data": {"audit": True},
            "failurePolicy": {"budgets": {"infrastructure": 1000}},
            "runPolicy": {"suspend": suspend},
        }
        self.apply({"apiVersion": "fdl.dev/v1alpha1", "kind": "FdlRun", "metadata": {"name": name}, "spec": spec})

    def remove(self, *runs: str) -> None:
        """Delete runs and wait until their pods are gone."""
        for name in runs:
            self.tools.call(self.tools.kubectl, "-n", NAMESPACE, "delete", "fdlrun", name, "--ignore-not-found")
        for name in runs:
            wait_until(f"{name} is gone", 120, partial(self._gone, name))

    def _gone(self, name: str) -> bool:
        return not self.kube.pods(NAMESPACE, name)

    def status(self, name: str) -> dict[str, Any]:
        """status of a run."""
        return dict((self.kube.run(NAMESPACE, name) or {}).get("status") or {})

    def peek(self, name: str) -> Peek:
        """The coordinator of a run."""
        return Peek(self.tools, self.kube, NAMESPACE, name)

    def state(self, view: Peek, name: str) -> State | None:
        """The coordinator's state of a run, or ``None``."""
        pod = self.status(name).get("coordinator", {}).get("podName", "")
        return view.state(pod) if pod else None

    def commits(self, name: str) -> list[tuple[int, int, frozenset[str]]]:
        """Commits that the ranks of a run have logged so far."""
        lines: list[str] = []
        for path in self.cluster.paths.volumes.glob(f"**/{name}-*/audit/*.jsonl"):
            lines += path.read_text().splitlines()
        return read_commits(lines)

    def kill(self, pod: str) -> None:
        """SIGKILL all processes of a pod."""
        for pid in self.cluster.node_pids(NAMESPACE, pod):
            with suppress(ProcessLookupError):  # the kernel ends the rest of a pod with its first process
                os.kill(pid, signal.SIGKILL)

    def audit_lines(self, start: int) -> list[str]:
        """Lines of the API server's audit log from a byte offset."""
        with self.cluster.audit_log.open("rb") as file:
            file.seek(start)
            return file.read().decode(errors="replace").splitlines()

    def audit_size(self) -> int:
        """Bytes of the audit log now."""
        return Path(self.cluster.audit_log).stat().st_size

    def kubectl(self, *arguments: str) -> None:
        """kubectl in the namespace; failures are the caller's to see in its figure."""
        subprocess.run(
            [str(self.tools.kubectl), "-n", NAMESPACE, *arguments],
            env={**os.environ, "KUBECONFIG": str(self.tools.kubeconfig)},
            check=True,
            capture_output=True,
            timeout=60,
        )


def wait_until(what: str, seconds: float, holds: Callable[[], bool], pause: float = 0.1) -> float:
    """Wait; returns the seconds it took.

    Raises:
        DemoError: not in time.
    """
    started = time.monotonic()
    while not holds():
        if time.monotonic() - started > seconds:
            raise DemoError(f"{what}: not within {seconds:.0f} s")
        time.sleep(pause)
    return time.monotonic() - started
