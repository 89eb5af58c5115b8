"""The tensors of a rank's micro-batches, fetched by index and prefetched in a thread.

A dataset held in tensors (``TensorDataset``, or a tuple or list of tensors of one length) is read by one gather a
batch, without a thread. Any other map-style dataset is read sample by sample in a thread, a few batches ahead.
"""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import default_collate

from fdl_trainer.audit import AuditLog
from fdl_trainer.datasets import sample_of, tensors_of
from fdl_trainer.ledger import Span
from fdl_trainer.permutation import Permutation

PREFETCH = 2
"""Batches that the thread reads ahead."""
_POLL_SECONDS = 0.1


class DataError(Exception):
    """The dataset, or the collate function, could not deliver a batch; the message names the samples."""


@dataclass(frozen=True)
class Batch:
    """One micro-batch on the rank's device.

    Args:
        data: what the collate function made of the samples.
        samples: number of samples in it.
        data_epoch: pass over the data, from 0.
        span: its positions in the run's stream.
        ordinal: its number in the rank's window, from 0.
    """

    data: Any
    samples: int
    data_epoch: int
    span: Span
    ordinal: int


class Loader:
    """Delivers micro-batches.

    Args:
        dataset: has ``__len__`` and ``__getitem__`` (``__getitems__`` is used if it is there), or is tensors.
        samples: samples in the dataset.
        seed: seed of the order.
        device: where batches go.
        collate: makes a batch of a list of samples; torch's default when None. Not used for tensors.
        audit: logs the indices handed out; None: no log.
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
    ) -> None:
        self._dataset = dataset
        self._samples = samples
        self._seed = seed
        self._device = device
        self._collate = collate or default_collate
        self._audit = audit
        self._tensors = None if collate else tensors_of(dataset)

    def window(self, window: int, spans: Sequence[Span], first: int = 0) -> Iterator[Batch]:
        """The micro-batches of a window in order; a batch is logged when it is handed out.

        Close the iterator (or exhaust it) to stop reading ahead.

        Args:
            window: number of the window in work.
            spans: its micro-batches, none of which spans two data epochs.
            first: number of the first one that is still to be done.

        Raises:
            DataError: if the dataset or the collate function raises; the cause is chained.
        """
        todo = list(enumerate(spans))[first:]
        source = self._direct(todo) if self._tensors is not None else self._prefetched(todo)
        for batch, indices in source:
            if self._audit is not None:
                self._audit.batch(window, batch.ordinal, batch.data_epoch, indices)
            yield batch

    def _direct(self, todo: Sequence[tuple[int, Span]]) -> Iterator[tuple[Batch, list[int]]]:
        for ordinal, span in todo:
            yield self._fetch(ordinal, span)

    def _prefetched(self, todo: Sequence[tuple[int, Span]]) -> Iterator[tuple[Batch, list[int]]]:
        ready: queue.Queue[tuple[Batch, list[int]] | BaseException] = queue.Queue(PREFETCH)
        stop = threading.Event()
        thread = threading.Thread(target=self._read_ahead, args=(todo, ready, stop), name="fdl-loader", daemon=True)
        thread.start()
        try:
            for _ in todo:
                item = ready.get()
                if isinstance(item, BaseException):
                    raise item
                yield item
        finally:
            stop.set()
            thread.join()

    def _read_ahead(
        self,
        todo: Sequence[tuple[int, Span]],
        ready: "queue.Queue[tuple[Batch, list[int]] | BaseException]",
        stop: threading.Event,
    ) -> None:
        for ordinal, span in todo:
            item: tuple[Batch, list[int]] | BaseException
            try:
                item = self._fetch(ordinal, span)
            except BaseException as error:
                item = error
            while not stop.is_set():
                try:
                    ready.put(item, timeout=_POLL_SECONDS)
                    break
                except queue.Full:
                    continue
            if stop.is_set() or isinstance(item, BaseException):
                return

    def _fetch(self, ordinal: int, span: Span) -> tuple[Batch, list[int]]:
        data_epoch, start = divmod(span.start, self._samples)
        order = Permutation(self._samples, self._seed, data_epoch)
        array = order.indices(start, start + span.size)
        indices = [int(index) for index in array]
        if self._tensors is not None:
            rows = torch.from_numpy(array)
            data: Any = tuple(tensor.index_select(0, rows.to(tensor.device)) for tensor in self._tensors)
        else:
            data = self._collated(indices)
        return Batch(to_device(data, self._device), span.size, data_epoch, span, ordinal), indices

    def _collated(self, indices: list[int]) -> Any:
        index: int | None = None
        try:
            if hasattr(self._dataset, "__getitems__"):
                samples = list(self._dataset.__getitems__(indices))
            else:
                samples = []
                for index in indices:
                    samples.append(sample_of(self._dataset, index))
                index = None
            return self._collate(samples)
        except Exception as error:
            where = f"Sample {index}" if index is not None else f"A batch of samples {indices}"
            raise DataError(
                f"{where} of the dataset could not be read: {type(error).__name__}: {error}. Mend the sample, the "
                "dataset or the collate function."
            ) from error


def to_device(data: Any, device: torch.device) -> Any:
    """The batch with all its tensors on a device."""
    if isinstance(data, torch.Tensor):
        return data.to(device, non_blocking=True)
    if isinstance(data, dict):
        return {key: to_device(item, device) for key, item in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(to_device(item, device) for item in data))
    if isinstance(data, list | tuple):
        items = [to_device(item, device) for item in data]
        return tuple(items) if isinstance(data, tuple) else items
    return data
