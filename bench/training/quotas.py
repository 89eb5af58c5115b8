"""CPU quotas by control groups (v1 and v2) with a period of 10 ms, and cores."""

import contextlib
import os
import time
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

from fdl_cli.local import LocalError, cgroups

BURIAL_LIMIT = 10.0
"""Seconds in which the processes of a slice are gone after they were killed."""


class QuotaError(Exception):
    """This machine lets us set no quotas."""


@contextlib.contextmanager
def quota_groups(quotas: list[float | None]) -> Iterator[list[Path | None]]:
    """A control group for each rank that has a quota; removed at the end, when its processes are gone.

    Raises:
        QuotaError: groups cannot be made here (it takes root and a writable /sys/fs/cgroup).
    """
    if all(quota is None for quota in quotas):
        yield [None for _ in quotas]
        return
    made: list[Path] = []
    try:
        try:
            groups = [None if quota is None else _make(rank, quota, made) for rank, quota in enumerate(quotas)]
        except (OSError, LocalError) as error:
            raise QuotaError(f"a control group with a CPU quota cannot be made: {error}") from error
        yield groups
    finally:
        for group in made:
            _remove(group)


def _remove(group: Path) -> None:
    """Once it is empty: processes that were killed stay in it until the kernel has buried them.

    Raises:
        QuotaError: somebody is in it still.
    """
    limit = time.monotonic() + BURIAL_LIMIT
    while True:
        try:
            group.rmdir()
        except OSError as error:
            if time.monotonic() > limit:
                raise QuotaError(f"{group} cannot be removed: {error}") from error
            time.sleep(0.02)
        else:
            return


def _make(rank: int, quota: float, made: list[Path]) -> Path:
    trees = cgroups.detect()
    group = trees.controller("cpu") / f"fdl-bench-{os.getpid()}-{rank}"
    group.mkdir()
    made.append(group)
    # Their period is 10 ms. With the kernel's 100 ms a rank stands still for many batches at a time: the variation of a
    # step would be 0.8.
    cgroups.set_quota(trees, group, Decimal(str(round(quota, 4))))
    return group


def settle(process: int, core: int | None, group: Path | None) -> None:
    """Put a process with all its threads onto a core and into a group."""
    if group is not None:
        (group / "cgroup.procs").write_text(str(process))
    if core is None:
        return
    for task in Path(f"/proc/{process}/task").iterdir():
        with contextlib.suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), {core})
