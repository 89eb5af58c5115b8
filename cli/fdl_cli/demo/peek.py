"""Reads a coordinator's ``/state.json`` through ``kubectl port-forward``, so that the view moves every second.

Nothing depends on it: when it does not answer (a restart of the coordinator), the FdlRun's status serves.
"""

import contextlib
import http.client
import os
import re
import selectors
import socket
import ssl
import subprocess
from types import TracebackType
from typing import Self

from kubernetes.client.exceptions import ApiException

from fdl_api.names import COORDINATOR_PORT, coordinator_host, secret
from fdl_api.wire import STATE_PATH, State
from fdl_cli.demo.kube import Kube, Tools

_FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+)")


class Peek:
    """One run's coordinator, seen from the machine."""

    def __init__(self, tools: Tools, kube: Kube, namespace: str, run: str) -> None:
        self._tools = tools
        self._kube = kube
        self._namespace = namespace
        self._run = run
        self._forward: subprocess.Popen[str] | None = None
        self._port = 0
        self._secret: dict[str, bytes] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def state(self, pod: str) -> State | None:
        """The state now, or ``None`` when the coordinator in ``pod`` does not answer."""
        try:
            if self._forward is None or self._forward.poll() is not None:
                self._start(pod)
            return self._get()
        except (OSError, ValueError, http.client.HTTPException, ApiException):
            self._stop()
            return None

    def _start(self, pod: str) -> None:
        self._stop()
        if not self._secret:
            self._secret = self._kube.secret(self._namespace, secret(self._run))
        self._forward = subprocess.Popen(
            [str(self._tools.kubectl), "-n", self._namespace, "port-forward", f"pod/{pod}", f":{COORDINATOR_PORT}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "KUBECONFIG": str(self._tools.kubeconfig)},
        )
        assert self._forward.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._forward.stdout, selectors.EVENT_READ)
            if not selector.select(timeout=5):
                raise OSError("kubectl port-forward said nothing")
        found = _FORWARDING.match(self._forward.stdout.readline())
        if found is None:
            raise OSError("kubectl port-forward did not open a port")
        self._port = int(found[1])

    def _get(self) -> State:
        context = ssl.create_default_context(cadata=self._secret["ca.crt"].decode())
        host = coordinator_host(self._run, self._namespace)
        with (
            socket.create_connection(("127.0.0.1", self._port), timeout=3) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            token = self._secret["token"].decode().strip()
            request = f"GET {STATE_PATH} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {token}\r\nConnection: close"
            secure.sendall(f"{request}\r\n\r\n".encode())
            answer = http.client.HTTPResponse(secure)
            answer.begin()
            return State.model_validate_json(answer.read())

    def _stop(self) -> None:
        if self._forward is None:
            return
        self._forward.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._forward.wait(timeout=3)
        if self._forward.poll() is None:
            self._forward.kill()
            self._forward.wait(timeout=3)
        if self._forward.stdout is not None:
            self._forward.stdout.close()
        self._forward = None
