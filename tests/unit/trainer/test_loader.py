import json
import threading
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from fdl_trainer import ledger
from fdl_trainer.audit import AuditLog
from fdl_trainer.datasets import length_of, sample_of, tensors_of
from fdl_trainer.ledger import Span
from fdl_trainer.loader import Batch, DataError, Loader, to_device
from fdl_trainer.permutation import Permutation

CPU = torch.device("cpu")
SAMPLES, SEED = 25, 7


class Squares(Dataset[Any]):
    """A map-style dataset; remembers in which threads it was read."""

    def __init__(self, bad: int | None = None) -> None:
        self.bad = bad
        self.threads: set[int] = set()
        self.read: list[int] = []

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        self.threads.add(threading.get_ident())
        self.read.append(index)
        if index == self.bad:
            raise RuntimeError("bad bytes")
        return torch.tensor([float(index), index**2]), index


def tensors() -> tuple[torch.Tensor, torch.Tensor]:
    indices = torch.arange(SAMPLES)
    return torch.stack([indices, indices**2], dim=1).float(), indices


def make(dataset: Any, **options: Any) -> Loader:
    return Loader(dataset, samples=SAMPLES, seed=SEED, device=CPU, **options)


def lease_of(batches: int) -> list[Span]:
    return ledger.batches(ledger.lease(ledger.create(SAMPLES, 10, 3, SEED), {"r": batches}), "r")


@pytest.mark.parametrize(
    "dataset",
    [Squares(), tensors(), list(tensors()), TensorDataset(*tensors()), Subset(Squares(), range(SAMPLES))],
    ids=["map-style", "tuple", "list", "TensorDataset", "__getitems__"],
)
def test_all_kinds_of_datasets_give_the_samples_of_the_permutation(dataset: Any) -> None:
    spans = lease_of(4)
    batches = list(make(dataset).window(1, spans))
    assert [batch.span for batch in batches] == spans
    assert [batch.samples for batch in batches] == [10, 10, 5, 10]
    assert [batch.data_epoch for batch in batches] == [0, 0, 0, 1]
    assert [batch.ordinal for batch in batches] == [0, 1, 2, 3]
    for batch in batches:
        start = batch.span.start - batch.data_epoch * SAMPLES
        expected = Permutation(SAMPLES, SEED, batch.data_epoch).indices(start, start + batch.samples)
        features, targets = batch.data
        assert targets.tolist() == expected.tolist()
        assert torch.equal(features, torch.stack([targets, targets**2], dim=1).float())


def test_a_window_can_be_taken_up_where_it_was_left() -> None:
    spans = lease_of(4)
    batches = list(make(Squares()).window(1, spans, first=2))
    assert [(batch.ordinal, batch.span) for batch in batches] == [(2, spans[2]), (3, spans[3])]


def test_samples_are_read_ahead_in_a_thread_that_ends_with_the_window() -> None:
    dataset = Squares()
    before = threading.active_count()
    window = make(dataset).window(1, lease_of(6))
    next(window)
    window.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before
    assert threading.get_ident() not in dataset.threads
    # Read ahead are at most two that wait and one in work, beside the one handed out.
    assert len(dataset.read) <= 40


def test_the_users_collate_makes_the_batch() -> None:
    batches = list(make(Squares(), collate=lambda samples: {"n": len(samples)}).window(1, lease_of(3)))
    assert [batch.data for batch in batches] == [{"n": 10}, {"n": 10}, {"n": 5}]
    batches = list(make(tensors(), collate=len).window(1, lease_of(1)))
    assert batches[0].data == 10


def test_a_sample_that_raises_is_named() -> None:
    order = Permutation(SAMPLES, SEED, 0)
    loader = make(Squares(bad=order.index(12)))
    window = loader.window(1, lease_of(3))
    assert next(window).ordinal == 0
    with pytest.raises(DataError, match=rf"Sample {order.index(12)} of the dataset .*RuntimeError: bad bytes") as error:
        next(window)
    assert isinstance(error.value.__cause__, RuntimeError)


def test_a_collate_that_raises_names_the_samples() -> None:
    def collate(samples: list[Any]) -> Any:
        raise ValueError("unequal sizes")

    first = Permutation(SAMPLES, SEED, 0).index(0)
    with pytest.raises(DataError, match=rf"A batch of samples \[{first}, .* unequal sizes"):
        list(make(Squares(), collate=collate).window(1, lease_of(1)))


@pytest.mark.parametrize("dataset", [Squares(), tensors()], ids=["map-style", "tensors"])
def test_the_audit_logs_what_is_handed_out_not_what_is_read_ahead(tmp_path: Path, dataset: Any) -> None:
    log = AuditLog(tmp_path / "audit", "pod", 0, "uid/0", 3)
    window = make(dataset, audit=log).window(9, lease_of(4))
    handed: list[Batch] = [next(window), next(window)]
    window.close()  # type: ignore[attr-defined]
    lines = [json.loads(line) for line in (tmp_path / "audit" / "pod-0.jsonl").read_text().splitlines()]
    assert lines == [
        {
            "k": "batch",
            "uid": "uid/0",
            "attempt": 3,
            "window": 9,
            "n": n,
            "dataEpoch": 0,
            "indices": batch.data[1].tolist(),
        }
        for n, batch in enumerate(handed)
    ]


def test_lengths_and_samples_of_datasets() -> None:
    assert length_of(Squares()) == length_of(tensors()) == length_of(TensorDataset(*tensors())) == SAMPLES
    assert sample_of(tensors(), 3)[1] == 3
    assert sample_of(Squares(), 3)[1] == 3
    assert tensors_of([1, 2]) is None


@pytest.mark.parametrize(
    ("dataset", "error", "sentence"),
    [
        ((i for i in range(3)), TypeError, "a generator without __len__"),
        (TensorDataset(torch.zeros(0, 2)), ValueError, "the dataset is empty"),
        ((torch.zeros(3), torch.zeros(4)), ValueError, r"\[3, 4\] samples"),
    ],
)
def test_what_is_no_dataset_is_refused(dataset: Any, error: type[Exception], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        length_of(dataset)


def test_nested_batches_go_to_the_device_as_what_they_are() -> None:
    pair = namedtuple("pair", "x y")
    meta = torch.device("meta")
    moved = to_device({"a": [torch.ones(1)], "b": pair(torch.ones(2), "text"), "c": (torch.ones(1), 3)}, meta)
    assert moved["a"][0].device == moved["b"].x.device == moved["c"][0].device == meta
    assert isinstance(moved["b"], pair)
    assert (moved["b"].y, moved["c"][1]) == ("text", 3)
