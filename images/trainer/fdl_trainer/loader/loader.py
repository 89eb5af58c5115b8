"""Hands a rank the micro-batches of its lease, with the next ones read and copied while it trains.

A dataset that is resident on the device is read by one gather a batch, in the caller's thread. Any other is streamed: a
thread of the loader (or worker processes) makes the batches of the spans that the lease names, in their order, some
ahead of the training, and of the next lease's where that is known.
"""

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any

import torch

from fdl_trainer.audit import AuditLog
from fdl_trainer.datasets import block_of, tensors_of
from fdl_trainer.ledger import Span
from fdl_trainer.loader import memory, residency, resident
from fdl_trainer.loader.courier import Courier, Parcel
from fdl_trainer.loader.fetch import DataError, Fetched, Fetcher
from fdl_trainer.loader.order import Order
from fdl_trainer.loader.residency import Facts, Residency
from fdl_trainer.loader.resident import Resident
from fdl_trainer.loader.trees import dtypes, size_bytes
from fdl_trainer.loader.workers import Workers

log = logging.getLogger(__name__)

SKIPS_LOGGED = 10
"""Skipped samples of which each is logged; later ones are only counted."""


@dataclass(frozen=True)
class Batch:
    """One micro-batch on the rank's device.

    Args:
        data: what the collate function made of the samples; None when all were left out.
        samples: number of samples in it.
        data_epoch: pass over the data, from 0.
        span: its positions in the run's stream.
        ordinal: its number in the rank's window, from 0.
        skipped: samples of the span that could not be read and were left out (``samples + skipped == span.size``).
    """

    data: Any
    samples: int
    data_epoch: int
    span: Span
    ordinal: int
    skipped: int = 0


@dataclass(frozen=True)
class _Ready:
    """A batch that was read: what it consists of, and where its tensors are."""

    fetched: Fetched
    parcel: Parcel


