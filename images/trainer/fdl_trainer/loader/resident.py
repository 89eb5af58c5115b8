"""The whole dataset in tensors on the rank's device: a batch is one gather."""

from typing import Any

import torch

from fdl_trainer.loader.fetch import Fetcher
from fdl_trainer.loader.trees import leaves, map_tensors, size_bytes, tensors

CHUNK = 256
"""Samples that are read at a time while a dataset is loaded."""


class Resident:
    """A dataset held in tensors.

    Args:
        data: a nested batch of all samples; the first dimension of each tensor is the sample's index.
    """

    def __init__(self, data: Any) -> None:
        self.data = data

    def gather(self, rows: torch.Tensor) -> Any:
        """The batch of these samples (int64 indices on the CPU), on the device of the tensors.

        The host waits for nothing there, so that it can launch the next batch while the device has work left.
        """
        there: dict[torch.device, torch.Tensor] = {}

        def taken(tensor: torch.Tensor) -> torch.Tensor:
            if tensor.device not in there:
                there[tensor.device] = _sent(rows, tensor.device)
            return tensor.index_select(0, there[tensor.device])

        return map_tensors(taken, self.data)


def _sent(rows: torch.Tensor, device: torch.device) -> torch.Tensor:
    """From pageable memory a copy to a device waits until the device has come to it: for all work before."""
    return rows.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else rows


def obstacle(sample: Any) -> str:
    """Why a batch of one sample shows that a dataset cannot be held in tensors; empty if it can."""
    for path, item in leaves(sample):
        if not isinstance(item, torch.Tensor):
            return f"{path} is {type(item).__name__}, not a tensor"
        if item.is_sparse:
            return f"{path} is a sparse tensor"
    return "" if tensors(sample) else "its samples hold no tensor"


def estimate(fetcher: Fetcher, samples: int) -> tuple[int | None, str]:
    """Bytes of a dataset of equal samples by its first one, or None and why it cannot be held in tensors."""
    first = fetcher([0]).data
    reason = obstacle(first)
    return (None, reason) if reason else (size_bytes(first) * samples, "")


def load(fetcher: Fetcher, samples: int, device: torch.device) -> Resident:
    """Read all samples of a dataset to a device.

    Raises:
        ValueError: the samples are not all of one shape and type.
        DataError: a sample cannot be read.
        RuntimeError: the device ran out of memory (see :func:`fdl_trainer.loader.memory.is_out_of_memory`).
    """
    whole: Any = None
    targets: list[torch.Tensor] = []
    for start in range(0, samples, CHUNK):
        stop = min(start + CHUNK, samples)
        batch = fetcher(range(start, stop)).data
        if whole is None:
            whole = map_tensors(
                lambda part: torch.empty((samples, *part.shape[1:]), dtype=part.dtype, device=device), batch
            )
            targets = tensors(whole)
        parts = tensors(batch)
        if [(part.shape[1:], part.dtype) for part in parts] != [(into.shape[1:], into.dtype) for into in targets]:
            raise ValueError(f"samples {start}..{stop - 1} differ from the first ones in shape or type")
        for into, part in zip(targets, parts, strict=True):
            into[start:stop].copy_(part)
    return Resident(whole)
