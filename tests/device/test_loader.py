"""The loader, and batches in parts, on a real accelerator: copies beside the training, memory that really runs out."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from fdl_trainer import ledger
from fdl_trainer.fit import Accumulator
from fdl_trainer.ledger import Span
from fdl_trainer.loader import DataError, Loader
from fdl_trainer.loader.courier import Courier
from fdl_trainer.loader.resident import Resident
from fdl_trainer.permutation import Permutation

SAMPLES, BATCH, WIDTH, SEED = 512, 32, 4096, 5
DEVICE = torch.device("cuda", 0)
GIB = 1 << 30
LATE = 1_000_000_000
"""Cycles of the device, about half a second."""


class Rows(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return torch.full((WIDTH,), float(index)), index


class Curious(Rows):
    """Tries the device."""

    def __getitem__(self, index: int) -> Any:
        return str(torch.ones(1, device="cuda"))


def spans() -> list[Span]:
    return ledger.batches(ledger.lease(ledger.create(SAMPLES, BATCH, 1, SEED), {"r": SAMPLES // BATCH}), "r")


def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(SAMPLES).float()[:, None].expand(-1, WIDTH).contiguous(), torch.arange(SAMPLES)


def test_a_batch_of_a_resident_dataset_is_there_before_the_device_has_come_to_it() -> None:
    held = Resident(tuple(tensor.to(DEVICE) for tensor in tensors()))
    rows = torch.tensor([3, 1, 500])
    held.gather(rows)  # the first pinned memory is taken from the system, which waits
    torch.cuda.synchronize()
    torch.cuda._sleep(LATE)
    passed = torch.cuda.Event()
    passed.record()
    _, labels = held.gather(rows)
    assert not passed.query(), "the host is ahead"
    assert labels.tolist() == [3, 1, 500]


@pytest.mark.parametrize(
    ("dataset", "options", "resident"),
    [
        (tensors(), {}, True),
        (tensors(), {"wish": False}, False),
        (Rows(), {}, False),
        (Rows(), {"workers": 2}, False),
        (Rows(), {"wish": True}, True),
    ],
    ids=["tensors", "tensors streamed", "samples", "workers", "samples read once"],
)
def test_batches_arrive_whole_while_the_device_is_busy(dataset: Any, options: Any, resident: bool) -> None:
    """Each batch is used on the stream of the training, which lags behind the host, and its memory is used again."""
    loader = Loader(dataset, samples=SAMPLES, seed=SEED, device=DEVICE, **options)
    loader.start_workers()
    work = torch.randn(4096, 4096, device=DEVICE)
    sums = []
    try:
        assert loader.load().resident is resident
        for batch in loader.window(1, spans()):
            x, y = batch.data
            assert x.device == y.device == DEVICE
            for _ in range(20):
                work = (work @ work).clamp(-1, 1)  # the device is far behind when the next batch is asked for
            sums.append((x - y[:, None]).abs().sum() + x.sum() * 0)
            order = Permutation(SAMPLES, SEED, 0).indices(batch.span.start, batch.span.stop)
            sums.append((y.cpu() - torch.from_numpy(order)).abs().sum().to(DEVICE))
            del x, y, batch
    finally:
        loader.close()
    assert float(torch.stack(sums).abs().sum()) == 0.0


def test_a_batch_is_used_only_once_it_has_arrived() -> None:
    courier = Courier(DEVICE)
    courier.send(torch.zeros(1))  # makes the courier's stream
    assert courier._stream is not None
    torch.full((16 << 20,), -1.0, device=DEVICE)
    with torch.cuda.stream(courier._stream):
        torch.cuda._sleep(LATE)
    batch = courier.receive(courier.send(torch.ones(16 << 20)))
    assert float(batch.sum()) == 16 << 20


def test_memory_of_a_batch_is_not_used_again_while_the_training_still_reads_it() -> None:
    courier = Courier(DEVICE)
    batch = courier.receive(courier.send(torch.ones(16 << 20)))
    torch.cuda._sleep(LATE)
    total = batch.sum()
    del batch
    courier.receive(courier.send(torch.full((16 << 20,), 2.0)))
    assert float(total) == 16 << 20


def test_a_worker_that_touches_the_device_is_told_so() -> None:
    torch.ones(1, device=DEVICE)  # the rank has a context when its workers are used
    loader = Loader(Curious(), samples=SAMPLES, seed=SEED, device=DEVICE, workers=1)
    loader.start_workers()
    try:
        with pytest.raises(DataError, match=r"sample \d+ could not be read .*CUDA"):
            next(loader.window(1, spans()))
    finally:
        loader.close()


def test_a_dataset_larger_than_the_free_memory_is_streamed() -> None:
    free, _ = torch.cuda.mem_get_info(DEVICE)
    hog = torch.empty(free - GIB, dtype=torch.int8, device=DEVICE)
    try:
        large = torch.zeros(1, dtype=torch.float32).expand(SAMPLES, GIB // SAMPLES // 4)
        loader = Loader((large,), samples=SAMPLES, seed=SEED, device=DEVICE)
        decision = loader.load()
        assert not decision.resident and "too large to be resident" in decision.sentence
        loader.close()
    finally:
        del hog
        torch.cuda.empty_cache()


class Hungry(nn.Module):
    """Takes 64 MiB a sample."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layer(x)
        return y * (y[:, :, None].expand(-1, -1, 16 << 20).cos() ** 2).mean(dim=(1, 2))[:, None]


def test_memory_that_really_runs_out_is_met_by_parts(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    model = Hungry().to(DEVICE)
    x = torch.randn(32, 16, device=DEVICE)
    accumulator = Accumulator(model, DEVICE, "gpu-0/0")
    accumulator.gradients(lambda batch: model(batch).mean(), x, 32)
    expected = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    assert accumulator.limit is None
    model.zero_grad()
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(DEVICE)
    hog = torch.empty(free - 3 * GIB, dtype=torch.int8, device=DEVICE)
    try:
        small = Accumulator(model, DEVICE, "gpu-0/0")
        small.gradients(lambda batch: model(batch).mean(), x, 32)
    finally:
        del hog
        torch.cuda.empty_cache()
    assert small.limit is not None and 1 <= small.limit < 32
    assert f"the largest number that does is {small.limit}" in caplog.text
    for parameter, whole in zip(model.parameters(), expected, strict=True):
        assert parameter.grad is not None and torch.allclose(parameter.grad, whole, rtol=1e-4, atol=1e-5)
