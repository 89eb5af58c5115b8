"""Long commands: output, failure, time limit, nothing left running."""

import os
import sys
import time
from pathlib import Path

import pytest

from fdl_cli.images.errors import ImageError
from fdl_cli.images.runner import run


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "x.log"


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_every_line_reaches_listener_and_log_also_a_last_one_without_end(log: Path) -> None:
    lines: list[str] = []
    run(python("print('a'); print('b', end='')"), log, lines.append, limit=30, what="a test")
    assert lines == ["a", "b"]
    assert log.read_text().endswith("a\nb\n")


def test_a_failure_shows_the_last_lines_and_the_log(log: Path) -> None:
    with pytest.raises(ImageError) as caught:
        run(python("print('what went wrong'); raise SystemExit(3)"), log, print, limit=30, what="the build of x")
    text = str(caught.value)
    assert "the build of x failed" in text
    assert "ended with 3" in text
    assert "  what went wrong\n" in text
    assert str(log) in text


@pytest.mark.parametrize(
    ("line", "advice"),
    [
        ("OSError: No space left on device", "fdl images prune"),
        ("SSL: CERTIFICATE_VERIFY_FAILED", "FDL_CA_BUNDLE"),
        ("Temporary failure resolving 'mirror.example'", "check the network"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES", "lock-requirements.sh"),
        ("anything else", "build again"),
    ],
)
def test_a_failure_says_what_to_do(log: Path, line: str, advice: str) -> None:
    with pytest.raises(ImageError, match=advice):
        run(python(f"print({line!r}); raise SystemExit(1)"), log, print, limit=30, what="x")


def test_a_program_that_is_not_there_is_named(log: Path) -> None:
    with pytest.raises(ImageError, match="no-such-program could not be started for the build"):
        run(["no-such-program"], log, print, limit=30, what="the build")


def alive(pid: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def test_past_its_limit_a_command_is_ended_with_its_children_even_a_deaf_one(log: Path) -> None:
    lines: list[str] = []
    command = ["sh", "-c", "(trap '' TERM; while :; do sleep 600; done) & echo $!; exec sleep 600"]
    with pytest.raises(ImageError, match="took longer than 2 s and was stopped"):
        run(command, log, lines.append, limit=2, what="x")
    deadline = time.monotonic() + 20  # the kernel needs a moment to take the child away
    while alive(int(lines[0])) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(int(lines[0]))


def test_variables_are_added_to_this_programs(log: Path) -> None:
    lines: list[str] = []
    code = "import os; print(os.environ['FDL_X'], os.environ['PATH'])"
    run(python(code), log, lines.append, limit=30, what="x", environment={"FDL_X": "1"})
    assert lines == [f"1 {os.environ['PATH']}"]
