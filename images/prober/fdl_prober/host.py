"""The machine below the node: processors, memory, network, NCCL libraries."""

import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path

from fdl_api.report import Host
from fdl_prober import libraries, limits, net


def memory_bytes(proc: Path) -> int:
    """Total memory from ``meminfo``, in bytes; 0 when it does not say."""
    try:
        match = re.search(r"^MemTotal:\s+(\d+) kB", (proc / "meminfo").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(match[1]) * 1024 if match else 0


def cpu_model(proc: Path) -> str:
    """Name of the processor; the machine type where ``cpuinfo`` names none (arm64)."""
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", (proc / "cpuinfo").read_text(errors="replace"), re.MULTILINE)
    except OSError:
        match = None
    return match[1].strip() if match else platform.machine()


def boot_id(proc: Path) -> str:
    """What tells one start of the machine from the next; empty when the kernel does not say."""
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def observe(sysfs: Path, proc: Path, roots: Iterable[str]) -> Host:
    """Look at the machine. All files are the kernel's or local."""
    return Host(
        cpus=os.cpu_count() or 0,
        cpu_model=cpu_model(proc),
        memory_bytes=memory_bytes(proc),
        kernel=platform.release(),
        boot_id=boot_id(proc),
        glibc=" ".join(platform.libc_ver()).strip(),
        interfaces=net.interfaces(sysfs, proc),
        rdma=net.rdma(sysfs),
        locked_memory_bytes=limits.locked_memory_bytes(),
        nccl=libraries.nccl(roots),
    )
