from pathlib import Path

import pytest
import torch

from fdl_trainer.loader.memory import free_bytes, free_host_bytes, is_out_of_memory

MIB = 1 << 20


def machine(folder: Path, groups: str) -> tuple[Path, Path]:
    proc, cgroups = folder / "proc", folder / "cgroup"
    (proc / "self").mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal:  2048000 kB\nMemFree:  10 kB\nMemAvailable:    1024000 kB\n")
    (proc / "self" / "cgroup").write_text(groups)
    cgroups.mkdir()
    return proc, cgroups


def v2(group: Path, limit: str, usage: int, inactive: int) -> None:
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.max").write_text(f"{limit}\n")
    (group / "memory.current").write_text(f"{usage}\n")
    (group / "memory.stat").write_text(f"anon 1\ninactive_file {inactive}\nactive_file 3\n")


def v1(group: Path, limit: int, usage: int, inactive: int) -> None:
    group.mkdir(parents=True, exist_ok=True)
    (group / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (group / "memory.usage_in_bytes").write_text(f"{usage}\n")
    (group / "memory.stat").write_text(f"inactive_file 1\ntotal_inactive_file {inactive}\n")


def test_without_limits_the_kernels_word_counts(tmp_path: Path) -> None:
    proc, cgroups = machine(tmp_path, "0::/\n")
    v2(cgroups, "max", 5, 0)
    assert free_host_bytes(proc, cgroups) == 1024000 * 1024


def test_the_tightest_group_above_counts_and_idle_file_pages_do_not(tmp_path: Path) -> None:
    proc, cgroups = machine(tmp_path, "0::/pods/one/rank\n")
    v2(cgroups / "pods" / "one" / "rank", str(900 * MIB), 100 * MIB, 0)
    v2(cgroups / "pods" / "one", str(500 * MIB), 300 * MIB, 50 * MIB)
    v2(cgroups / "pods", "max", 1, 0)
    assert free_host_bytes(proc, cgroups) == 250 * MIB


def test_inside_a_container_the_hosts_path_is_not_there(tmp_path: Path) -> None:
    proc, cgroups = machine(tmp_path, "5:cpu:/\n4:memory:/kubepods/burstable/pod1\n")
    v1(cgroups / "memory", 300 * MIB, 200 * MIB, 20 * MIB)
    assert free_host_bytes(proc, cgroups) == 120 * MIB


def test_version_1_writes_a_huge_number_for_no_limit(tmp_path: Path) -> None:
    proc, cgroups = machine(tmp_path, "4:memory,blkio:/\n")
    v1(cgroups / "memory", 9223372036854771712, 200 * MIB, 0)
    assert free_host_bytes(proc, cgroups) == 1024000 * 1024


def test_a_group_above_its_limit_has_nothing_left(tmp_path: Path) -> None:
    proc, cgroups = machine(tmp_path, "0::/\n")
    v2(cgroups, str(100 * MIB), 120 * MIB, 0)
    assert free_host_bytes(proc, cgroups) == 0


def test_the_ranks_of_a_container_share_what_this_machine_has_left() -> None:
    whole = free_bytes(torch.device("cpu"))
    assert 0 < free_bytes(torch.device("cpu"), sharers=1000) < whole


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (MemoryError(), True),
        (torch.OutOfMemoryError("x"), True),
        (RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"), True),
        (RuntimeError("HIP out of memory. Tried to allocate"), True),
        (RuntimeError("shapes differ"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_running_out_of_memory_is_recognised(error: BaseException, expected: bool) -> None:
    assert is_out_of_memory(error) is expected


def test_torchs_own_words_on_the_cpu_are_recognised() -> None:
    with pytest.raises(RuntimeError) as error:
        torch.empty(1 << 55, dtype=torch.int8)
    assert is_out_of_memory(error.value)
