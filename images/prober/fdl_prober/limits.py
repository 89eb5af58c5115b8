"""Limits that this program runs under: its control group (version 1 or 2), locked memory, /dev/shm."""

import os
import resource
from dataclasses import dataclass
from pathlib import Path

from fdl_prober.text import word

_NO_LIMIT_V1 = 1 << 60
"""Version 1 writes a number near 2^63 where there is no limit."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of a control group; ``None`` for none.

    Attributes:
        memory_bytes: of memory, in bytes.
        cpus: of processor time, in processors.
        processes: of processes and threads.
    """

    memory_bytes: int | None = None
    cpus: float | None = None
    processes: int | None = None


def _number(text: str) -> int | None:
    """A limit as the kernel writes it: ``max``, ``-1`` and huge numbers are none; so is no text.

    Raises:
        ValueError: it makes no sense.
    """
    if text in ("", "max"):
        return None
    value = int(text)
    return value if 0 <= value < _NO_LIMIT_V1 else None


def _own_groups(proc: Path) -> dict[str, str]:
    """Path of this process's control group by controller; the empty name is version 2's."""
    found: dict[str, str] = {}
    for line in word(proc / "self/cgroup").splitlines():
        parts = line.split(":", 2)
        if len(parts) == 3:
            found |= dict.fromkeys(parts[1].split(","), parts[2])
    return found


def _folders(root: Path, path: str) -> list[Path]:
    """A group and those above it, up to the root: each of them limits. A container sees its own as the root, and one
    that is not below it with ``..``, which leads nowhere from here.
    """
    group = root if ".." in path.split("/") else root / path.lstrip("/")
    chain = [folder for folder in (group, *group.parents) if folder == root or root in folder.parents]
    return [folder for folder in chain if folder.is_dir()] or [root]


def _least(folders: list[Path], name: str) -> int | None:
    values = [value for folder in folders if (value := _number(word(folder / name))) is not None]
    return min(values, default=None)


def _cpus_v2(folders: list[Path]) -> float | None:
    found = []
    for folder in folders:
        parts = word(folder / "cpu.max").split()
        quota, period = (_number(part) for part in parts) if len(parts) == 2 else (None, None)
        if quota and period:
            found.append(quota / period)
    return min(found, default=None)


def _cpus_v1(folders: list[Path]) -> float | None:
    found = []
    for folder in folders:
        quota, period = (_number(word(folder / f"cpu.cfs_{name}_us")) for name in ("quota", "period"))
        if quota and period:
            found.append(quota / period)
    return min(found, default=None)


def control_group(sysfs: Path, proc: Path) -> Limits:
    """The tightest limits of this process's control groups and of those above them.

    Raises:
        ValueError: one makes no sense.
    """
    root, own = sysfs / "fs/cgroup", _own_groups(proc)
    if (root / "cgroup.controllers").exists():
        folders = _folders(root, own.get("", "/"))
        return Limits(_least(folders, "memory.max"), _cpus_v2(folders), _least(folders, "pids.max"))
    memory, cpu, pids = (_folders(root / name, own.get(name, "/")) for name in ("memory", "cpu", "pids"))
    return Limits(_least(memory, "memory.limit_in_bytes"), _cpus_v1(cpu), _least(pids, "pids.max"))


def locked_memory_bytes() -> int | None:
    """Limit on locked memory of this process, in bytes; ``None`` for none."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def shared_memory_bytes(path: Path = Path("/dev/shm")) -> int | None:  # noqa: S108 - the folder itself is looked at
    """Size of the file system for shared memory, in bytes; ``None`` where there is none."""
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_frsize * found.f_blocks
