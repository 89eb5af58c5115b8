"""Processes that hold device memory, and whether anybody still answers for them.

Process numbers of a driver are those of the host: this sees them only in the host's process namespace.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from pydantic import Field

from fdl_api.model import StatusModel
from fdl_prober.text import word

KFD_PROCESSES = "class/kfd/kfd/proc"
_POD = re.compile(r"kubepods|pod[0-9a-f]{8}[-_]?[0-9a-f]{4}")
MAX_HOLDERS = 256


class Holding(StatusModel):
    """Device memory that a process holds, as its driver says."""

    vendor: str
    device: int = Field(default=-1, description="Number of the device; -1 where the driver names none.")
    pid: int
    bytes: int = Field(default=0, description="Memory in bytes; 0 when unknown.")


class Holder(StatusModel):
    """A process that holds device memory."""

    pid: int
    name: str = ""
    vendor: str
    bytes: int = 0
    in_pod: bool = Field(default=False, description="Whether its control group is a pod's.")
    orphan: bool = Field(default=False, description="Whether its starter has ended, so that init is its parent.")


def kfd_holdings(sysfs: Path) -> list[Holding]:
    """Memory of AMD devices by process: one folder a process, one file ``vram_<device>`` in bytes each."""
    folder = sysfs / KFD_PROCESSES
    found = []
    for process in sorted(folder.iterdir()) if folder.is_dir() else ():
        if not process.name.isdecimal():
            continue
        total = 0
        for path in process.glob("vram_*"):
            try:
                total += int(path.read_text())
            except (OSError, ValueError):
                continue
        if total:
            found.append(Holding(vendor="amd", pid=int(process.name), bytes=total))
    return found


def in_pod(control_groups: str) -> bool:
    """Whether ``/proc/PID/cgroup`` names a pod: kubelets put them below ``kubepods``."""
    return _POD.search(control_groups) is not None


def parent(status: str) -> int:
    """Parent's number from ``/proc/PID/status``; 0 when it does not say."""
    match = re.search(r"^PPid:\s+(\d+)", status, re.MULTILINE)
    return int(match[1]) if match else 0


def holders(proc: Path, holdings: Iterable[Holding]) -> tuple[Holder, ...]:
    """Who holds memory; processes that ended meanwhile, or that are of another namespace, are left out."""
    totals: dict[tuple[int, str], int] = {}
    for held in holdings:
        totals[held.pid, held.vendor] = totals.get((held.pid, held.vendor), 0) + held.bytes
    found = []
    for (pid, vendor), total in sorted(totals.items())[:MAX_HOLDERS]:
        status = word(proc / str(pid) / "status")
        if not status:
            continue
        found.append(
            Holder(
                pid=pid,
                name=word(proc / str(pid) / "comm"),
                vendor=vendor,
                bytes=total,
                in_pod=in_pod(word(proc / str(pid) / "cgroup")),
                orphan=parent(status) == 1,
            )
        )
    return tuple(found)
