"""CPU quotas by control groups (v1 and v2) with a period of 10 ms, and cores."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

PERIOD_US = 10_000
"""With the default of 100 ms a rank stands still for many batches at a time: the variation of a step would be 0.8."""
_ROOT = Path("/sys/fs/cgroup")


class QuotaError(Exception):
    """This machine lets us set no quotas."""


def _base() -> tuple[Path, bool]:
    """Folder in which groups are made, and whether it is version 2."""
    if (_ROOT / "cpu").is_dir():
        return _ROOT / "cpu", False
    if (_ROOT / "cgroup.controllers").is_file():
        return _ROOT, True
    raise QuotaError("no control group file system is mounted at /sys/fs/cgroup")


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
        except OSError as error:
            raise QuotaError(f"a control group with a CPU quota cannot be made: {error}") from error
        yield groups
    finally:
        for group in made:
            with contextlib.suppress(OSError):
                group.rmdir()


def _make(rank: int, quota: float, made: list[Path]) -> Path:
    base, unified = _base()
    group = base / f"fdl-bench-{os.getpid()}-{rank}"
    group.mkdir()
    made.append(group)
    microseconds = round(quota * PERIOD_US)
    if unified:
        (group / "cpu.max").write_text(f"{microseconds} {PERIOD_US}")
    else:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_US))
        (group / "cpu.cfs_quota_us").write_text(str(microseconds))
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
