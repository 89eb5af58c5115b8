"""Worker processes: what they do with signals, errors and devices, and that none of them outlives its rank."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset

from fdl_trainer import ledger
from fdl_trainer.ledger import Span
from fdl_trainer.loader import DataError, Loader
from fdl_trainer.permutation import Permutation

SAMPLES, SEED = 40, 3
LIMIT = 30.0


class Seen(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return index, os.getpid(), random.random(), torch.rand(2)


class Failing(Seen):
    def __init__(self, bad: int, kill: bool = False) -> None:
        self.bad, self.kill = bad, kill

    def __getitem__(self, index: int) -> Any:
        if index == self.bad and self.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        if index == self.bad:
            raise OSError("sector 13 is gone")
        return index, str(torch.cuda.is_available())


def lease(batches: int) -> list[Span]:
    return ledger.batches(ledger.lease(ledger.create(SAMPLES, 8, 2, SEED), {"r": batches}), "r")


def loader_of(dataset: Any, **options: Any) -> Loader:
    loader = Loader(dataset, samples=SAMPLES, seed=SEED, device=torch.device("cpu"), **options)
    loader.start_workers()
    return loader


@pytest.fixture
def made() -> Iterator[Callable[..., Loader]]:
    loaders: list[Loader] = []

    def make(dataset: Any, **options: Any) -> Loader:
        loaders.append(loader_of(dataset, **options))
        return loaders[-1]

    yield make
    for loader in loaders:
        loader.close()


def gone(pid: int) -> bool:
    """Whether no process of this id is there, not even a dead one that nobody collected."""
    return not Path(f"/proc/{pid}").exists()


def wait_until_gone(pids: list[int]) -> None:
    limit = time.monotonic() + LIMIT
    while not all(map(gone, pids)):
        assert time.monotonic() < limit, [Path(f"/proc/{pid}/stat").read_text() for pid in pids if not gone(pid)]
        time.sleep(0.02)


def test_workers_deliver_the_lease_in_order_and_draw_the_same_whoever_reads(made: Callable[..., Loader]) -> None:
    def run(workers: int) -> list[Any]:
        return list(made(Seen(), workers=workers).window(1, lease(6)))

    two, three = run(2), run(3)
    assert [batch.span for batch in two] == lease(6)
    for a, b in zip(two, three, strict=True):
        order = Permutation(SAMPLES, SEED, a.data_epoch)
        start = a.span.start - a.data_epoch * SAMPLES
        assert a.data[0].tolist() == order.indices(start, start + 8).tolist()
        assert torch.equal(a.data[2], b.data[2]) and torch.equal(a.data[3], b.data[3])
    readers = {int(pid) for batch in two for pid in batch.data[1]}
    assert os.getpid() not in readers and 1 <= len(readers) <= 2
    assert len({float(value) for batch in two for value in batch.data[2]}) == 48


def test_workers_ignore_the_signals_that_are_for_the_rank(made: Callable[..., Loader]) -> None:
    loader = made(Seen(), workers=2)
    pids = loader.worker_pids()
    assert len(pids) == 2
    for pid in pids:
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
    assert len(list(loader.window(1, lease(5)))) == 5
    assert loader.worker_pids() == pids


def test_an_error_in_a_worker_is_the_same_sentence(made: Callable[..., Loader]) -> None:
    bad = Permutation(SAMPLES, SEED, 0).index(13)
    sentences = []
    for workers in (0, 2):
        with pytest.raises(DataError) as error:
            list(made(Failing(bad), workers=workers, rank="gpu-0/1").window(1, lease(3)))
        sentences.append(str(error.value))
    assert sentences[0] == sentences[1]
    assert sentences[0].startswith(f"Rank gpu-0/1: sample {bad} could not be read")


def test_bad_samples_are_left_out_in_workers_too(made: Callable[..., Loader]) -> None:
    loader = made(Failing(Permutation(SAMPLES, SEED, 0).index(13)), workers=1, skip=True)
    assert [batch.skipped for batch in loader.window(1, lease(3))] == [0, 1, 0]


def test_a_worker_that_is_killed_is_said_in_a_sentence(made: Callable[..., Loader]) -> None:
    loader = made(Failing(Permutation(SAMPLES, SEED, 0).index(13), kill=True), workers=2)
    with pytest.raises(DataError, match="one of its 2 loader worker processes ended unexpectedly"):
        list(loader.window(1, lease(5)))


def test_workers_see_no_device(made: Callable[..., Loader]) -> None:
    batches = list(made(Failing(-1), workers=1).window(1, lease(1)))
    assert set(batches[0].data[1]) == {"False"}


def test_closing_leaves_no_process_even_while_a_worker_reads(made: Callable[..., Loader]) -> None:
    class Slow(Seen):
        def __getitem__(self, index: int) -> Any:
            time.sleep(60)

    loader = made(Slow(), workers=2)
    loader._start(lease(1)[0])
    pids = loader.worker_pids()
    loader.close()
    wait_until_gone(pids)


def test_a_resident_dataset_needs_no_workers(made: Callable[..., Loader]) -> None:
    class Fixed(Seen):
        def __getitem__(self, index: int) -> Any:
            return float(index)

    loader = made(Fixed(), workers=2, wish=True)
    pids = loader.worker_pids()
    assert loader.load().resident and loader.worker_pids() == []
    wait_until_gone(pids)
    assert made((torch.zeros(SAMPLES),), workers=2).worker_pids() == []


RANK = """
import signal, sys, time, torch
from fdl_trainer.loader import Loader
signal.signal(signal.SIGTERM, lambda *_: print("asked", flush=True))
class Data:
    def __len__(self): return 40
    def __getitem__(self, index): return index
loader = Loader(Data(), samples=40, seed=0, device=torch.device("cpu"), workers=3)
loader.start_workers()
print(*loader.worker_pids(), flush=True)
time.sleep(300)
"""


def test_workers_die_with_a_rank_that_is_killed() -> None:
    rank = subprocess.Popen([sys.executable, "-c", RANK], stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert rank.stdout is not None
        pids = [int(pid) for pid in rank.stdout.readline().split()]
        assert len(pids) == 3 and not any(map(gone, pids))
    finally:
        rank.kill()
        rank.wait(LIMIT)
    # Whoever adopts orphans here may not collect them; a dead process without an adopter is as good as gone.
    limit = time.monotonic() + LIMIT
    while any(not gone(pid) and " Z " not in Path(f"/proc/{pid}/stat").read_text() for pid in pids):
        assert time.monotonic() < limit
        time.sleep(0.02)
