"""A batch that does not fit a device is trained in micro-batches that do; the step stays that of the whole batch.

The gradient of a mean over the batch is the mean of the micro-batches' gradients, weighted by their samples, so that
the optimizer sees the same step on a small device as on a large one. Which size fits is found by trying, on the device
itself, with the script's own forward and backward pass.
"""

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from fdl_api.reasons import Ended
from fdl_trainer.ending import user_code
from fdl_trainer.loader.memory import is_out_of_memory

log = logging.getLogger(__name__)

Loss = Callable[[Any], torch.Tensor]
"""Mean loss over the samples of a batch, or of any part of one."""
Scale = Callable[[torch.Tensor], torch.Tensor]
"""Makes a loss larger before its gradients are computed, so that they do not vanish in fp16."""


def require_function(loss: object) -> None:
    """Tell who gives a loss that is computed already what a step needs: it may compute that of parts of the batch.

    Raises:
        RunEndedError: it is no function.
    """
    if not callable(loss):
        raise user_code(
            Ended.SCRIPT_RAISED,
            f"session.step was given a {type(loss).__name__} as its loss; give it the function that computes the loss "
            "of a batch: session.step(lambda batch: ...), or go without it: backward, optimizer.step and "
            "session.report(loss).",
        )


def largest_fitting(fits: Callable[[int], bool], failed: int) -> int:
    """Largest size below ``failed`` that fits, 0 if none does; halves first, so that few tries are near the limit."""
    too_large, size = failed, failed // 2
    while size and not fits(size):
        too_large, size = size, size // 2
    while size and too_large - size > 1:
        middle = (size + too_large) // 2
        if fits(middle):
            size = middle
        else:
            too_large = middle
    return size


