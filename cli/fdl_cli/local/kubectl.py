"""Talking to a cluster by its own kubectl, for the few calls that bring it up."""

import json
import os
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fdl_cli.local import processes
from fdl_cli.local.errors import LocalError


def _environment() -> dict[str, str]:
    """This process's environment; a local API server is never behind a proxy."""
    return os.environ | {"NO_PROXY": "*", "no_proxy": "*"}


class Kubectl:
    """``kubectl`` of one cluster."""

    def __init__(self, program: Path, kubeconfig: Path) -> None:
        self._base = [str(program), f"--kubeconfig={kubeconfig}"]

    def run(self, *arguments: str, stdin: str | None = None, limit_s: float = 60.0, check: bool = True) -> str:
        """Output of one command.

        Raises:
            LocalError: it failed (unless ``check`` is false) or took longer than ``limit_s`` seconds.
        """
        command = [*self._base, f"--request-timeout={max(1, int(limit_s))}s", *arguments]
        try:
            done = subprocess.run(
                processes.bound(command),
                input=stdin,
                capture_output=True,
                text=True,
                timeout=limit_s + 5,
                check=False,
                env=_environment(),
            )
        except subprocess.TimeoutExpired as fault:
            raise LocalError(f"`kubectl {' '.join(arguments)}` took longer than {limit_s:.0f} s.") from fault
        if done.returncode and check:
            raise LocalError(f"`kubectl {' '.join(arguments)}` failed: {done.stderr.strip()}")
        return done.stdout

    def json(self, *arguments: str) -> Any:
        """Output of one command as JSON."""
        return json.loads(self.run(*arguments, "-o", "json"))

    def find(self, *arguments: str) -> Any | None:
        """One object as JSON, or ``None`` when there is no such object."""
        found = self.run("get", *arguments, "--ignore-not-found", "-o", "json")
        return json.loads(found) if found.strip() else None

    def apply(self, objects: Sequence[dict[str, Any]]) -> None:
        """Server-side apply of objects."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
        flags = ("--server-side", "--force-conflicts", "--field-manager=fdl-local")
        self.run("apply", *flags, "-f", "-", stdin=text)

    def ready(self) -> bool:
        """Whether the API server is ready."""
        try:
            return self.run("get", "--raw", "/readyz", limit_s=3, check=False).strip() == "ok"
        except LocalError:
            return False

    def wait_ready(self, log: Path, limit_s: float = 90.0) -> None:
        """Waits for the API server.

        Raises:
            LocalError: it is not ready in time.
        """
        deadline = time.monotonic() + limit_s
        while not self.ready():
            if time.monotonic() > deadline:
                raise LocalError(f"The API server is not ready after {limit_s:.0f} s: see {log}.")
            time.sleep(0.1)

    def ready_nodes(self) -> set[str]:
        """Names of the nodes that are Ready."""
        items = self.json("get", "nodes")["items"]
        return {
            n["metadata"]["name"]
            for n in items
            if any(c["type"] == "Ready" and c["status"] == "True" for c in n["status"].get("conditions", []))
        }

    def wait_nodes(self, names: Sequence[str], logs: Path, limit_s: float = 120.0) -> None:
        """Waits until nodes are Ready.

        Raises:
            LocalError: some are not in time; names them and their last condition.
        """
        deadline = time.monotonic() + limit_s
        while left := set(names) - self.ready_nodes():
            if time.monotonic() > deadline:
                raise LocalError(
                    f"{', '.join(sorted(left))}: not Ready after {limit_s:.0f} s. "
                    f"See `kubectl describe node {min(left)}` and {logs}/{min(left)}/kubelet.log."
                )
            time.sleep(0.2)

    def wait_allocatable(self, node: str, wanted: dict[str, int], limit_s: float = 60.0) -> None:
        """Waits until a node offers just these numbers of devices.

        Raises:
            LocalError: it does not in time.
        """
        deadline = time.monotonic() + limit_s
        while True:
            offered = self.json("get", "node", node)["status"].get("allocatable", {})
            if all(int(offered.get(resource, 0)) == count for resource, count in wanted.items()):
                return
            if time.monotonic() > deadline:
                raise LocalError(f"{node} does not offer {wanted} after {limit_s:.0f} s, but {offered}.")
            time.sleep(0.2)
