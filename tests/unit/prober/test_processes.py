"""Processes that hold device memory: from recorded trees, and this process."""

import os
from pathlib import Path

import pytest

from fdl_prober import processes
from fdl_prober.processes import Holding

POD = "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod0f1e2d3c_4b5a_6978_8796_a5b4c3d2e1f0.slice/x"


def write(proc: Path, pid: int, parent: int, group: str) -> None:
    folder = proc / str(pid)
    folder.mkdir(parents=True)
    (folder / "status").write_text(f"Name:\tpython\nPPid:\t{parent}\n")
    (folder / "comm").write_text("python\n")
    (folder / "cgroup").write_text(group + "\n")


def test_whose_memory_it_is(tmp_path: Path) -> None:
    write(tmp_path, 10, 1, "0::/user.slice")
    write(tmp_path, 11, 9, POD)
    held = [Holding(vendor="nvidia", device=i, pid=pid, bytes=5) for i in (0, 1) for pid in (10, 11, 12)]
    left, pods = processes.holders(tmp_path, held)
    assert (left.pid, left.name, left.bytes, left.in_pod, left.orphan) == (10, "python", 10, False, True)
    assert (pods.pid, pods.in_pod, pods.orphan) == (11, True, False)


@pytest.mark.parametrize(
    ("group", "pod"),
    [
        (POD, True),
        ("4:memory:/kubepods/besteffort/pod12345678-1234-1234-1234-123456789012/abc", True),
        ("0::/system.slice/ssh.service", False),
        ("", False),
    ],
)
def test_a_pods_process_is_told_by_its_group(group: str, pod: bool) -> None:
    assert processes.in_pod(group) is pod


def test_this_process() -> None:
    (found,) = processes.holders(Path("/proc"), [Holding(vendor="amd", pid=os.getpid(), bytes=1)])
    assert (found.name and not found.orphan) or os.getppid() == 1


def test_what_amds_driver_lists(tmp_path: Path) -> None:
    for pid, files in {"10": {"vram_100": "7", "vram_200": "8", "pasid": "1"}, "11": {"vram_100": "x"}}.items():
        folder = tmp_path / "class/kfd/kfd/proc" / pid
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / name).write_text(text + "\n")
    assert processes.kfd_holdings(tmp_path) == [Holding(vendor="amd", pid=10, bytes=15)]
    assert processes.kfd_holdings(tmp_path / "none") == []
