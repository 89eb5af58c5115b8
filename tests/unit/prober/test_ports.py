"""Ports: real sockets of this machine, and tables as the kernel writes them."""

import os
import socket
from pathlib import Path

import pytest

from fdl_prober import ports

TABLE = """  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1CA9 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0
   1: 0100007F:1CA9 0100007F:8000 01 00000000:00000000 00:00000000 00000000     0        0 4712 1 0 20 4 30 10 -1
   2: half a line
"""


def test_only_listening_sockets_count() -> None:
    assert ports.parse(TABLE) == [ports.Listener(7337, "4711")]


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_INET6])
def test_a_program_that_listens_is_named(family: socket.AddressFamily) -> None:
    with socket.socket(family) as server:
        server.bind(("127.0.0.1" if family is socket.AF_INET else "::1", 0))
        server.listen()
        number = server.getsockname()[1]
        (found,) = ports.listening(Path("/proc"), [number])
    assert found.port == number and found.owner.endswith(f"({os.getpid()})")


def test_a_free_port_has_no_listener(tmp_path: Path) -> None:
    assert ports.listening(tmp_path, [7337]) == ()
