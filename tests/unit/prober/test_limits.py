"""Limits, from trees as the kernel's two versions of control groups show them."""

from pathlib import Path

import pytest

from fdl_prober import limits
from fdl_prober.limits import Limits


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def test_version_2_in_a_container(tmp_path: Path) -> None:
    """The container sees its own group as the root of the tree."""
    sysfs = write(
        tmp_path / "sys",
        {
            "fs/cgroup/cgroup.controllers": "cpu memory pids",
            "fs/cgroup/memory.max": "2147483648",
            "fs/cgroup/cpu.max": "50000 100000",
            "fs/cgroup/pids.max": "max",
        },
    )
    proc = write(tmp_path / "proc", {"self/cgroup": "0::/"})
    assert limits.control_group(sysfs, proc) == Limits(memory_bytes=2 << 30, cpus=0.5)


def test_version_2_where_a_group_above_is_tighter(tmp_path: Path) -> None:
    sysfs = write(
        tmp_path / "sys",
        {
            "fs/cgroup/cgroup.controllers": "cpu memory pids",
            "fs/cgroup/user.slice/memory.max": "1073741824",
            "fs/cgroup/user.slice/pids.max": "300",
            "fs/cgroup/user.slice/mine/memory.max": "max",
            "fs/cgroup/user.slice/mine/cpu.max": "max 100000",
        },
    )
    proc = write(tmp_path / "proc", {"self/cgroup": "0::/user.slice/mine"})
    assert limits.control_group(sysfs, proc) == Limits(memory_bytes=1 << 30, processes=300)


def test_version_1(tmp_path: Path) -> None:
    sysfs = write(
        tmp_path / "sys",
        {
            "fs/cgroup/memory/box/memory.limit_in_bytes": "536870912",
            "fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            "fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
            "fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            "fs/cgroup/pids/pids.max": "100",
        },
    )
    proc = write(tmp_path / "proc", {"self/cgroup": "9:memory:/box\n5:cpu,cpuacct:/\n1:name=systemd:/\n0::/"})
    assert limits.control_group(sysfs, proc) == Limits(memory_bytes=512 << 20, processes=100)


@pytest.mark.parametrize("text", ["", "nonsense", "0::", "0::/../../etc"])
def test_what_makes_no_sense_is_no_limit(tmp_path: Path, text: str) -> None:
    proc = write(tmp_path / "proc", {"self/cgroup": text})
    sysfs = write(tmp_path / "sys", {"fs/cgroup/cgroup.controllers": "", "fs/cgroup/cpu.max": "", "memory.max": "1"})
    assert limits.control_group(sysfs, proc) == Limits()


@pytest.mark.parametrize("name", ["cpu.max", "memory.max", "pids.max"])
def test_a_limit_that_makes_no_sense_is_told_and_not_taken_for_none(tmp_path: Path, name: str) -> None:
    write(tmp_path, {"fs/cgroup/cgroup.controllers": "", f"fs/cgroup/{name}": "much 100000"})
    with pytest.raises(ValueError, match="much"):
        limits.control_group(tmp_path, tmp_path)
    write(tmp_path, {"fs/cgroup/cgroup.controllers": "", f"fs/cgroup/{name}": "100000 0" if name == "cpu.max" else "1"})
    limits.control_group(tmp_path, tmp_path)


def test_this_machine_has_shared_memory() -> None:
    assert (limits.shared_memory_bytes() or 0) > 0
    assert limits.shared_memory_bytes(Path("/nonexistent")) is None
