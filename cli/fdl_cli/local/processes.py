"""Finding our own processes again: by id and start time, or by program and state folder. Never by name."""

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

PROC = Path("/proc")
_HELPERS = ("fdl-node", "fdl-images")


def start_time(pid: int) -> int | None:
    """Start of a process in clock ticks since boot, which with its id names it for ever; None if it is gone.

    A zombie counts as gone.
    """
    try:
        text = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The command in parentheses may contain anything, even parentheses.
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])


def alive(pid: int, started: int) -> bool:
    """Whether this very process still runs."""
    return start_time(pid) == started


def kill(pid: int, started: int, limit_s: float = 10.0) -> bool:
    """SIGKILL for this very process; True once it is gone."""
    deadline = time.monotonic() + limit_s
    while alive(pid, started):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def helpers(state: Path) -> list[int]:
    """Processes of our own programs that work for the cluster whose files lie below ``state``."""
    found = []
    for entry in PROC.iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            arguments = (entry / "cmdline").read_bytes().split(b"\0")
            program = (entry / "exe").readlink()
        except OSError:
            continue
        described = any(f"{state}/".encode() in a for a in arguments[1:])
        if described and program.name.removesuffix(" (deleted)") in _HELPERS:
            found.append(int(entry.name))
    return found


def bound(command: Sequence[str]) -> list[str]:
    """The command line, so run that the kernel kills it when the thread that started it dies.

    A killed ``up`` must not leave a helper at work on what ``down`` then removes.
    """
    return ["setpriv", "--pdeathsig", "KILL", "--", *command]
