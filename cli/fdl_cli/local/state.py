"""The record of a cluster, and the locks that keep two commands from working on one cluster."""

import contextlib
import dataclasses
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from fdl_cli.local.errors import LocalError
from fdl_cli.local.nodespec import Accelerators, NodeSpec
from fdl_cli.local.paths import LOCK_ROOT, STATE_ROOT, ClusterPaths
from fdl_cli.local.subnets import Subnets

STARTING, RUNNING = "starting", "running"


@dataclass
class Holder:
    """The first process of a node's namespaces: its id and start time (clock ticks since boot)."""

    pid: int
    started: int


@dataclass
class Record:
    """What a cluster consists of. Written before each thing is made, so that a crash leaves nothing unknown."""

    name: str
    provider: str
    phase: str = STARTING
    block: int = 0
    bin: str = ""
    nodes: list[NodeSpec] = field(default_factory=list)
    holders: dict[str, Holder] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)

    @property
    def subnets(self) -> Subnets:
        """The cluster's addresses."""
        return Subnets(self.block)

    def index(self, node: str) -> int:
        """Place of a node, which decides its addresses.

        Raises:
            LocalError: the cluster has no such node.
        """
        names = [n.name for n in self.nodes]
        if node not in names:
            listed = ", ".join(str(n) for n in names)
            raise LocalError(f"The cluster {self.name} has no node {node}. It has: {listed}.")
        return names.index(node)


def encode(record: Record) -> str:
    """The record as JSON."""
    return json.dumps(dataclasses.asdict(record), indent=1, default=str)


def decode(text: str) -> Record:
    """The record of its JSON."""
    raw: dict[str, Any] = json.loads(text)
    raw["nodes"] = [
        NodeSpec(
            n["name"],
            None if n["cpu"] is None else Decimal(n["cpu"]),
            n["memory"],
            tuple(Accelerators(**a) for a in n["accelerators"]),
        )
        for n in raw["nodes"]
    ]
    raw["holders"] = {k: Holder(**v) for k, v in raw["holders"].items()}
    return Record(**raw)


def save(paths: ClusterPaths, record: Record) -> None:
    """Writes the record so that a reader sees the old one or the new one."""
    paths.root.mkdir(parents=True, exist_ok=True, mode=0o755)
    temporary = paths.record.with_suffix(".tmp")
    temporary.write_text(encode(record))
    temporary.rename(paths.record)


def load(paths: ClusterPaths) -> Record | None:
    """The record, None if there is no cluster (or only a folder that a crash left without one)."""
    try:
        return decode(paths.record.read_text())
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as fault:
        raise LocalError(
            f"{paths.record} cannot be read ({fault}). Run `fdl local down --name {paths.name}`."
        ) from fault


def require(paths: ClusterPaths) -> Record:
    """The record of a running cluster.

    Raises:
        LocalError: there is none.
    """
    record = load(paths)
    if record is None or record.phase != RUNNING:
        raise LocalError(f"No local cluster {paths.name} is running. Start it: fdl local up --name {paths.name}.")
    return record


def clusters() -> list[str]:
    """Names of all clusters with state on this machine."""
    return sorted(p.name for p in STATE_ROOT.iterdir() if p.is_dir()) if STATE_ROOT.is_dir() else []


def _same(handle: int, path: Path) -> bool:
    try:
        return os.fstat(handle).st_ino == path.stat().st_ino
    except FileNotFoundError:
        return False


@contextlib.contextmanager
def lock(name: str, wait: Callable[[str], None], limit_s: float = 900.0) -> Iterator[None]:
    """Holds the lock ``name``; a killed holder frees it. Its file is removed at the end.

    Raises:
        LocalError: another process holds it for longer than ``limit_s`` seconds.
    """
    LOCK_ROOT.mkdir(parents=True, exist_ok=True)
    path = LOCK_ROOT / f"fdl-local-{name}.lock"
    deadline = time.monotonic() + limit_s
    said = False
    while True:
        handle = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _same(handle, path):
                break
        except BlockingIOError:
            if not said:
                wait(f"Another `fdl local` is at work on {name}: waiting for it")
                said = True
        os.close(handle)
        if time.monotonic() > deadline:
            raise LocalError(f"Another `fdl local` has worked on {name} for {limit_s:.0f} s. End it, then try again.")
        time.sleep(0.1)
    try:
        yield
    finally:
        # Removed while held: a waiter notices that its file is no longer the one of that name.
        path.unlink(missing_ok=True)
        os.close(handle)
