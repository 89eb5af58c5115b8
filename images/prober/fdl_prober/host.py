"""The machine below the node: processors, memory, network, NCCL libraries."""

import os
import platform
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from fdl_api.report import Host, Interface, RdmaDevice
from fdl_prober import libraries, limits, net
from fdl_prober.parts import Parts
from fdl_prober.text import word


def memory_bytes(proc: Path) -> int:
    """Total memory from ``meminfo``, in bytes; 0 when it does not say."""
    match = re.search(r"^MemTotal:\s+(\d{1,15}) kB", word(proc / "meminfo"), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def cpu_model(proc: Path) -> str:
    """Name of the processor; the machine type where ``cpuinfo`` names none (arm64)."""
    match = re.search(r"^model name\s*:\s*(.+)$", word(proc / "cpuinfo"), re.MULTILINE)
    return match[1].strip() if match else platform.machine()


def boot_id(proc: Path) -> str:
    """What tells one start of the machine from the next; empty when the kernel does not say."""
    return word(proc / "sys/kernel/random/boot_id")


def known() -> Host:
    """What can be told of the machine without any file that a look may hang at. AMD's driver is told by the kernel's
    release where it has none of its own, and what a deep check has proven stands for one driver.
    """
    return Host(cpus=os.cpu_count() or 0, kernel=platform.release())


def observe(sysfs: Path, proc: Path, roots: Iterable[str]) -> tuple[Host, Mapping[str, str]]:
    """Look at the machine. All files are the kernel's or local.

    Returns:
        The machine, and the parts of it that gave no answer, with the reason: ``interfaces``, ``ipv6-addresses``,
        ``rdma``, ``nccl-libraries``.
    """
    parts = Parts()
    six = parts.look("ipv6-addresses", dict[str, list[str]](), net.ipv6, proc)
    told = known()
    found = Host(
        cpus=told.cpus,
        cpu_model=cpu_model(proc),
        memory_bytes=memory_bytes(proc),
        kernel=told.kernel,
        boot_id=boot_id(proc),
        glibc=" ".join(platform.libc_ver()).strip(),
        interfaces=parts.look("interfaces", tuple[Interface, ...](), net.interfaces, sysfs, six),
        rdma=parts.look("rdma", tuple[RdmaDevice, ...](), net.rdma, sysfs),
        locked_memory_bytes=limits.locked_memory_bytes(),
        nccl=parts.look("nccl-libraries", dict[str, str](), libraries.nccl, roots),
    )
    return found, parts.silent
