"""How much memory is really free: on the host by control group and kernel, on an accelerator by its driver."""

import re
from collections.abc import Iterator
from pathlib import Path

import torch

_UNLIMITED = 1 << 60
"""Limits above this are none: version 1 writes a page-rounded maximum of 63 bits."""


def free_bytes(device: torch.device, sharers: int = 1) -> int:
    """Bytes that this process may still take on a device.

    Args:
        device: an accelerator (its driver knows of all processes) or the CPU.
        sharers: ranks that share the container's memory; on the CPU each has its part.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return free_host_bytes() // max(sharers, 1)


def free_host_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int:
    """What the kernel says is available, or the least that any control group above this process still allows.

    File pages that the kernel would give up first (inactive ones) do not count as used.
    """
    found = re.search(r"^MemAvailable:\s+(\d+) kB", (proc / "meminfo").read_text(), re.MULTILINE)
    available = int(found[1]) * 1024 if found else _UNLIMITED
    return max(0, min([available, *_rooms(proc, cgroups)]))


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, on the host or on a device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and (
        "DefaultCPUAllocator" in text or "out of memory" in text.lower() or "CUBLAS_STATUS_ALLOC_FAILED" in text
    )


def _rooms(proc: Path, cgroups: Path) -> Iterator[int]:
    """Bytes left in each control group that has a limit, from this process's up to the root that is mounted."""
    try:
        lines = (proc / "self" / "cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            yield from _walk(cgroups, path, "memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            yield from _walk(
                cgroups / "memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
            )


def _walk(root: Path, path: str, limit_file: str, usage_file: str, inactive: str) -> Iterator[int]:
    # Inside a container the path may be the host's, which is not mounted: then the root is this container's group.
    folder = root / path.strip("/")
    for group in [folder, *folder.parents]:
        room = _room(group, limit_file, usage_file, inactive)
        if room is not None:
            yield room
        if group == root:
            return


def _room(group: Path, limit_file: str, usage_file: str, inactive: str) -> int | None:
    try:
        limit = (group / limit_file).read_text().strip()
        usage = int((group / usage_file).read_text())
        found = re.search(rf"^{inactive} (\d+)", (group / "memory.stat").read_text(), re.MULTILINE)
    except (OSError, ValueError):
        return None
    if not limit.isdecimal() or int(limit) >= _UNLIMITED:
        return None
    return int(limit) - usage + (int(found[1]) if found else 0)
