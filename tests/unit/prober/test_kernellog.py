"""Xids in the kernel log, from records as the driver writes them."""

from pathlib import Path

import pytest

from fdl_prober.kernellog import KernelLog, Xid, parse

RECORDS = [
    "3,1201,5220000000,-;NVRM: Xid (PCI:0000:c1:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
    "3,1202,5220000100,-;NVRM: Xid (PCI:0000:C1:00): 79, GPU has fallen off the bus.",
    "4,1203,5220000200,-;NVRM: Xid (PCI:00000000:0A:00.0): 94, pid=4242, Contained memory error",
    "4,1204,5220000300,-;NVRM: Xid (0000:0b:00): 13, Graphics Exception",
    "4,1205,5220000300,-;NVRM: Xid: nothing that has a number",
    "6,1206,5220000400,-;amdgpu 0000:05:00.0: amdgpu: GPU reset begin!",
]


def test_each_error_of_each_device_once() -> None:
    assert parse(RECORDS) == {
        Xid("0000:c1:00.0", 79): pytest.approx(5220.0001),
        Xid("0000:0a:00.0", 94): pytest.approx(5220.0002),
        Xid("0000:0b:00.0", 13): pytest.approx(5220.0003),
    }


def test_a_log_that_may_not_be_read_says_nothing(tmp_path: Path) -> None:
    log = KernelLog(tmp_path / "none")
    assert log.look() == log.look() == ()


@pytest.fixture
def growing(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    path.write_text("")
    return path


def test_a_log_is_read_on_and_what_was_seen_is_kept_for_a_day(growing: Path) -> None:
    now = [5230.0]
    log = KernelLog(growing, clock=lambda: now[0])
    try:
        assert log.look() == ()
        with growing.open("a") as file:
            file.write(RECORDS[0] + "\n")
        assert log.look() == (Xid("0000:c1:00.0", 79),)
        with growing.open("a") as file:
            file.write(RECORDS[2] + "\n")
        assert log.look() == (Xid("0000:c1:00.0", 79), Xid("0000:0a:00.0", 94))
        now[0] += 86400
        assert log.look() == ()
    finally:
        log.close()


def test_the_log_of_this_machine_is_read_without_waiting() -> None:
    log = KernelLog()
    try:
        assert log.look() == log.look()
    finally:
        log.close()
