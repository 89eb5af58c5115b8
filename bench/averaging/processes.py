"""The ranks that measure, in processes of their own."""

import multiprocessing
import socket
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from bench.averaging import worker
from bench.averaging.shapes import Load
from bench.averaging.worker import Wiring

LIMIT = 1800.0
T = TypeVar("T")


def run(ranks: int, loads: Sequence[Load], wiring: Wiring = Wiring.GLOO) -> dict[str, dict[str, list[float]]]:
    """Milliseconds of each turn on rank 0, by model and work."""
    return _everywhere(worker.measure, ranks, loads, wiring)


def explain(
    ranks: int, loads: Sequence[Load], wiring: Wiring
) -> tuple[dict[str, dict[str, list[float]]], dict[str, dict[str, Any]]]:
    """The same, and a profile of each model's window (:mod:`bench.averaging.profile`)."""
    found = _everywhere(worker.explain, ranks, loads, wiring)
    return {name: times for name, (times, _) in found.items()}, {name: seen for name, (_, seen) in found.items()}


def _everywhere(
    work: Callable[[int, int, int, Wiring, Sequence[Load]], T], ranks: int, loads: Sequence[Load], wiring: Wiring
) -> T:
    """Run it in all ranks; returns what rank 0 found."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    with multiprocessing.get_context("spawn").Pool(ranks) as pool:
        pending = [pool.apply_async(work, (rank, ranks, port, wiring, loads)) for rank in range(ranks)]
        figures, *_ = [one.get(timeout=LIMIT) for one in pending]
        return figures