class Loader:
    """Delivers micro-batches.

    Args:
        dataset: has ``__len__`` and ``__getitem__`` (``__getitems__`` is used if it is there), or is tensors.
        samples: samples in the dataset.
        seed: seed of the order.
        device: where batches go.
        collate: makes a batch of a list of samples; torch's default when None.
        audit: logs the indices handed out; None: no log.
        rank: name of this rank, for sentences.
        workers: processes that read a streamed dataset; 0: a thread.
        skip: leave samples out that cannot be read, instead of raising.
        wish: whether the dataset is to be resident; None: by the rule (:mod:`fdl_trainer.loader.residency`).
        sharers: ranks that share the host memory of this one's container.

    Attributes:
        residency: whether the dataset is resident, and why; None before :meth:`load`.
        skipped: samples left out so far.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        samples: int,
        seed: int,
        device: torch.device,
        collate: Callable[[list[Any]], Any] | None = None,
        audit: AuditLog | None = None,
        rank: str = "solo",
        workers: int = 0,
        skip: bool = False,
        wish: bool | None = None,
        sharers: int = 1,
    ) -> None:
        self.residency: Residency | None = None
        self.skipped = 0
        self._dataset = dataset
        self._samples = samples
        self._order = Order(samples, seed, block_of(dataset))
        self._device = device
        self._custom_collate = collate is not None
        self.audit = audit
        self._fetcher = Fetcher(dataset, collate, rank=rank, skip=skip)
        self._worker_count = workers
        self._skip = skip
        self._wish = wish
        self._sharers = sharers
        self.rank = rank
        self._seed = seed
        self._tensors = None if collate else tensors_of(dataset)
        self._resident: Resident | None = None
        self._workers: Workers | None = None
        self._thread = ThreadPoolExecutor(1, "fdl-loader")
        self._courier = Courier(device)
        self._ready: dict[Span, Future[_Ready]] = {}
        self._ahead = residency.MIN_AHEAD
        self._measured = False
        self._dtypes: dict[str, torch.dtype] | None = None

    # --- before the training ----------------------------------------------------------------------------

    def start_workers(self) -> None:
        """Fork the worker processes, if any are wanted: before anything of this process touches a device."""
        if self._worker_count and self._tensors is not None:
            log.info("workers=%d is not used: a dataset of tensors is read by one gather a batch", self._worker_count)
        elif self._worker_count:
            self._workers = Workers(self._fetcher, self._worker_count, self._seed)
            self._workers.start()

    def load(self, reserved_bytes: int = 0) -> Residency:
        """Decide whether the dataset is resident, and load it if so; logged.

        Args:
            reserved_bytes: bytes of the device's free memory that training will still take.

        Raises:
            DataError: a sample that is read for it is bad.
        """
        facts = self._facts(reserved_bytes)
        decision = residency.decide(facts)
        if decision.resident:
            try:
                self._resident = self._loaded()
            except (RuntimeError, MemoryError) as error:
                if not memory.is_out_of_memory(error):
                    raise
                decision = residency.fallback(facts.dataset_bytes or 0, facts.device, str(error).splitlines()[0][:200])
            except ValueError as error:
                decision = residency.impossible(str(error))
        if self._resident is not None:
            self._close_workers()
        log.info("rank %s: %s", self._fetcher.rank, decision.sentence)
        self.residency = decision
        return decision

    def _facts(self, reserved_bytes: int) -> Facts:
        dataset_bytes: int | None = None
        obstacle = ""
        placed = False
        if self._tensors is not None:
            dataset_bytes = size_bytes(self._tensors)
            placed = all(tensor.device == self._device for tensor in self._tensors)
        elif self._wish and self._order.block == 1:
            obstacle = self._obstacle()
            if not obstacle:
                dataset_bytes, obstacle = resident.estimate(self._fetcher, self._samples)
        return Facts(
            device=str(self._device),
            dataset_bytes=dataset_bytes,
            free_bytes=memory.free_bytes(self._device, self._sharers),
            reserved_bytes=reserved_bytes,
            placed=placed,
            tensors=self._tensors is not None,
            wish=self._wish,
            obstacle=obstacle,
            shards=self._samples // self._order.block if self._order.block > 1 else 0,
        )

    def _obstacle(self) -> str:
        if self._custom_collate:
            return "it has a collate function of its own, which makes each batch of samples"
        return 'on_sample_error="skip" leaves gaps in it' if self._skip else ""

    def _loaded(self) -> Resident:
        if self._tensors is None:
            return resident.load(self._fetcher, self._samples, self._device)
        return Resident(tuple(tensor.to(self._device) for tensor in self._tensors))

    # --- the training -----------------------------------------------------------------------------------

    def window(self, window: int, spans: Sequence[Span], first: int = 0, ahead: Sequence[Span] = ()) -> Iterator[Batch]:
        """The micro-batches of a window in order; a batch is logged when it is handed out.

        Exhaust the iterator to go on reading what is ahead; close it earlier to drop what was read.

        Args:
            window: number of the window in work.
            spans: its micro-batches, none of which spans two data epochs.
            first: number of the first one that is still to be done.
            ahead: micro-batches that this rank will most likely be given next; read ahead beyond the window's end.

        Raises:
            DataError: if the dataset or the collate function raises; the cause is chained.
        """
        if self.residency is None:
            self.load()
        todo = list(spans[first:])
        wanted = [*todo, *ahead]
        done = False
        try:
            for i, span in enumerate(todo):
                fetched, data = self._take(wanted[i : i + self._ahead + 1])
                self._note(fetched)
                if self.audit is not None:
                    skipped = [index for index, _ in fetched.skipped]
                    self.audit.batch(window, first + i, self._order.data_epoch(span), fetched.indices, skipped)
                yield Batch(
                    data, len(fetched.indices), self._order.data_epoch(span), span, first + i, len(fetched.skipped)
                )
            done = True
        finally:
            if not done:
                self._forget([])

    def close(self) -> None:
        """End thread and processes."""
        self._forget([])
        self._thread.shutdown(wait=False, cancel_futures=True)
        self._close_workers()

    def worker_pids(self) -> list[int]:
        """Process ids of the workers."""
        return self._workers.pids() if self._workers is not None else []

    def _take(self, coming: Sequence[Span]) -> tuple[Fetched, Any]:
        """The first batch of those that come next; the others are put to work."""
        span = coming[0]
        if self._resident is not None:
            indices = self._order.indices(span)
            return Fetched(None, indices.tolist()), self._resident.gather(torch.from_numpy(indices))
        self._forget(coming)
        for each in coming:
            if each not in self._ready:
                self._ready[each] = self._start(each)
        try:
            ready = self._ready.pop(span).result()
        except (RuntimeError, MemoryError) as error:
            if not memory.is_out_of_memory(error):
                raise
            ready = self._alone(span)
        self._check_dtypes(ready.fetched)
        if not self._measured:
            self._measure(ready.parcel.data)
        return ready.fetched, self._courier.receive(ready.parcel)

    def _measure(self, data: Any) -> None:
        """Set how far to read ahead by the size of the first batch."""
        workers = self._worker_count if self._workers is not None else 0
        free = memory.free_host_bytes() // max(self._sharers, 1)
        self._ahead = residency.ahead(workers, size_bytes(data), free)
        self._measured = True

    def _start(self, span: Span) -> "Future[_Ready]":
        indices = self._order.indices(span).tolist()
        remote = self._workers.submit(indices, span.start) if self._workers is not None else None
        return self._thread.submit(self._make, indices, remote)

    def _make(self, indices: list[int], remote: "Future[Fetched] | None") -> _Ready:
        try:
            fetched = self._fetch(indices) if remote is None else remote.result()
        except BrokenProcessPool as error:
            assert self._workers is not None
            raise self._workers.lost() from error
        return _Ready(fetched, self._courier.send(fetched.data))

    def _fetch(self, indices: list[int]) -> Fetched:
        if self._tensors is None:
            return self._fetcher(indices)
        return Fetched(Resident(self._tensors).gather(torch.tensor(indices, dtype=torch.int64)), indices)

    def _alone(self, span: Span) -> _Ready:
        """Read a batch with nothing beside it, after memory ran out while several were read ahead."""
        log.warning("rank %s: memory ran out while batches were read ahead: one is read at a time", self._fetcher.rank)
        self._ahead, self._measured = 0, True
        self._forget([])
        try:
            return self._make(self._order.indices(span).tolist(), None)
        except (RuntimeError, MemoryError) as error:
            if not memory.is_out_of_memory(error):
                raise
            raise DataError(
                f"Rank {self._fetcher.rank}: a batch of {span.size} samples does not fit into the memory of "
                f"{self._device} even before it is trained: lower batch_size of session.setup."
            ) from error

    def _forget(self, wanted: Sequence[Span]) -> None:
        """Drop what was read, or is to be, beyond what is wanted."""
        for span in [span for span in self._ready if span not in wanted]:
            self._ready.pop(span).cancel()

    def _note(self, fetched: Fetched) -> None:
        for index, reason in fetched.skipped:
            self.skipped += 1
            if self.skipped <= SKIPS_LOGGED:
                log.warning("rank %s: sample %d is left out: %s", self._fetcher.rank, index, reason)
            if self.skipped == SKIPS_LOGGED:
                log.warning("rank %s: further samples that are left out are only counted", self._fetcher.rank)

    def _check_dtypes(self, fetched: Fetched) -> None:
        """Torch stacks samples of unlike types in silence, and the model fails later, far from the cause."""
        if self._custom_collate or fetched.data is None:
            return
        found = dtypes(fetched.data)
        expected = self._dtypes = self._dtypes or found
        for path in [path for path in expected if path in found and found[path] != expected[path]][:1]:
            raise DataError(
                f"Rank {self._fetcher.rank}: {path} is {_name(found[path])} in the batch with samples "
                f"{fetched.indices[:8]} and {_name(expected[path])} in the first one: give all samples of the dataset "
                "of session.setup one type, or a collate function that does."
            )

    def _close_workers(self) -> None:
        if self._workers is not None:
            self._workers.close()
            self._workers = None


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