def micro_batches(samples: int, limit: int) -> list[int]:
    """Sizes of the fewest parts of at most ``limit`` samples, as equal as can be."""
    parts = math.ceil(samples / limit)
    return [samples // parts + (i < samples % parts) for i in range(parts)]


def part(data: Any, start: int, stop: int, samples: int, path: str = "batch") -> Any:
    """Samples ``start .. stop-1`` of a nested batch.

    Tensors are cut along their first dimension, and lists with one item a sample likewise.

    Raises:
        ValueError: if a tensor's first dimension is not the samples.
    """
    if isinstance(data, torch.Tensor):
        if data.dim() and data.shape[0] != samples:
            raise ValueError(
                f"{path} has the shape {tuple(data.shape)}, whose first dimension is not the {samples} samples"
            )
        return data[start:stop] if data.dim() else data
    if isinstance(data, dict):
        return {key: part(item, start, stop, samples, f"{path}[{key!r}]") for key, item in data.items()}
    if isinstance(data, list | tuple):
        if len(data) == samples and not all(_is_batched(item, samples) for item in data):
            return data[start:stop]
        items = [part(item, start, stop, samples, f"{path}[{i}]") for i, item in enumerate(data)]
        if hasattr(data, "_fields"):
            return type(data)(*items)
        return tuple(items) if isinstance(data, tuple) else items
    return data


def _is_batched(item: Any, samples: int) -> bool:
    if isinstance(item, torch.Tensor):
        return item.dim() > 0 and item.shape[0] == samples
    return isinstance(item, dict | list | tuple)


@dataclass(frozen=True)
class _Task:
    """One batch to be trained."""

    loss: Loss
    data: Any
    samples: int
    scale: Scale | None

    def backward(self, value: torch.Tensor) -> None:
        """Add the gradients of a loss to those that are there."""
        (value if self.scale is None else self.scale(value)).backward()  # type: ignore[no-untyped-call]


class Accumulator:
    """Computes the gradients of a batch in as many parts as the device needs.

    Args:
        model: whose gradients are computed.
        device: of the model, for sentences.
        rank: name of this rank, for sentences.

    Attributes:
        limit: largest micro-batch that is tried; None before a batch was too large.
    """

    def __init__(self, model: nn.Module, device: torch.device, rank: str) -> None:
        self.limit: int | None = None
        self._model = model
        self._device = device
        self._rank = rank
        self._proven = 0

    def gradients(self, loss: Loss, data: Any, samples: int, scale: Scale | None = None) -> torch.Tensor:
        """Put the gradients of a batch's mean loss into the parameters, which must have none.

        Args:
            loss: of the batch or a part of it.
            data: the batch.
            samples: samples in it.
            scale: applied to the loss of each part before its gradients are computed; they stay scaled.

        Returns:
            The mean loss, not scaled, detached, on its device.

        Raises:
            RunEndedError: not even one sample fits, or the batch cannot be cut.
        """
        task = _Task(loss, data, samples, scale)
        while True:
            limit = min(samples, self.limit or samples)
            before = self._buffers() if limit > self._proven else None
            value = self._attempt(task, limit)
            if value is not None:
                self._proven = max(self._proven, limit)
                return value
            if before is None:
                log.warning(
                    "rank %s: memory ran out in a batch, though one of its size fitted before: running statistics saw "
                    "a part of it twice",
                    self._rank,
                )
                before = self._buffers()
            self._clear(before)
            self.limit = self._search(task, limit, before)

    def _attempt(self, task: _Task, limit: int) -> torch.Tensor | None:
        """The mean loss, or None when memory ran out; what the failed attempt held is free by then."""
        try:
            total: torch.Tensor | None = None
            for share, data_part in self._parts(task.data, task.samples, limit):
                value = task.loss(data_part)
                task.backward(value if share == 1.0 else value * share)
                value = value.detach() * share
                total = value if total is None else total + value
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            return None
        return total

    def _parts(self, data: Any, samples: int, limit: int) -> Iterator[tuple[float, Any]]:
        if limit >= samples:
            yield 1.0, data
            return
        start = 0
        for size in micro_batches(samples, limit):
            yield size / samples, self._cut(data, start, start + size, samples)
            start += size

    def _cut(self, data: Any, start: int, stop: int, samples: int) -> Any:
        try:
            return part(data, start, stop, samples)
        except ValueError as error:
            raise user_code(
                Ended.OUT_OF_MEMORY,
                f"Rank {self._rank}: a batch of {samples} samples does not fit into the memory of {self._device} and "
                f"cannot be trained in parts: {error}. Lower batch_size of session.setup, or have collate put the "
                "samples first.",
            ) from error

    def _search(self, task: _Task, failed: int, before: list[torch.Tensor]) -> int:
        """Find the largest size that fits and say so."""
        samples = task.samples

        def fits(size: int) -> bool:
            part_of = replace(task, data=self._cut(task.data, 0, size, samples), samples=size)
            done = self._attempt(part_of, size) is not None
            self._clear(before)
            return done

        size = largest_fitting(fits, failed)
        if size == 0:
            raise user_code(
                Ended.OUT_OF_MEMORY,
                f"Rank {self._rank}: not even one sample of the dataset of session.setup can be trained in the "
                f"memory of {self._device}: use a smaller model or sample, or a larger device.",
            )
        parts = len(micro_batches(samples, size))
        norm = any(isinstance(module, _BatchNorm) for module in self._model.modules())
        log.warning(
            "rank %s: %d samples at a time do not fit into the memory of %s; the largest number that does is %d. Its "
            "batches of %d samples are trained in %d parts whose gradients are added up: each step stays the same%s",
            self._rank,
            failed,
            self._device,
            size,
            samples,
            parts,
            ", but BatchNorm sees the parts" if norm else "",
        )
        return size

    def _buffers(self) -> list[torch.Tensor]:
        return [buffer.detach().clone() for buffer in self._model.buffers()]

    @torch.no_grad()
    def _clear(self, buffers: list[torch.Tensor]) -> None:
        """Undo what an attempt has left in the model."""
        for parameter in self._model.parameters():
            parameter.grad = None
        for buffer, value in zip(self._model.buffers(), buffers, strict=True):
            buffer.copy_(value)
