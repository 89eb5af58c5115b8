"""Groups of real Gloo backends in one process: sums, leaving an operation, and what becomes of its buffer."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch

from fdl_trainer.groups import (
    CollectiveFailedError,
    Fabric,
    Group,
    InterruptedCollectiveError,
    LocalGroup,
    Place,
    Reaper,
)
from fdl_trainer.groups import form as form_group
from fdl_trainer.store import EpochStore, StoreClosedError

LIMIT = 30.0


class Shared:
    """A rendezvous in memory, with the coordinator's rules."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.changed = threading.Condition()
        self.closed = False
        self.gets = 0

    def store_set(self, epoch: int, key: str, value: bytes) -> None:
        with self.changed:
            self.values[key] = value
            self.changed.notify_all()

    def store_get(self, epoch: int, keys: list[str], timeout_seconds: float) -> list[bytes]:
        with self.changed:
            self.gets += 1
            self.changed.wait_for(lambda: self.closed or all(key in self.values for key in keys), LIMIT)
            if self.closed:
                raise StoreClosedError("Epoch 1 was cancelled.")
            return [self.values[key] for key in keys]

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()


def never() -> bool:
    return False


def all_of(calls: list[Callable[[], Any]]) -> list[Future[Any]]:
    """Run calls side by side and wait for all."""
    with ThreadPoolExecutor(len(calls)) as pool:
        return [pool.submit(call) for call in calls]


def place(rank: int, ranks: int) -> Place:
    return Place(epoch=1, rank=rank, cohorts=["cpu"] * ranks, address="127.0.0.1")


def form(ranks: int, reaper: Reaper) -> list[Group]:
    shared = Shared()

    def one(rank: int) -> Group:
        return form_group(shared, place(rank, ranks), Fabric(), reaper, never)

    return [future.result(LIMIT) for future in all_of([lambda rank=rank: one(rank) for rank in range(ranks)])]  # type: ignore[misc]


@pytest.mark.parametrize("ranks", [2, 3, 5])
def test_all_ranks_get_the_same_bits(ranks: int) -> None:
    groups = form(ranks, Reaper())
    buffers = [torch.randn(10_001, generator=torch.Generator().manual_seed(rank)) for rank in range(ranks)]
    all_of([lambda g=g, b=b: g.all_reduce(b, never) for g, b in zip(groups, buffers, strict=True)])  # type: ignore[misc]
    assert all(torch.equal(buffers[0], other) for other in buffers[1:])
    given = [torch.full((3,), float(rank)) for rank in range(ranks)]
    all_of([lambda g=g, b=b: g.broadcast(b, 1, never) for g, b in zip(groups, given, strict=True)])  # type: ignore[misc]
    assert all(tensor.tolist() == [1.0, 1.0, 1.0] for tensor in given)
    for group in groups:
        group.close()


def test_a_rank_leaves_an_operation_at_once_and_its_buffer_lives_until_it_has_ended() -> None:
    reaper = Reaper()
    groups = form(2, reaper)
    buffer = torch.ones(100_000)
    asked = threading.Event()
    asked.set()
    started = time.monotonic()
    with pytest.raises(InterruptedCollectiveError):
        groups[0].all_reduce(buffer, asked.is_set)
    assert time.monotonic() - started < LIMIT, "the peer never came; only the interrupt ends the wait"
    assert reaper.pending() == 1, "the operation may still write to its buffer"
    with pytest.raises(CollectiveFailedError):
        groups[0].all_reduce(torch.ones(1), never)
    groups[1].close()
    limit = time.monotonic() + LIMIT
    while reaper.pending() and time.monotonic() < limit:
        time.sleep(0.01)
    assert reaper.pending() == 0


def test_a_failed_operation_frees_the_others_too() -> None:
    """Gloo tells only the neighbours of a dead rank; that these destroy their group is what frees the rest."""
    groups = form(4, Reaper())
    buffers = [torch.ones(200_000) for _ in groups]
    calls: list[Callable[[], Any]] = [
        lambda g=g, b=b: g.all_reduce(b, never)  # type: ignore[misc]
        for g, b in zip(groups[:3], buffers[:3], strict=True)
    ]
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(call) for call in calls]
        groups[3].close()  # to its peers, this is a death
        for future in waiting:
            assert isinstance(future.exception(LIMIT), CollectiveFailedError)


def test_forming_a_cancelled_epoch_fails_at_once() -> None:
    shared = Shared()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(form_group, shared, place(0, 2), Fabric(), Reaper(), never)
        shared.close()
        with pytest.raises(RuntimeError, match="cancelled"):
            future.result(LIMIT)


def test_a_single_rank_needs_no_rendezvous() -> None:
    group = form_group(Shared(), place(0, 1), Fabric(), Reaper(), never)
    assert isinstance(group, LocalGroup)
    buffer = torch.arange(3.0)
    group.all_reduce(buffer, never)
    assert buffer.tolist() == [0.0, 1.0, 2.0]


def test_a_key_is_fetched_once() -> None:
    shared = Shared()
    store = EpochStore(shared, 1)
    store.set("a", b"1")
    store.wait(["a"])
    assert store.get("a") == b"1" and store.get("a") == b"1"
    assert shared.gets == 1
