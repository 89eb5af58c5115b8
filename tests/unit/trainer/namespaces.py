"""Networks of our own on one machine: namespaces joined by a router, so that real packets can be lost in real ways.

A namespace belongs to a thread; what the thread starts (threads, processes) is inside, and it is gone with the last of
them.
"""

import contextlib
import ctypes
import os
import shlex
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import pytest

_CLONE_NEWNET = 0x40000000
Result = TypeVar("Result")


class Namespace:
    """A network namespace with a thread in it."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)
        self.tid = self.call(_enter_new)

    def call(self, work: Callable[[], Result]) -> Result:
        """Do something inside and wait for it."""
        return self._pool.submit(work).result()

    def sh(self, *commands: str) -> None:
        """Run commands inside; raises when one fails."""
        for command in commands:
            done = self.call(
                lambda command=command: subprocess.run(  # type: ignore[misc]
                    shlex.split(command), check=False, capture_output=True, text=True
                )
            )
            assert done.returncode == 0, f"{command}: {done.stderr}"

    def close(self) -> None:
        """End the thread."""
        self._pool.shutdown()


def _enter_new() -> int:
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    return threading.get_native_id()


@dataclass
class Network:
    """Two hosts and the router between them.

    Attributes:
        router: at 10.77.0.1 and 10.77.1.1, by the links ``to0`` and ``to1``.
        hosts: at 10.77.0.2 and 10.77.1.2, by the link ``eth0`` each.
    """

    router: Namespace
    hosts: list[Namespace]

    @staticmethod
    def address(host: int) -> str:
        """Address of a host."""
        return f"10.77.{host}.2"


@contextlib.contextmanager
def network() -> Iterator[Network]:
    """A network, where this machine lets us make one; the test is skipped elsewhere."""
    missing = [tool for tool in ("ip", "iptables") if shutil.which(tool) is None]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"network namespaces need root{' and ' + ', '.join(missing) if missing else ''}")
    with contextlib.ExitStack() as stack:
        try:
            spaces = [Namespace() for _ in range(3)]
        except OSError as error:
            pytest.skip(f"this machine makes no network namespaces ({error})")
        for space in spaces:
            stack.callback(space.close)
        router, *hosts = spaces
        router.sh("ip link set lo up", "sysctl -qw net.ipv4.ip_forward=1")
        for index, host in enumerate(hosts):
            router.sh(
                f"ip link add to{index} type veth peer name eth0 netns {host.tid}",
                f"ip address add 10.77.{index}.1/24 dev to{index}",
                f"ip link set to{index} up",
            )
            host.sh(
                "ip link set lo up",
                f"ip address add {Network.address(index)}/24 dev eth0",
                "ip link set eth0 up",
                f"ip route add default via 10.77.{index}.1",
            )
        yield Network(router, hosts)
