"""Processes of a run: started in sessions of their own, ended by id."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fdl_api.termination import Termination, parse

STARTED_LIMIT = 90.0
ENDED_LIMIT = 120.0


class LoopbackError(AssertionError):
    """A process did not do in time what was waited for."""


def wait_for(what: str, condition: Callable[[], Any], seconds: float = STARTED_LIMIT, period: float = 0.02) -> Any:
    """Wait until a condition gives something true, and return that."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        value = condition()
        if value:
            return value
        time.sleep(period)
    raise LoopbackError(f"waited {seconds:.0f} s in vain: {what}")


class Process(Protocol):
    """What a member's agent is to its caller: a process of :mod:`subprocess`, or one that a zygote forked."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def kill(self) -> None: ...
    def send_signal(self, sig: int) -> None: ...


class Forked:
    """A process that the zygote forked."""

    def __init__(self, connection: socket.socket) -> None:
        self._lines = connection.makefile()
        self._connection = connection
        self.pid = int(self._lines.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Its exit code, if it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.001)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Its exit code."""
        if self.returncode is None:
            if not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            self.returncode = int(self._lines.readline())
        return self.returncode

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, sig: int) -> None:
        """Send a signal, if it lives."""
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sig)


class Zygote:
    """Starts members in milliseconds (see zygote.py)."""

    def __init__(self, folder: Path) -> None:
        self._path = str(folder / "zygote")
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("zygote.py")), self._path],
            stdin=subprocess.PIPE,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        wait_for("the zygote has loaded torch", Path(self._path).exists)

    def start(self, environment: dict[str, str], log: Path) -> Forked:
        """Fork a member."""
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self._path)
        connection.sendall(json.dumps({"env": environment, "log": str(log)}).encode() + b"\n")
        return Forked(connection)

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(10)


@dataclass
class MemberProcess:
    """One incarnation of a member."""

    name: str
    uid: str
    ordinal: int
    incarnation: int
    agent: Process
    log: Path
    termination_file: Path

    def ranks(self) -> list[int]:
        """Process ids of its ranks."""
        path = Path(f"/proc/{self.agent.pid}/task/{self.agent.pid}/children")
        return [int(pid) for pid in path.read_text().split()] if path.exists() else []

    def signal_ranks(self, number: signal.Signals) -> None:
        """Send a signal to all its ranks."""
        for pid in self.ranks():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def kill(self) -> None:
        """SIGKILL of everything, as when a node dies."""
        ranks = self.ranks()
        for pid in [self.agent.pid, *ranks]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.agent.wait(10)

    def terminate(self) -> None:
        """SIGTERM to PID 1, as the kubelet does."""
        self.agent.send_signal(signal.SIGTERM)

    def wait(self, seconds: float = ENDED_LIMIT) -> int:
        """Its exit code."""
        try:
            return self.agent.wait(seconds)
        except subprocess.TimeoutExpired:
            raise LoopbackError(f"{self.name} did not end in {seconds:.0f} s:\n{self.tail()}") from None

    def words(self) -> Termination:
        """Its termination message."""
        words = parse(self.termination_file.read_text())
        assert words is not None, self.tail()
        return words

    def tail(self, lines: int = 40) -> str:
        """The end of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])
