"""One rank of the group tests, a process of its own: ``python -m tests.device.peer SCENARIO RANK FOLDER``.

Peers find each other in a folder, which stands in for the coordinator's store. Each prints one line of JSON.
"""

import json
import logging
import os
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from fdl_api.run import Mode
from fdl_trainer.groups import Fabric, Group, InterruptedCollectiveError, Place, Reaper, form
from fdl_trainer.store import StoreClosedError

MEGABYTES_250 = 62_500_000
LIMIT = 60.0


class Folder:
    """The coordinator's store, as files."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def store_set(self, epoch: int, key: str, value: bytes) -> None:
        target = self._file(epoch, key)
        draft = target.with_suffix(f".{os.getpid()}")
        draft.write_bytes(value)
        draft.rename(target)

    def store_get(self, epoch: int, keys: list[str], timeout_seconds: float) -> list[bytes]:
        limit = time.monotonic() + min(timeout_seconds, LIMIT)
        files = [self._file(epoch, key) for key in keys]
        while not all(file.exists() for file in files):
            if time.monotonic() > limit:
                raise StoreClosedError(f"nobody set {keys} of epoch {epoch}")
            time.sleep(0.001)
        return [file.read_bytes() for file in files]

    def _file(self, epoch: int, key: str) -> Path:
        return self._path / f"{epoch}-{key.encode().hex()}.key"


class Peer:
    """What the scenarios share."""

    def __init__(self, rank: int, folder: Path) -> None:
        self.rank = rank
        self.folder = folder
        self.device = torch.device("cuda", 0)
        self.reaper = Reaper()
        self.fabric = Fabric(Mode.NCCL_CADENCE, self.device)
        torch.zeros(1, device=self.device)

    def form(self, epoch: int, size: int = 2) -> Group:
        place = Place(epoch, self.rank, ["gpu"] * size, "127.0.0.1")
        return form(Folder(self.folder), place, self.fabric, self.reaper, never)

    def word(self) -> bool:
        """Whether the coordinator has said that somebody died."""
        return (self.folder / "word").exists()

    def wait_for(self, name: str) -> None:
        limit = time.monotonic() + LIMIT
        while not (self.folder / name).exists():
            assert time.monotonic() < limit, f"{name} never came"
            time.sleep(0.001)


def never() -> bool:
    return False


def sums(peer: Peer) -> dict[str, Any]:
    """Sums and gifts of all kinds of buffers, and how long they take."""
    started = time.monotonic()
    group = peer.form(1)
    formed = time.monotonic() - started
    wrong: list[str] = []
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        for device in ("cuda", "cpu"):
            buffer = torch.arange(10_007, device=device).remainder(64).to(dtype) * (peer.rank + 1)
            group.all_reduce(buffer, never)
            if not torch.equal(buffer, torch.arange(10_007, device=device).remainder(64).to(dtype) * 3):
                wrong.append(f"sum of {dtype} on {device}")
            given = torch.full((33,), peer.rank, device=device).to(dtype)
            group.broadcast(given, 1, never)
            if not bool((given == 1).all()):
                wrong.append(f"gift of {dtype} on {device}")
    raw = torch.arange(17, dtype=torch.uint8) if peer.rank == 0 else torch.zeros(17, dtype=torch.uint8)
    group.broadcast(raw, 0, never)
    if raw.tolist() != list(range(17)):
        wrong.append("bytes")
    noise = torch.randn(1_000_003, generator=torch.Generator().manual_seed(peer.rank)).to(peer.device)
    group.all_reduce(noise, never)
    times = _timed(group, torch.ones(MEGABYTES_250, device=peer.device))
    host = _timed(group, torch.ones(MEGABYTES_250 // 10), rounds=5)
    group.close()
    return {
        "formed_s": formed,
        "wrong": wrong,
        "digest": noise.cpu().numpy().tobytes().hex()[:4096],
        "all_reduce_250MB_ms": times,
        "all_reduce_25MB_from_host_ms": host,
        "aborts_pending": _settled(peer.reaper),
    }


def staged(peer: Peer) -> dict[str, Any]:
    """Gloo with buffers on devices."""
    peer.fabric = Fabric(Mode.CPU_CADENCE, peer.device)
    group = peer.form(1)
    buffer = torch.arange(10_007, device=peer.device).float() * (peer.rank + 1)
    for _ in range(3):
        busy = torch.randn(4096, 4096, device=peer.device)
        for _ in range(5):
            busy = (busy @ busy).clamp(-1, 1)
        group.all_reduce(buffer + (busy.sum() * 0), never)  # what is summed depends on kernels that still run
    group.all_reduce(buffer, never)
    right = torch.equal(buffer, torch.arange(10_007, device=peer.device).float() * 3)
    given = torch.full((5,), float(peer.rank), device=peer.device)
    group.broadcast(given, 1, never)
    times = _timed(group, torch.ones(MEGABYTES_250 // 10, device=peer.device), rounds=5)
    group.close()
    return {"right": right, "given": given.tolist(), "all_reduce_25MB_ms": times}


def death(peer: Peer) -> dict[str, Any]:
    """Rank 0 survives: it leaves the collective, forms the next group with the standby, and only then aborts."""
    old = peer.form(1)
    buffer = torch.ones(MEGABYTES_250 // 10, device=peer.device)
    (peer.folder / f"ready{peer.rank}").touch()
    rounds = 0
    try:
        while True:
            old.all_reduce(buffer.fill_(1.0), peer.word)
            rounds += 1
    except InterruptedCollectiveError as left:
        left_at, how = time.time(), str(left)
    died_at = float((peer.folder / "word").read_text())
    new = peer.form(2)
    formed_at = time.time()
    buffer = torch.ones(1000, device=peer.device)
    new.all_reduce(buffer, never)
    worked_at = time.time()
    old.close()
    matrix = torch.randn(4096, 4096, device=peer.device)
    for _ in range(10):
        matrix = (matrix @ matrix).clamp(-1, 1)
    finite = bool(torch.isfinite(matrix).all())  # waits for this stream while the old communicator is being aborted
    computed_at = time.time()
    pending = _settled(peer.reaper)
    gone_at = time.time()
    new.all_reduce(buffer, never)
    return {
        "rounds": rounds,
        "how": how,
        "left_ms": (left_at - died_at) * 1e3,
        "formed_ms": (formed_at - died_at) * 1e3,
        "worked_ms": (worked_at - died_at) * 1e3,
        "computed_ms": (computed_at - died_at) * 1e3,
        "aborted_ms": (gone_at - died_at) * 1e3,
        "sum": float(buffer[0]),
        "finite": finite,
        "aborts_pending": pending,
    }


def standby(peer: Peer) -> dict[str, Any]:
    """A rank that takes the dead one's place at once."""
    (peer.folder / "standby").touch()
    peer.wait_for("word")
    group = peer.form(2)
    buffer = torch.ones(1000, device=peer.device)
    group.all_reduce(buffer, never)
    group.all_reduce(buffer, never)
    return {"sum": float(buffer[0])}


