"""The few calls to the API server that the demo needs, and kubectl and helm as a user would run them."""

import base64
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from kubernetes import client, config
from kubernetes.client.exceptions import ApiException

from fdl_api.labels import RUN
from fdl_api.version import API_VERSION, GROUP

COMMAND_SECONDS = 300.0


class DemoError(Exception):
    """The demo cannot go on; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Tools:
    """The client programs and the file that tells them the cluster."""

    kubeconfig: Path
    kubectl: Path
    helm: Path

    def call(self, program: Path, *arguments: str, text: str | None = None, limit: float = COMMAND_SECONDS) -> str:
        """Run a program and return its output.

        Raises:
            DemoError: it failed or took longer than ``limit`` seconds; the text is its own complaint.
        """
        environment = {**os.environ, "KUBECONFIG": str(self.kubeconfig)}
        try:
            done = subprocess.run(
                [str(program), *arguments],
                input=text,
                stdin=None if text is not None else subprocess.DEVNULL,
                capture_output=True,
                text=True,
                env=environment,
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            shown = " ".join((program.name, *arguments))
            raise DemoError(f"'{shown}' did not end within {limit:.0f} s; look with kubectl get pods -A") from error
        if done.returncode:
            shown = " ".join((program.name, *arguments))
            raise DemoError(f"'{shown}' failed: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout


class Kube:
    """Reads runs, pods and Secrets of one cluster."""

    def __init__(self, kubeconfig: Path) -> None:
        connect: Callable[[str], Any] = config.new_client_from_config
        api = connect(str(kubeconfig))
        self._core = client.CoreV1Api(api)
        self._custom = client.CustomObjectsApi(api)

    def run(self, namespace: str, name: str) -> dict[str, Any] | None:
        """The FdlRun as the server has it, or ``None``."""
        try:
            found = self._custom.get_namespaced_custom_object(
                GROUP, API_VERSION, namespace, "fdlruns", name, _request_timeout=10
            )
        except ApiException as error:
            if error.status == 404:
                return None
            raise
        return cast(dict[str, Any], found)

    def pods(self, namespace: str, run: str) -> list[Any]:
        """Pods of a run."""
        found = self._core.list_namespaced_pod(namespace, label_selector=f"{RUN}={run}", _request_timeout=10)
        return cast(list[Any], found.items)

    def pod(self, namespace: str, name: str) -> Any | None:
        """One pod, or ``None``."""
        try:
            return self._core.read_namespaced_pod(name, namespace, _request_timeout=10)
        except ApiException as error:
            if error.status == 404:
                return None
            raise

    def logs(self, namespace: str, pod: str) -> str:
        """What a pod wrote."""
        return self._core.read_namespaced_pod_log(pod, namespace, _request_timeout=30)

    def secret(self, namespace: str, name: str) -> dict[str, bytes]:
        """Content of a Secret."""
        found = self._core.read_namespaced_secret(name, namespace, _request_timeout=10)
        return {key: base64.b64decode(value) for key, value in (found.data or {}).items()}


def wait(what: str, seconds: float, ready: Callable[[], bool], pause: float = 0.3) -> None:
    """Ask until something is so.

    Raises:
        DemoError: it was not within ``seconds``.
    """
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            raise DemoError(f"{what}: not within {seconds:.0f} s")
        time.sleep(pause)
