"""Looks in processes of their own: whatever such a process does is an answer."""

import asyncio
import gc
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fdl_prober import child
from fdl_prober.child import Ended, run_module

Make = Callable[[str], None]


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Writes a module that a child can run by the name ``looked``."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)

    def write(text: str) -> None:
        (tmp_path / "looked.py").write_text(text)

    return write


def _open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


async def test_an_answer_and_the_last_line_of_errors(module: Make) -> None:
    module("import sys\nprint('yes ' + sys.argv[1])\nprint('a\\nb', file=sys.stderr)\nsys.exit(3)\n")
    assert await run_module("looked", "x", limit_seconds=60) == Ended(3, b"yes x\n", "b")


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
async def test_one_that_writes_without_end_is_killed_and_not_kept(module: Make, stream: str) -> None:
    module(f"import sys\nwhile True: sys.{stream}.write('y' * 4096)\n")
    ended = await run_module("looked", limit_seconds=60)
    assert (ended.code, ended.output) == (-signal.SIGKILL, b"") and "it wrote more than 8 MiB" in ended.error


async def test_one_that_stopped_itself_is_killed_at_its_limit(module: Make) -> None:
    module("import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n")
    assert await run_module("looked", limit_seconds=1) == Ended(None)


async def test_pipes_that_others_keep_open_are_closed_with_the_look(module: Make, tmp_path: Path) -> None:
    module(f"""
import os, pathlib, time
if pid := os.fork():
    pathlib.Path({str(tmp_path / "pid")!r}).write_text(str(pid))
else:
    time.sleep(60)
""")
    await run_module("looked_for_nothing", limit_seconds=60)  # what the loop itself opens once
    before = _open_files()
    gc.disable()
    try:
        assert await run_module("looked", limit_seconds=2) == Ended(None)
        await asyncio.sleep(0)
        assert _open_files() == before
    finally:
        gc.enable()
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


async def test_a_system_without_room_for_a_process_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    ended = await run_module("looked", limit_seconds=60)
    assert ended.code == 126 and "no process could be started" in ended.error


async def test_a_process_that_has_no_file_left_to_open_is_no_error() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    await asyncio.sleep(0)  # the loop has its own files
    lowest = os.dup(0)
    os.close(lowest)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
    try:
        ended = await run_module("looked", limit_seconds=60)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert "no process could be started" in ended.error


def test_what_is_kept_of_errors_is_less_than_what_is_read() -> None:
    assert child._MAX_ERROR_BYTES < child.MAX_OUTPUT_BYTES
