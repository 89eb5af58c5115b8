"""The network interfaces of this machine that have an IPv4 address."""

import contextlib
import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915


def ipv4_addresses() -> dict[str, str]:
    """First IPv4 address of each interface that has one, by its name, in the kernel's order."""
    found: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
                found[name] = socket.inet_ntoa(answer[20:24])
    return found
