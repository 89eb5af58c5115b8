"""Starts members by fork from a process that has torch loaded: importing it takes seconds, and fault tests start many.

What runs is the real agent and the real rank; only ``exec`` is left out. One line of JSON asks for a member; its
process id and later its exit code come back on the same connection. ``python zygote.py SOCKET`` serves until its
input closes.
"""

import json
import os
import selectors
import signal
import socket
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional

import fdl_trainer.launch
from fdl_trainer import agent, rank


class ForkingAgent(agent.Agent):
    """An agent whose ranks are forks of itself."""

    def _spawn(self, environment: dict[str, str]) -> int:
        pid = os.fork()
        if pid == 0:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, agent._SIGNALS)
            os.environ.clear()
            os.environ.update(environment)
            rank.main()
        return pid


def member(request: dict[str, object]) -> None:
    """Become the member."""
    environment = request["env"]
    assert isinstance(environment, dict)
    os.setsid()
    log = os.open(str(request["log"]), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.clear()
    os.environ.update(environment)
    tempfile.tempdir = None  # found before, by the zygote's environment
    agent.Agent = ForkingAgent  # type: ignore[misc]
    os._exit(agent.main())


def serve(path: str) -> None:
    """Fork a member for each request until standard input closes."""
    torch.set_num_threads(1)
    torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)  # the first optimizer imports another 900 modules
    assert fdl_trainer.launch is not None
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen(64)
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    waiting: dict[int, socket.socket] = {}
    watch = selectors.DefaultSelector()
    for source in (server, wake, 0):
        watch.register(source, selectors.EVENT_READ)
    while True:
        for key, _ in watch.select():
            if key.fd == 0:
                return
            if key.fd == wake:
                os.read(wake, 4096)
                collect(waiting)
            else:
                connection, _ = server.accept()
                request = json.loads(connection.makefile().readline())
                pid = os.fork()
                if pid == 0:
                    signal.set_wakeup_fd(-1)
                    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                    member(request)
                connection.sendall(f"{pid}\n".encode())
                waiting[pid] = connection


def collect(waiting: dict[int, socket.socket]) -> None:
    """Tell who waits of ended members."""
    while waiting:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        connection = waiting.pop(pid, None)
        if connection is not None:
            connection.sendall(f"{os.waitstatus_to_exitcode(status)}\n".encode())
            connection.close()


if __name__ == "__main__":
    serve(sys.argv[1])
    Path(sys.argv[1]).unlink(missing_ok=True)
