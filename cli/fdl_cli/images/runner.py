"""Runs one long command: every line to a log file and to a listener, a time limit, and nothing left running."""

import contextlib
import os
import selectors
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Final

from fdl_cli.images.errors import ImageError

_TAIL: Final = 15
_TICK: Final = 1.0
_PATIENCE: Final = 5.0
_LAST_SECONDS: Final = 30.0


def run(
    command: Sequence[str],
    log: Path,
    on_line: Callable[[str], None],
    *,
    limit: float,
    what: str,
    environment: Mapping[str, str] | None = None,
    on_second: Callable[[], None] | None = None,
) -> None:
    """Run ``command`` to its end.

    Args:
        command: program and arguments.
        log: file that its output is appended to.
        on_line: called with each line of output, without its end.
        limit: seconds that it may take.
        what: what is being done, for the error's sentence ("the build of prober").
        environment: variables on top of this program's.
        on_second: called about every second while it runs, also when it says nothing.

    Raises:
        ImageError: it could not be started, failed, or took longer than ``limit``; the text ends with its last lines.
    """
    with log.open("a", encoding="utf-8") as output:
        output.write(f"$ {' '.join(command)}\n")
        output.flush()
        try:
            process = subprocess.Popen(
                list(command),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )
        except OSError as error:
            raise ImageError(f"{command[0]} could not be started for {what}: {error}.") from error
        assert process.stdout is not None
        try:
            code: int | None = None
            if _follow(process.stdout, output, on_line, on_second, time.monotonic() + limit):
                with contextlib.suppress(subprocess.TimeoutExpired):  # it closed its output and lives on
                    code = process.wait(timeout=_LAST_SECONDS)
        finally:
            if process.poll() is None:
                _end(process)
            process.stdout.close()
    if code is None:
        raise ImageError(_sentence(f"{what} took longer than {limit:.0f} s and was stopped", log))
    if code != 0:
        raise ImageError(_sentence(f"{what} failed ({command[0]} ended with {code})", log))


def _follow(
    source: IO[bytes],
    output: IO[str],
    on_line: Callable[[str], None],
    on_second: Callable[[], None] | None,
    deadline: float,
) -> bool:
    """Pass lines on until the output ends (True) or the deadline passes (False)."""
    pending = b""
    with selectors.DefaultSelector() as selector:
        selector.register(source, selectors.EVENT_READ)
        while True:
            if time.monotonic() > deadline:
                return False
            ready = selector.select(_TICK)
            if on_second is not None:
                on_second()
            if not ready:
                continue
            data = os.read(source.fileno(), 65536)
            *lines, pending = (pending + data).split(b"\n")
            if not data and pending:  # the last line had no end
                lines, pending = [*lines, pending], b""
            for line in lines:
                text = line.decode("utf-8", "replace").rstrip("\r")
                output.write(text + "\n")
                on_line(text)
            output.flush()
            if not data:
                return True


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the command's whole process group: politely, then for good, also what its first process left behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=_PATIENCE)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=2 * _PATIENCE)


def _sentence(what: str, log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    shown = "\n".join("  " + line[:300] for line in lines[-_TAIL:])
    return f"{what}. Its last lines:\n{shown}\nThe whole log is in {log}; {_advice(lines[-200:])}"


def _advice(lines: list[str]) -> str:
    """The most likely way out, from what the log says."""
    text = "\n".join(lines)
    if "No space left on device" in text:
        return "the disk is full: free some space ('fdl images prune' drops old archives), then build again."
    if "CERTIFICATE_VERIFY_FAILED" in text or "certificate verification failed" in text.lower():
        return "a download was refused for its certificate: set FDL_CA_BUNDLE to this network's CA bundle."
    if "Temporary failure resolving" in text or "Name or service not known" in text or "Could not resolve" in text:
        return "a package registry was not reachable: check the network and proxy variables, then build again."
    if "THESE PACKAGES DO NOT MATCH THE HASHES" in text:
        return "a package is not the pinned one: run images/lock-requirements.sh if the change is meant."
    return "mend what the lines name, then build again: finished steps are not repeated."
