"""Freed memory stays with a process on processors."""

import os
import platform
import subprocess
import sys

import pytest
import torch

from fdl_trainer.heap import USERS_OWN, keep_freed

CPU = torch.device("cpu")
PROGRAM = """
import os, sys, torch
from fdl_trainer.heap import keep_freed
torch.set_num_threads(1)
if sys.argv[1] == "keep":
    assert keep_freed(torch.device("cpu"), {})
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") // (1 << 20)
before = resident()
batch = [torch.ones(1 << 18) for _ in range(200)]
assert resident() - before >= 190
batch.clear()
print(resident() - before)
"""


def kept(how: str) -> int:
    """Mebibytes of 200 that are still the process's after they were freed.

    By itself glibc decides by what else lies on the heap. Told to, it gives blocks back at once, and what keeps them
    then is :func:`keep_freed`.
    """
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how],
        env={**os.environ, "MALLOC_MMAP_THRESHOLD_": "65536"},
        check=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library than glibc")
def test_memory_that_was_freed_is_kept() -> None:
    assert kept("keep") >= 190
    assert kept("leave") <= 100


def test_devices_and_users_who_decided_for_themselves_are_left_alone() -> None:
    assert not keep_freed(torch.device("cuda", 0), {})
    for name in USERS_OWN:
        assert not keep_freed(CPU, {name: "1"})
