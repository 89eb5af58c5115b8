"""What fdl takes as a dataset: anything map-style, tensors of one length, or shards that are iterated."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import IterableDataset, TensorDataset


class AbsentSampleError(IndexError):
    """A sample that the dataset itself knows not to be there; it is left out and counted, whatever the script asked."""


def tensors_of(dataset: Any) -> tuple[torch.Tensor, ...] | None:
    """The tensors that a dataset consists of, or None if it is of another kind.

    Raises:
        ValueError: if tensors of unequal length are given.
    """
    if isinstance(dataset, TensorDataset):
        return tuple(dataset.tensors)
    if isinstance(dataset, tuple | list) and dataset and all(isinstance(item, torch.Tensor) for item in dataset):
        lengths = [len(item) if item.dim() else 0 for item in dataset]
        if len(set(lengths)) > 1:
            raise ValueError(f"the dataset's tensors have {lengths} samples; they must have the same number")
        return tuple(dataset)
    return None


def length_of(dataset: Any) -> int:
    """Samples in a dataset.

    Raises:
        TypeError: if it is not map-style.
        ValueError: if it is empty, or tensors of unequal length are given.
    """
    tensors = tensors_of(dataset)
    map_style = hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")
    if tensors is None and (not map_style or isinstance(dataset, IterableDataset)):
        raise TypeError(
            f"the dataset is a {type(dataset).__name__}, which can only be iterated: samples could not be counted, nor "
            "taken up after a failure; give one with __len__ and __getitem__, or fdl_trainer.ShardedIterable with a "
            "function that opens a shard at a record"
        )
    if tensors is not None and any(tensor.dim() == 0 for tensor in tensors):
        raise ValueError("the dataset has a tensor without dimensions; the first dimension must be the samples")
    length = len(tensors[0]) if tensors is not None else len(dataset)
    if length < 1:
        raise ValueError("the dataset is empty; check the data directory and the script's dataset")
    return length


def sample_of(dataset: Any, index: int) -> Any:
    """One sample, as the script's dataset gives it."""
    tensors = tensors_of(dataset)
    return dataset[index] if tensors is None else tuple(tensor[index] for tensor in tensors)


def block_of(dataset: Any) -> int:
    """Samples that must stay together in the order: a shard's records (:mod:`fdl_trainer.sharded`), else 1."""
    return int(getattr(dataset, "records_per_shard", 1))


def probes_of(dataset: Any, length: int, count: int) -> Sequence[int]:
    """A few indices by which two copies of a dataset are compared."""
    if hasattr(dataset, "records_per_shard"):
        chosen: Sequence[int] = dataset.probes(count)
        return chosen
    return sorted({i * (length - 1) // max(count - 1, 1) for i in range(count)})
