"""Checks of the network: interfaces, RDMA, shared memory."""

from collections.abc import Iterator
from typing import Final

from fdl_api.checks import machine as catalogue
from fdl_api.report import Check, Interface
from fdl_prober.facts import Facts

MIB: Final = 1 << 20
GIB: Final = 1 << 30
LOCKED_BYTES: Final = 64 * MIB
"""RDMA registers whole buffers; the usual limits that are too small are 64 KiB and 8 MiB."""


def _told(item: Interface) -> str:
    more = [f"{item.speed_mbps} Mbit/s"] if item.speed_mbps else []
    more += [f"MTU {item.mtu}"] if item.mtu else []
    return f"{item.name} {item.addresses[0]}" + (f" ({', '.join(more)})" if more else "")


def interfaces(facts: Facts) -> Iterator[Check]:
    """Whether a pod here has an interface that other nodes can reach."""
    if facts.unseen("host", "interfaces"):
        return
    usable = [item for item in facts.host.interfaces if item.up and item.addresses]
    if not usable and facts.unseen("ipv6-addresses"):
        return
    if usable:
        more = f" and {len(usable) - 8} more" if len(usable) > 8 else ""
        yield catalogue.INTERFACES.passed(", ".join(_told(item) for item in usable[:8]) + more)
    else:
        yield catalogue.INTERFACES.found("none", "there is no network interface that is up and has an address")


def socket_interface(facts: Facts) -> Iterator[Check]:
    """Whether the interface that the cluster names for collectives is there and works."""
    name, info = facts.socket_interface, catalogue.SOCKET_INTERFACE
    if not name or facts.unseen("host", "interfaces"):
        return
    found = next((item for item in facts.host.interfaces if item.name == name), None)
    if name == "lo":
        yield info.found("loopback", "the loopback reaches no other machine", name)
    elif found is None:
        there = ", ".join(item.name for item in facts.host.interfaces[:16]) or "none"
        yield info.found("missing", f"there is no such interface; there are: {there}", name)
    elif not found.up:
        yield info.found("down", "it is down", name)
    elif not found.addresses and facts.unseen("ipv6-addresses"):
        return
    elif not found.addresses:
        yield info.found("no-address", "it has no address", name)
    else:
        yield info.passed(_told(found), name)


def rdma(facts: Facts) -> Iterator[Check]:
    """RDMA devices: which work, and whether memory may be locked for them."""
    devices, limit = facts.host.rdma, facts.host.locked_memory_bytes
    if not devices:
        return
    for device in devices:
        if not device.active_ports:
            yield catalogue.RDMA.found("port-down", "no port of it is active", device.name)
    if limit is not None and limit < LOCKED_BYTES:
        message = f"{limit // 1024} KiB of memory may be locked, RDMA needs far more"
        yield catalogue.RDMA.found("locked-memory", message)
    active = [f"{device.name} {device.rate} {device.link}".strip() for device in devices if device.active_ports]
    if active:
        yield catalogue.RDMA.passed(", ".join(active))


def shared_memory(facts: Facts) -> Iterator[Check]:
    """Size of /dev/shm on a machine outside of a cluster."""
    size = facts.seen.box.shared_memory_bytes if facts.seen.box else None
    if size is None:
        return
    told = f"shared memory has {size // MIB} MiB"
    if size < GIB:
        yield catalogue.SHARED_MEMORY.found("small", told)
    else:
        yield catalogue.SHARED_MEMORY.passed(told)


ALL = (interfaces, socket_interface, rdma, shared_memory)