def tiered(peer: Peer) -> dict[str, Any]:
    """Ranks 0 and 1 are one vendor's and use NCCL; rank 2 stands for another vendor and shares device 0."""
    peer.fabric = Fabric(Mode.NCCL_CADENCE, peer.device, {"here": "nvidia", "there": "amd"})
    place = Place(1, peer.rank, ["here", "here", "there"], "127.0.0.1")
    group = form(Folder(peer.folder), place, peer.fabric, peer.reaper, never)
    parts = [torch.randn(1_000_003, generator=torch.Generator().manual_seed(rank)) for rank in range(3)]
    buffer = parts[peer.rank].to(peer.device)
    group.all_reduce(buffer, never)
    exact = torch.stack([part.double() for part in parts]).sum(0)
    given = torch.full((9,), peer.rank, device=peer.device)
    group.broadcast(given, 2, never)
    group.close()
    return {
        "error": float((buffer.double().cpu() - exact).abs().max()),
        "digest": buffer.cpu().numpy().tobytes().hex()[:4096],
        "given": given.tolist(),
        "aborts_pending": _settled(peer.reaper),
    }


def alone(peer: Peer) -> dict[str, Any]:
    """Rank 0 forms a group whose peer never comes, and is not held up by it."""
    threading.Thread(target=lambda: peer.form(7), daemon=True).start()
    time.sleep(1.0)
    started = time.monotonic()
    group = peer.form(8)
    buffer = torch.ones(5, device=peer.device)
    group.all_reduce(buffer, never)
    return {"formed_s": time.monotonic() - started, "sum": float(buffer[0])}


def other(peer: Peer) -> dict[str, Any]:
    """The peer of :func:`alone`: it comes to the second group only."""
    group = peer.form(8)
    buffer = torch.ones(5, device=peer.device)
    group.all_reduce(buffer, never)
    return {"sum": float(buffer[0])}


def _timed(group: Group, buffer: torch.Tensor, rounds: int = 20) -> list[float]:
    times = []
    for _ in range(rounds + 3):
        started = time.perf_counter()
        group.all_reduce(buffer, never)
        times.append(round((time.perf_counter() - started) * 1e3, 3))
    return sorted(times[3:])


def _settled(reaper: Reaper) -> int:
    limit = time.monotonic() + timedelta(seconds=30).total_seconds()
    while reaper.pending() and time.monotonic() < limit:
        time.sleep(0.01)
    return reaper.pending()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    scenarios = {
        "sums": sums,
        "staged": staged,
        "death": death,
        "standby": standby,
        "tiered": tiered,
        "alone": alone,
        "other": other,
    }
    scenario = scenarios[sys.argv[1]]
    print(json.dumps(scenario(Peer(int(sys.argv[2]), Path(sys.argv[3])))), flush=True)
    os._exit(0)
