"""Network interfaces and RDMA devices, from sysfs and the kernel's tables."""

import fcntl
import ipaddress
import re
import socket
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

from fdl_api.report import Interface, RdmaDevice
from fdl_prober.text import known_word, plain, word

_SIOCGIFADDR = 0x8915
_OPERSTATE = re.compile(r"[a-z]{1,20}")
_PORT_STATE = re.compile(r"(\d: ?)?[A-Za-z_]{1,20}")
MAX_INTERFACES = 64
"""A host with many containers has one interface for each; a report holds so many, usable ones first."""


def _ipv4(name: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode(errors="surrogateescape")[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def ipv6(proc: Path) -> dict[str, list[str]]:
    """Global IPv6 addresses by interface; none where the kernel has no IPv6.

    Raises:
        ValueError: its table makes no sense.
    """
    try:
        return ipv6_addresses((proc / "net/if_inet6").read_text())
    except FileNotFoundError:
        return {}


def ipv6_addresses(text: str) -> dict[str, list[str]]:
    """Global IPv6 addresses by interface, from ``/proc/net/if_inet6``.

    Raises:
        ValueError: a line is none of the kernel's.
    """
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) != 6:
            raise ValueError(f"if_inet6 has a line without six fields: {plain(line)}")
        if fields[3] == "00":
            found.setdefault(fields[5], []).append(str(ipaddress.IPv6Address(bytes.fromhex(fields[0]))))
    return found


def _number(path: Path) -> int:
    """A number of the kernel's; 0 where it says none."""
    try:
        return max(0, int(path.read_text()))
    except (OSError, ValueError):
        return 0


def interfaces(sysfs: Path, six: Mapping[str, Sequence[str]]) -> tuple[Interface, ...]:
    """Interfaces of this network namespace, loopback left out. A pod's are the ones that members will see.

    Args:
        sysfs: root of the kernel's sysfs.
        six: global IPv6 addresses by interface.

    Raises:
        ValueError: the state of one makes no sense.
    """
    net = sysfs / "class/net"
    found = []
    for folder in sorted(net.iterdir()) if net.is_dir() else ():
        if folder.name == "lo" or not folder.is_dir():
            continue
        four = _ipv4(folder.name)
        found.append(
            Interface(
                name=plain(folder.name),
                addresses=(*([four] if four else ()), *six.get(folder.name, ())),
                speed_mbps=_number(folder / "speed"),
                mtu=_number(folder / "mtu"),
                up=known_word(folder / "operstate", _OPERSTATE) in ("up", "unknown"),
            )
        )
    found.sort(key=lambda item: (not (item.up and item.addresses), item.name))
    return tuple(found[:MAX_INTERFACES])


def rdma(sysfs: Path) -> tuple[RdmaDevice, ...]:
    """RDMA devices with the state of their ports; kernels show them to containers of the host's namespace only.

    Raises:
        ValueError: the state of a port makes no sense.
    """
    folder = sysfs / "class/infiniband"
    found = []
    for device in sorted(folder.iterdir()) if folder.is_dir() else ():
        ports = sorted((device / "ports").glob("*"))
        active = [port for port in ports if known_word(port / "state", _PORT_STATE).upper().endswith("ACTIVE")]
        shown = active or ports
        found.append(
            RdmaDevice(
                name=plain(device.name),
                active_ports=len(active),
                rate=word(shown[0] / "rate") if shown else "",
                link=word(shown[0] / "link_layer") if shown else "",
            )
        )
    return tuple(found)
