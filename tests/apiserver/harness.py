"""Starts etcd and kube-apiserver from the local cluster's build, and talks to them.

No controller and no node runs, so objects stay as they are written. ``FDL_TEST_BIN`` names another folder
with the two programs.
"""

import json
import os
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

START_LIMIT_S = 120.0
REQUEST_LIMIT_S = 30.0
APPLY = "application/apply-patch+yaml"
MERGE = "application/merge-patch+json"


@dataclass(frozen=True)
class Answer:
    """What the server said."""

    code: int
    body: dict[str, Any]
    warnings: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        """The sentence of a refusal."""
        return str(self.body.get("message", ""))


@dataclass(frozen=True)
class ApiServer:
    """A running API server and an administrator's access to it."""

    url: str
    token: str
    ca_file: Path
    kubeconfig: Path
    audit_log: Path
    bin: Path

    def request(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json", **query: str
    ) -> Answer:
        """One request; refusals are answers, not exceptions."""
        url = f"{self.url}{path}?{urllib.parse.urlencode(query)}"
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": content_type}
        request = urllib.request.Request(url, data=data, method=method, headers=headers)
        context = ssl.create_default_context(cafile=self.ca_file)
        try:
            with urllib.request.urlopen(request, timeout=REQUEST_LIMIT_S, context=context) as response:
                warnings = tuple(response.headers.get_all("Warning") or ())
                text = response.read()
                code = response.status
        except urllib.error.HTTPError as refused:
            warnings, text, code = (), refused.read(), refused.code
        is_object = text.lstrip().startswith(b"{")
        return Answer(code, json.loads(text) if is_object else {"message": text.decode()}, warnings)

    def apply(self, path: str, body: Any, manager: str = "test", force: bool = False) -> Answer:
        """Server-side apply of one object at ``path``."""
        query = {"fieldManager": manager, "force": str(force).lower(), "fieldValidation": "Strict"}
        return self.request("PATCH", path, body, APPLY, **query)


@contextmanager
def _running(arguments: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A program that is killed at the end, and also when the test process dies without one."""
    with log.open("wb") as output:
        process = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", *arguments], stdout=output, stderr=output)
    try:
        yield process
    finally:
        process.kill()
        process.wait(timeout=30)


def _free_ports(count: int) -> list[int]:
    """Ports that are free now; held together, so that they differ."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _write_key(folder: Path) -> tuple[Path, Path]:
    """Key pair for service account tokens."""
    key = ec.generate_private_key(ec.SECP256R1())
    private, public = folder / "sa.key", folder / "sa.pub"
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    public.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return private, public


def _kubeconfig(url: str, token: str, ca_file: Path) -> str:
    entry = {
        "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority": str(ca_file)}}],
        "users": [{"name": "test", "user": {"token": token}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
    }
    return yaml.safe_dump({"apiVersion": "v1", "kind": "Config", "current-context": "test", **entry})


def _binaries() -> Path:
    if given := os.environ.get("FDL_TEST_BIN"):
        return Path(given)
    from fdl_cli.local.build import find_bin

    if (folder := find_bin()) is None:
        pytest.fail("no API server to test against: 'fdl local up' builds one, or FDL_TEST_BIN names its folder")
    return folder


@contextmanager
def started(folder: Path) -> Iterator[ApiServer]:
    """An API server on free loopback ports with its files in ``folder``; killed at the end.

    Admission of service accounts is off, since without a controller nobody makes them.
    """
    binaries = _binaries()
    etcd_port, peer_port, port = _free_ports(3)
    etcd, url, token = f"http://127.0.0.1:{etcd_port}", f"https://127.0.0.1:{port}", uuid.uuid4().hex
    private, public = _write_key(folder)
    (folder / "tokens.csv").write_text(f"{token},admin,admin,system:masters\n")
    policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"]}
    (folder / "audit.json").write_text(json.dumps(policy | {"rules": [{"level": "Metadata"}]}))
    (folder / "kubeconfig").write_text(_kubeconfig(url, token, folder / "certs" / "apiserver.crt"))
    etcd_arguments = {
        "data-dir": folder / "etcd",
        "listen-client-urls": etcd,
        "advertise-client-urls": etcd,
        "listen-peer-urls": f"http://127.0.0.1:{peer_port}",
        "unsafe-no-fsync": "true",
    }
    arguments = {
        "etcd-servers": etcd,
        "bind-address": "127.0.0.1",
        "secure-port": port,
        "cert-dir": folder / "certs",
        "token-auth-file": folder / "tokens.csv",
        "authorization-mode": "RBAC",
        "service-cluster-ip-range": "10.96.0.0/16",
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-key-file": public,
        "service-account-signing-key-file": private,
        "disable-admission-plugins": "ServiceAccount",
        "audit-policy-file": folder / "audit.json",
        "audit-log-path": folder / "audit.log",
        "allow-privileged": "true",
    }
    with (
        _running([str(binaries / "etcd"), *_flags(etcd_arguments)], folder / "etcd.log"),
        _running([str(binaries / "kube-apiserver"), *_flags(arguments)], folder / "apiserver.log") as process,
    ):
        server = ApiServer(
            url, token, folder / "certs" / "apiserver.crt", folder / "kubeconfig", folder / "audit.log", binaries
        )
        _wait_until_ready(server, process, folder / "apiserver.log")
        yield server


def _flags(arguments: dict[str, Any]) -> list[str]:
    return [f"--{name}={value}" for name, value in arguments.items()]


def _wait_until_ready(server: ApiServer, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            if server.request("GET", "/readyz").code == 200:
                return
        except OSError:
            pass  # no certificate or no socket yet
        time.sleep(0.1)
    pytest.fail(f"kube-apiserver ended or was not ready in {START_LIMIT_S:.0f} s:\n{log.read_text()[-3000:]}")
