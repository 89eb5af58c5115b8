"""Device files: real files with real modes, opened by a process without rights."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fdl_prober import devfiles


@pytest.mark.parametrize(
    ("mode", "by_group", "everybody"),
    [(0o666, True, True), (0o660, True, False), (0o600, False, False), (0o640, False, False), (0o644, False, False)],
)
def test_who_may_read_and_write(tmp_path: Path, mode: int, by_group: bool, everybody: bool) -> None:
    file = tmp_path / "nvidia0"
    file.touch()
    file.chmod(mode)
    (seen,) = devfiles.observe([file], try_to_open=False)
    assert (seen.by_group, seen.everybody, seen.failure, seen.exists) == (by_group, everybody, 0, True)
    assert f"{mode:04o}" in seen.told() and str(file) in seen.told()


def test_what_is_not_there() -> None:
    (seen,) = devfiles.observe([Path("/dev/none-of-ours")], try_to_open=True)
    assert (seen.exists, seen.failure) == (False, 0)


def test_a_file_that_can_be_opened(tmp_path: Path) -> None:
    file = tmp_path / "kfd"
    file.touch()
    assert devfiles.observe([file], try_to_open=True)[0].failure == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming a user without rights needs root")
def test_the_system_says_why_a_file_cannot_be_opened(tmp_path: Path) -> None:
    file = tmp_path / "renderD128"
    file.touch()
    os.chown(file, 0, 44)
    file.chmod(0o660)
    code = (
        "import os, sys; from pathlib import Path; from fdl_prober import devfiles\n"
        "file = os.open(sys.argv[1], os.O_PATH)\n"  # the folders above are the test's own
        "os.setgroups([]); os.setgid(65532); os.setuid(65532)\n"
        "(seen,) = devfiles.observe([Path(f'/proc/self/fd/{file}')], True)\n"
        "print(seen.failure, seen.gid, seen.group)"
    )
    done = subprocess.run([sys.executable, "-c", code, file], capture_output=True, text=True, timeout=60, check=True)
    failure, gid, group = done.stdout.split()
    assert (int(failure), int(gid)) == (errno.EACCES, 44)
    assert group == "video" or group.isdigit()
