"""The address that a run's groups use on this machine, by the variables that its backends read."""

import contextlib
import fcntl
import socket
import struct
from collections.abc import Mapping, Sequence

from fdl_api.run import Mode

_SIOCGIFADDR = 0x8915


def group_address(mode: Mode, own: str, environment: Mapping[str, str]) -> str:
    """IP address of the interface that the groups of a mode use; a member's own where none is named or it has none.

    Args:
        mode: of the run.
        own: address at which the member says that others reach it.
        environment: may name an interface (``GLOO_SOCKET_IFNAME``) or several (``NCCL_SOCKET_IFNAME``).
    """
    addresses = {name: address for _, name in socket.if_nameindex() if (address := address_of(name)) is not None}
    if not mode.is_nccl:
        return addresses.get(environment.get("GLOO_SOCKET_IFNAME", ""), own)
    names = nccl_interfaces(list(addresses), environment.get("NCCL_SOCKET_IFNAME", ""))
    meant = [addresses[name] for name in names]
    return own if own in meant or not meant else meant[0]


def nccl_interfaces(names: Sequence[str], pattern: str) -> list[str]:
    """Interfaces that ``NCCL_SOCKET_IFNAME`` allows, in their order; none when it is empty.

    It is a list of prefixes, of whole names after ``=``, of what to leave out after ``^``, as NCCL's manual says.
    """
    text = pattern.strip()
    without = text.startswith("^")
    text = text.removeprefix("^")
    exact = text.startswith("=")
    wanted = [part for part in text.removeprefix("=").split(",") if part]
    if not wanted:
        return []

    def named(name: str) -> bool:
        return name in wanted if exact else name.startswith(tuple(wanted))

    return [name for name in names if named(name) != without]


def address_of(interface: str) -> str | None:
    """First IPv4 address of an interface; None when it has none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, contextlib.suppress(OSError):
        answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", interface.encode()[:15]))
        return socket.inet_ntoa(answer[20:24])
    return None
