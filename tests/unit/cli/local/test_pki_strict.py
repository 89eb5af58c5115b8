"""Certificates of the local cluster stand the strict checks that Python 3.13 makes by default."""

import socket
import ssl
import threading
from pathlib import Path

from fdl_cli.local import pki


def test_a_strict_client_accepts_the_api_servers_certificate(tmp_path: Path) -> None:
    authority = pki.Authority.create(tmp_path)
    (subject,) = [entry for entry in pki.control_subjects(("127.0.0.1",)) if entry.file == "apiserver"]
    authority.issue(subject)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "apiserver.crt", tmp_path / "apiserver.key")
    client = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    client.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            plain, _ = listener.accept()
            with plain, server.wrap_socket(plain, server_side=True) as secure:
                secure.recv(1)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        with (
            socket.create_connection(listener.getsockname(), timeout=5) as plain,
            client.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
        ):
            secure.sendall(b"x")
        thread.join(timeout=5)
