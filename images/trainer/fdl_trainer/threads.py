"""How many threads torch may use in a rank.

More threads than the container's CPU quota make every one of them wait: the kernel stops the whole group once the
quota of a period is spent.
"""

import os
from collections.abc import Mapping
from pathlib import Path

from fdl_api.runconfig import MemberEnv

UNLIMITED_V1 = -1


def thread_count(limit_millicores: int | None, quota_millicores: int | None, processors: int, ranks: int = 1) -> int:
    """Threads for one rank: the whole CPUs that it surely has, one when in doubt.

    Args:
        limit_millicores: the container's CPU limit as the pod states it; None when it is not known.
        quota_millicores: quota of the control group; None when there is none or it cannot be read.
        processors: processors that the process may run on.
        ranks: ranks that share the container.
    """
    limits = [limit for limit in (limit_millicores, quota_millicores) if limit is not None and limit > 0]
    if not limits:
        return 1
    return max(1, min(min(limits) // 1000, processors) // max(ranks, 1))


def parse_v2(cpu_max: str) -> int | None:
    """Millicores of a ``cpu.max`` file (``quota period`` in microseconds, or ``max period``); None without limit."""
    fields = cpu_max.split()
    if len(fields) != 2 or not all(value.isdecimal() for value in fields) or int(fields[1]) == 0:
        return None
    return int(fields[0]) * 1000 // int(fields[1])


def parse_v1(quota_us: str, period_us: str) -> int | None:
    """Millicores of ``cpu.cfs_quota_us`` and ``cpu.cfs_period_us``; None without limit (-1)."""
    quota, period = quota_us.strip(), period_us.strip()
    if not quota.isdecimal() or not period.isdecimal() or int(period) == 0:
        return None
    return int(quota) * 1000 // int(period)


def read_quota(root: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Millicores that the control group of this container allows; None when there is no limit or none is to be seen."""
    try:
        return parse_v2((root / "cpu.max").read_text())
    except OSError:
        pass
    for folder in (root / "cpu", root / "cpu,cpuacct"):
        try:
            return parse_v1((folder / "cpu.cfs_quota_us").read_text(), (folder / "cpu.cfs_period_us").read_text())
        except OSError:
            continue
    return None


def threads_here(environment: Mapping[str, str] = os.environ, ranks: int = 1) -> int:
    """Threads for this process; a user's ``OMP_NUM_THREADS`` wins."""
    wanted = environment.get("OMP_NUM_THREADS", "")
    if wanted.isdecimal() and int(wanted) > 0:
        return int(wanted)
    limit = environment.get(MemberEnv.CPU_LIMIT, "")
    return thread_count(
        int(limit) if limit.isdecimal() else None, read_quota(), len(os.sched_getaffinity(0)), ranks=ranks
    )
