"""Data that can only be iterated, in shards: files of records, streams with a start position.

A record is a sample of the books: shard ``s`` has the indices ``s * records_per_shard`` and following. The order of a
pass shuffles shards and keeps the records of each together, so that a lease is read by iterating.
"""

import itertools
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fdl_trainer.datasets import AbsentSampleError

OPEN_SHARDS = 4
"""Iterators that are kept: a lease goes on where the last one ended, and a hole may lie elsewhere."""


class ShardedIterable:
    """A dataset of shards, for ``session.setup(dataset=...)``.

    Every shard is read at least once in each pass, by one rank or by several after each other: a rank that takes a
    shard over asks ``open`` for the records from the first one on that is not committed. Each record counts exactly
    once as long as ``open`` gives a shard's records in the same order every time.

    Args:
        shards: number of shards.
        records_per_shard: records that a shard has at most. Those that a shorter shard lacks count as skipped.
        open: ``open(shard, start)`` iterates over a shard's records from number ``start`` (from 0) on. It is called in
            the loader's thread or worker processes.

    Raises:
        ValueError: if there is no shard or no record.
    """

    def __init__(
        self,
        *,
        shards: int,
        records_per_shard: int,
        open: Callable[[int, int], Iterator[Any]],  # noqa: A002 - what it does
    ) -> None:
        if shards < 1 or records_per_shard < 1:
            raise ValueError(
                f"shards is {shards} and records_per_shard is {records_per_shard}; both must be at least 1"
            )
        self.shards = shards
        self.records_per_shard = records_per_shard
        self._open = open
        self._lock = threading.Lock()
        self._readers: OrderedDict[tuple[int, int], Iterator[Any]] = OrderedDict()
        """(shard, next record) -> the iterator that stands there."""

    def __len__(self) -> int:
        return self.shards * self.records_per_shard

    def __getitem__(self, index: int) -> Any:
        """One record.

        Raises:
            AbsentSampleError: the shard has fewer records.
            ValueError: the shard has more records than ``records_per_shard``.
        """
        shard, record = divmod(index, self.records_per_shard)
        with self._lock:
            return self._next(shard, record)

    def probes(self, count: int) -> Sequence[int]:
        """Indices of a few first records, which are there in any shard and cost no iterating."""
        shards = {i * (self.shards - 1) // max(count - 1, 1) for i in range(count)}
        return [shard * self.records_per_shard for shard in sorted(shards)]

    def _next(self, shard: int, record: int) -> Any:
        reader = self._readers.pop((shard, record), None)
        if reader is None:
            reader = iter(self._open(shard, record))
        try:
            item = next(reader)
        except StopIteration:
            self._readers[shard, record + 1] = iter(())  # do not open it again for each record that is not there
            self._forget()
            raise AbsentSampleError(
                f"shard {shard} has no record {record}, and records_per_shard is {self.records_per_shard}"
            ) from None
        if record + 1 < self.records_per_shard:
            self._readers[shard, record + 1] = reader
            self._forget()
        elif next(itertools.islice(reader, 1), reader) is not reader:
            raise ValueError(
                f"shard {shard} has more records than records_per_shard={self.records_per_shard}: the rest would never "
                "be trained; give the size of the largest shard"
            )
        return item

    def _forget(self) -> None:
        while len(self._readers) > OPEN_SHARDS:
            self._readers.popitem(last=False)
