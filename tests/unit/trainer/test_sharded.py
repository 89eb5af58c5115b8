import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import IterableDataset

from fdl_trainer import ledger
from fdl_trainer.audit import AuditLog, prove
from fdl_trainer.datasets import length_of
from fdl_trainer.ledger import Span
from fdl_trainer.loader import DataError, Loader
from fdl_trainer.sharded import ShardedIterable
from fdl_trainer.signature import dataset_signature

CPU = torch.device("cpu")
SHARDS, RECORDS, SEED = 6, 10, 11


class Files:
    """Shards as files of JSON lines; remembers where they were opened."""

    def __init__(self, folder: Path, sizes: list[int]) -> None:
        self.folder = folder
        self.opened: list[tuple[int, int]] = []
        for shard, size in enumerate(sizes):
            (folder / f"{shard}.jsonl").write_text("".join(f"[{shard}, {record}]\n" for record in range(size)))

    def open(self, shard: int, start: int) -> Iterator[Any]:
        self.opened.append((shard, start))
        with (self.folder / f"{shard}.jsonl").open() as lines:
            for record, line in enumerate(lines):
                if record >= start:
                    yield torch.tensor(json.loads(line))


def dataset_of(files: Files) -> ShardedIterable:
    return ShardedIterable(shards=SHARDS, records_per_shard=RECORDS, open=files.open)


def loader_of(dataset: ShardedIterable, **options: Any) -> Loader:
    return Loader(dataset, samples=len(dataset), seed=SEED, device=CPU, **options)


def spans_of(batches: int) -> list[Span]:
    return ledger.batches(ledger.lease(ledger.create(SHARDS * RECORDS, 4, 2, SEED), {"r": batches}), "r")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_pass_has_each_record_once_and_shards_in_a_shuffled_order(tmp_path: Path, workers: int) -> None:
    loader = loader_of(dataset_of(Files(tmp_path, [RECORDS] * SHARDS)), workers=workers)
    loader.start_workers()
    rows = [tuple(row.tolist()) for batch in loader.window(1, spans_of(15)) for row in batch.data]
    loader.close()
    assert sorted(rows) == [(shard, record) for shard in range(SHARDS) for record in range(RECORDS)]
    order = [shard for shard, record in rows if record == 0]
    assert order != sorted(order)


def test_a_shard_is_opened_once_and_read_on_in_the_next_window(tmp_path: Path) -> None:
    files = Files(tmp_path, [RECORDS] * SHARDS)
    loader = loader_of(dataset_of(files))
    spans = spans_of(15)
    list(loader.window(1, spans[:4]))
    list(loader.window(2, spans[4:]))
    assert sorted(files.opened) == [(shard, 0) for shard in range(SHARDS)]


def test_another_rank_takes_a_shard_up_where_commits_end(tmp_path: Path) -> None:
    files = Files(tmp_path, [RECORDS] * SHARDS)
    spans = spans_of(2)
    assert [span.size for span in spans] == [4, 4]
    (batch,) = loader_of(dataset_of(files)).window(1, spans[1:])
    assert files.opened == [(int(batch.data[0][0]), 4)] and batch.data[:, 1].tolist() == [4, 5, 6, 7]


def test_records_that_a_short_shard_lacks_are_skipped_and_counted(tmp_path: Path) -> None:
    files = Files(tmp_path, [RECORDS, 3, RECORDS, 0, RECORDS, RECORDS])
    log = AuditLog(tmp_path / "audit", "pod", 0, "uid/0", 1)
    loader = loader_of(dataset_of(files), audit=log)
    batches = list(loader.window(1, spans_of(15)))
    assert sum(batch.samples for batch in batches) == 43 and sum(batch.skipped for batch in batches) == 17
    log.commit(1, 1, {"uid/0": 15})
    proof = prove([tmp_path / "audit" / "pod-0.jsonl"], SHARDS * RECORDS, 1)
    assert proof.ok and proof.epochs[0].skipped == 17
    assert len(files.opened) == SHARDS


def test_a_shard_with_more_records_than_said_is_refused(tmp_path: Path) -> None:
    loader = loader_of(dataset_of(Files(tmp_path, [RECORDS] * (SHARDS - 1) + [RECORDS + 1])))
    with pytest.raises(DataError, match="shard 5 has more records than records_per_shard=10"):
        list(loader.window(1, spans_of(15)))


def test_copies_of_the_shards_are_compared_by_first_records(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    files = Files(tmp_path / "a", [RECORDS] * SHARDS)
    one = dataset_signature(dataset_of(files), 4, 2, SEED)
    assert {start for _, start in files.opened} == {0}
    other = Files(tmp_path / "b", [RECORDS] * SHARDS)
    assert dataset_signature(dataset_of(other), 4, 2, SEED) == one
    for text in ("[7, 7]\n", ""):
        (tmp_path / "b" / "5.jsonl").write_text(text)
        assert dataset_signature(dataset_of(other), 4, 2, SEED) != one


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))

    def __len__(self) -> int:
        return 3


def test_what_can_only_be_iterated_is_refused_with_the_way_out() -> None:
    with pytest.raises(TypeError, match=r"Stream, which can only be iterated: .* fdl_trainer.ShardedIterable"):
        length_of(Stream())
    with pytest.raises(ValueError, match="shards is 0 and records_per_shard is 5"):
        ShardedIterable(shards=0, records_per_shard=5, open=lambda shard, start: iter(()))
