import json
import re
import threading
import tracemalloc
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

from fdl_trainer import ledger
from fdl_trainer.audit import AuditLog, prove
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


class _Listed(Dataset[Any]):
    """A list as a map-style dataset, unless it is one already."""

    def __init__(self, items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> Any:
        return self.items[index]


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


def test_samples_are_read_ahead_in_a_thread_and_no_further() -> None:
    dataset = Squares()
    loader = make(dataset)
    window = loader.window(1, lease_of(6))
    next(window)
    window.close()  # type: ignore[attr-defined]
    loader.close()
    assert threading.get_ident() not in dataset.threads
    # Read are at most the one handed out and two ahead.
    assert len(dataset.read) <= 30
    whole = Squares()  # the thread may still be reading from the first one
    assert len(list(make(whole).window(1, lease_of(6)))) == 6
    assert len(whole.read) == 2 * SAMPLES


def test_reading_goes_on_over_the_windows_end_and_what_was_read_is_used_or_dropped() -> None:
    dataset = Squares()
    loader = make(dataset)
    spans = lease_of(8)
    assert [batch.span for batch in loader.window(1, spans[:3], ahead=spans[3:6])] == spans[:3]
    loader._thread.submit(lambda: None).result()  # everything that was put to work is read now
    sizes = [span.size for span in spans]
    assert len(dataset.read) == sum(sizes[:5])
    again = list(loader.window(2, spans[3:6]))
    assert [(batch.span, batch.ordinal) for batch in again] == [(span, i) for i, span in enumerate(spans[3:6])]
    assert len(dataset.read) == sum(sizes[:6])  # nothing was read twice
    list(loader.window(3, spans[6:7], ahead=spans[:2]))
    other = list(loader.window(4, spans[7:]))  # another lease than was expected
    assert [batch.span for batch in other] == spans[7:] and not loader._ready
    loader.close()


def test_the_users_collate_makes_the_batch() -> None:
    batches = list(make(Squares(), collate=lambda samples: {"n": len(samples)}).window(1, lease_of(3)))
    assert [batch.data for batch in batches] == [{"n": 10}, {"n": 10}, {"n": 5}]
    batches = list(make(tensors(), collate=len).window(1, lease_of(1)))
    assert batches[0].data == 10


def test_a_sample_that_raises_is_named() -> None:
    order = Permutation(SAMPLES, SEED, 0)
    loader = make(Squares(bad=order.index(12)), rank="cpu-0/0")
    window = loader.window(1, lease_of(3))
    assert next(window).ordinal == 0
    sentence = (
        rf"Rank cpu-0/0: sample {order.index(12)} could not be read from the dataset of session.setup: "
        'RuntimeError: bad bytes. .*on_sample_error="skip"'
    )
    with pytest.raises(DataError, match=sentence) as error:
        next(window)
    assert isinstance(error.value.__cause__, RuntimeError)


def test_a_sample_that_raises_is_left_out_and_counted(tmp_path: Path) -> None:
    order = Permutation(SAMPLES, SEED, 0)
    bad = order.index(12)
    log = AuditLog(tmp_path, "pod", 0, "uid/0", 1)
    loader = make(Squares(bad=bad), skip=True, audit=log)
    batches = list(loader.window(1, lease_of(3)))
    assert [(batch.samples, batch.skipped) for batch in batches] == [(10, 0), (9, 1), (5, 0)]
    assert sorted(int(index) for batch in batches for index in batch.data[1]) == sorted(set(range(SAMPLES)) - {bad})
    assert loader.skipped == 1
    log.commit(1, 1, {"uid/0": 3})
    proof = prove([tmp_path / "pod-0.jsonl"], SAMPLES, 1)
    assert proof.ok and (proof.epochs[0].committed, proof.epochs[0].skipped) == (SAMPLES - 1, 1)


def test_a_batch_of_bad_samples_only_has_no_data() -> None:
    class Bad(Squares):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            raise OSError("gone")

    batches = list(make(Bad(), skip=True).window(1, lease_of(2)))
    assert [(batch.samples, batch.skipped, batch.data) for batch in batches] == [(0, 10, None)] * 2


def test_samples_of_unlike_types_are_refused_where_torch_would_stack_them() -> None:
    class Mixed(Squares):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            features, target = super().__getitem__(index)
            return (features.double() if target == order.index(15) else features), target

    order = Permutation(SAMPLES, SEED, 0)
    window = make(Mixed(), rank="gpu-1/0").window(1, lease_of(3))
    next(window)
    with pytest.raises(
        DataError, match=r"Rank gpu-1/0: batch\[0\] is float64 in the batch .* float32 in the first one"
    ):
        next(window)


def test_a_dataset_whose_samples_do_not_change_can_be_read_once() -> None:
    dataset = Squares()
    loader = make(dataset, wish=True)
    decision = loader.load()
    assert decision.resident and len(dataset.read) == SAMPLES + 1  # one sample to learn the size
    batches = list(loader.window(1, lease_of(4)))
    assert len(dataset.read) == SAMPLES + 1
    streamed = list(make(Squares()).window(1, lease_of(4)))
    for one, other in zip(batches, streamed, strict=True):
        assert (one.span, one.samples, one.ordinal) == (other.span, other.samples, other.ordinal)
        assert all(torch.equal(a, b) for a, b in zip(one.data, other.data, strict=True))


@pytest.mark.parametrize(
    ("dataset", "options", "reason"),
    [
        (Squares(), {"collate": len}, "collate function of its own"),
        (Squares(), {"skip": True}, "leaves gaps"),
        ([{"text": "a"}] * SAMPLES, {}, r"batch\['text'\]\[0\] is str, not a tensor"),
    ],
)
def test_what_cannot_be_resident_is_streamed_and_says_why(dataset: Any, options: Any, reason: str) -> None:
    loader = Loader(_Listed(dataset), samples=SAMPLES, seed=SEED, device=CPU, wish=True, **options)
    decision = loader.load()
    assert not decision.resident and re.search(reason, decision.sentence), decision.sentence


def test_samples_that_differ_beyond_the_first_ones_are_streamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fdl_trainer.loader.resident.CHUNK", 10)
    items = [torch.zeros(2 if index < 20 else 3) for index in range(SAMPLES)]
    decision = make(_Listed(items), wish=True).load()
    assert not decision.resident and "samples 20..24 differ from the first ones" in decision.sentence


def test_memory_that_runs_out_at_load_falls_back_to_streaming(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def exhausted(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    monkeypatch.setattr("fdl_trainer.loader.resident.load", exhausted)
    loader = make(Squares(), wish=True)
    with caplog.at_level("INFO"):
        assert not loader.load().resident
    assert "ran out of memory while its" in caplog.text and "streamed" in caplog.text
    assert [batch.samples for batch in loader.window(1, lease_of(3))] == [10, 10, 5]


def test_memory_that_runs_out_while_reading_ahead_is_given_another_chance_alone() -> None:
    class Greedy(Squares):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
            if self.read and threading.current_thread() is not threading.main_thread():
                raise MemoryError
            return super().__getitem__(index)

    dataset = Greedy()
    dataset.read.append(-1)
    loader = make(dataset)
    assert [batch.samples for batch in loader.window(1, lease_of(3))] == [10, 10, 5]


def test_nothing_grows_with_the_number_of_samples() -> None:
    class Virtual(Dataset[Any]):
        def __len__(self) -> int:
            return 1_000_000_000

        def __getitem__(self, index: int) -> int:
            return index

    dataset = Virtual()
    tracemalloc.start()
    books = ledger.lease(ledger.create(len(dataset), 64, 3, SEED), {"r": 1000, "s": 2300})
    spans = ledger.batches(books, "r")
    loader = Loader(dataset, samples=len(dataset), seed=SEED, device=CPU)
    seen = [int(index) for batch in loader.window(1, spans[:20]) for index in batch.data]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    loader.close()
    assert len(set(seen)) == 20 * 64 and max(seen) > 900_000_000
    assert peak < 2_000_000  # the leases; a permutation held as a list would be 8 GB


def test_a_collate_that_raises_names_the_samples() -> None:
    def collate(samples: list[Any]) -> Any:
        raise ValueError("no such thing")

    first = Permutation(SAMPLES, SEED, 0).index(0)
    with pytest.raises(
        DataError, match=rf"collate function of session.setup failed on samples \[{first}, .*no such thing"
    ):
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
        ((i for i in range(3)), TypeError, "a generator, which can only be iterated"),
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
