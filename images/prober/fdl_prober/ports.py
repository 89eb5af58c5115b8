"""Which local ports somebody listens on, from the kernel's tables."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_LISTEN = "0A"
MAX_PROCESSES = 4096
_SOCKET = re.compile(r"socket:\[(\d+)\]")


@dataclass(frozen=True, slots=True)
class Listener:
    """Somebody who listens.

    Attributes:
        port: number of the port.
        inode: the socket's number.
        owner: process as ``name (pid)``; empty where it cannot be told.
    """

    port: int
    inode: str
    owner: str = ""


def parse(table: str) -> list[Listener]:
    """Listening sockets in the text of ``/proc/net/tcp`` or ``tcp6``; a line that makes no sense is left out.

    Raises:
        ValueError: it is no such table.
    """
    if not table.lstrip().startswith("sl "):
        raise ValueError("the kernel's table of sockets has no head")
    found = []
    for line in table.splitlines()[1:]:
        fields = line.split()
        try:
            if fields[3] == _LISTEN:
                found.append(Listener(int(fields[1].rsplit(":", 1)[1], 16), fields[9]))
        except (IndexError, ValueError):
            continue
    return found


def _sockets(process: Path) -> set[str]:
    """Numbers of the sockets that a process has open; none where it may not be looked at."""
    found = set()
    try:
        for link in (process / "fd").iterdir():
            if match := _SOCKET.fullmatch(str(link.readlink())):
                found.add(match[1])
    except OSError:
        return found
    return found


def _owners(proc: Path, inodes: set[str]) -> dict[str, str]:
    owners: dict[str, str] = {}
    processes = [path for path in proc.iterdir() if path.name.isdecimal()]
    for process in processes[:MAX_PROCESSES]:
        for inode in inodes & _sockets(process):
            try:
                owners[inode] = f"{(process / 'comm').read_text(errors='replace').strip()} ({process.name})"
            except OSError:
                continue
        if len(owners) == len(inodes):
            break
    return owners


def listening(proc: Path, ports: Iterable[int]) -> tuple[Listener, ...]:
    """Who listens on one of some ports, in this network namespace.

    Raises:
        ValueError: a table of the kernel's is none.
    """
    wanted = set(ports)
    found: dict[int, Listener] = {}
    for name in ("tcp", "tcp6"):
        try:
            table = (proc / "net" / name).read_text()
        except OSError:
            continue
        for listener in parse(table):
            if listener.port in wanted:
                found.setdefault(listener.port, listener)
    owners = _owners(proc, {listener.inode for listener in found.values()}) if found else {}
    return tuple(Listener(port, item.inode, owners.get(item.inode, "")) for port, item in sorted(found.items()))
