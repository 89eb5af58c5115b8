"""Calls to a server that speaks TLS with a certificate of its own, as an API server does."""

import http.server
import json
import ssl
import subprocess
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fdl_prober.access import Access, AccessError, in_cluster
from fdl_prober.server import Server, ServerError, clock_offset


class Handler(http.server.BaseHTTPRequestHandler):
    """Tells what it was asked; the node ``refused`` is refused, the node ``nonsense`` is no JSON."""

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        asked = {
            "path": self.path,
            "method": self.command,
            "token": self.headers["Authorization"],
            "type": self.headers["Content-Type"],
            "body": self.rfile.read(length).decode(),
            "metadata": {"name": "n1"},
        }
        refused = self.path.startswith("/api/v1/nodes/refused")
        content = json.dumps({"message": "no such right"} if refused else asked).encode()
        content = b"<html>" if self.path.startswith("/api/v1/nodes/nonsense") else content
        self.send_response(403 if refused else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_PATCH = _answer  # noqa: N815 - names of the library

    def log_message(self, *_: Any) -> None:
        """Write nothing."""


def self_signed(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate that signs itself, and its key."""
    cert, key = folder / "ca.crt", folder / "tls.key"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    made += ["-days", "2", "-subj", f"/CN={name}", "-addext", f"subjectAltName=IP:{name}"]
    subprocess.run([*made, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True, timeout=60)
    return cert, key


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return self_signed(tmp_path_factory.mktemp("tls"), "127.0.0.1")


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return self_signed(tmp_path_factory.mktemp("other"), "127.0.0.2")[0]


@pytest.fixture
def access(certificate: tuple[Path, Path], tmp_path: Path) -> Iterator[Access]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    (tmp_path / "token").write_text("first\n")
    try:
        yield Access(f"https://127.0.0.1:{server.server_address[1]}", certificate[0], tmp_path / "token")
    finally:
        server.shutdown()
        thread.join(10)
        server.server_close()


async def test_a_call_carries_the_newest_token(access: Access) -> None:
    server = Server(access, "n1", "ns")
    assert (await server.node())["token"] == "Bearer first"
    access.token_file.write_text("second")
    assert (await server.node())["token"] == "Bearer second"
    assert abs(server.clock_offset_seconds or 99.0) < 60


async def test_an_apply_is_a_patch_of_the_own_node(access: Access) -> None:
    told = await Server(access, "n1", "ns").apply({"kind": "Node"})
    assert (told["method"], told["type"], json.loads(told["body"])) == (
        "PATCH",
        "application/apply-patch+yaml",
        {"kind": "Node"},
    )
    assert told["path"] == "/api/v1/nodes/n1?fieldManager=fdl-prober&force=true"


async def test_a_refusal_has_the_servers_words(access: Access) -> None:
    with pytest.raises(ServerError, match="403: no such right") as caught:
        await Server(access, "refused", "ns").node()
    assert caught.value.refused


async def test_an_answer_that_is_no_json_is_a_fault_of_the_server(access: Access) -> None:
    with pytest.raises(ServerError, match="no JSON") as caught:
        await Server(access, "nonsense", "ns").node()
    assert not caught.value.refused


async def test_a_server_that_is_somebody_else_is_not_spoken_to(access: Access, foreign: Path) -> None:
    with pytest.raises(ServerError, match="SSLCertVerificationError") as caught:
        await Server(Access(access.url, foreign, access.token_file), "n1", "ns").node()
    assert not caught.value.refused


async def test_a_server_that_is_not_there(access: Access) -> None:
    with pytest.raises(ServerError, match="ConnectionRefused"):
        await Server(Access("https://127.0.0.1:1", access.ca_file, access.token_file), "n1", "ns").node()


def test_access_as_a_pod_has_it(tmp_path: Path) -> None:
    env = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    with pytest.raises(AccessError, match=r"ca\.crt is missing"):
        in_cluster(env, tmp_path)
    (tmp_path / "ca.crt").touch()
    (tmp_path / "token").touch()
    assert in_cluster(env, tmp_path).url == "https://[fd00::1]:443"
    with pytest.raises(AccessError, match="--local"):
        in_cluster({}, tmp_path)


def test_the_offset_of_a_clock() -> None:
    now = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert clock_offset("Wed, 02 Jan 2030 03:04:00 GMT", now, now) == pytest.approx(4.5)
    assert clock_offset(None, now, now) is None
    assert clock_offset("soon", now, now) is None
