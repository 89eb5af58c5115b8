"""What fdl takes as a dataset: anything map-style, or tensors of one length."""

from typing import Any

import torch
from torch.utils.data import TensorDataset


def tensors_of(dataset: Any) -> tuple[torch.Tensor, ...] | None:
    """The tensors that a dataset consists of, or None if it is of another kind.

    Raises:
        ValueError: if tensors of unequal length are given.
    """
    if isinstance(dataset, TensorDataset):
        return tuple(dataset.tensors)
    if isinstance(dataset, tuple | list) and dataset and all(isinstance(item, torch.Tensor) for item in dataset):
        lengths = [len(item) for item in dataset]
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
    if tensors is None and not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise TypeError(
            f"the dataset is a {type(dataset).__name__} without __len__ and __getitem__; give a map-style dataset"
        )
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
