"""Nested batches: tensors in dictionaries, lists, tuples and named tuples."""

from collections.abc import Callable, Iterator
from typing import Any

import torch


def map_tensors(function: Callable[[torch.Tensor], Any], data: Any) -> Any:
    """The same structure with each tensor replaced by ``function(tensor)``; anything else stays as it is."""
    if isinstance(data, torch.Tensor):
        return function(data)
    if isinstance(data, dict):
        return {key: map_tensors(function, item) for key, item in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(map_tensors(function, item) for item in data))
    if isinstance(data, list | tuple):
        items = [map_tensors(function, item) for item in data]
        return tuple(items) if isinstance(data, tuple) else items
    return data


def leaves(data: Any, path: str = "batch") -> Iterator[tuple[str, Any]]:
    """Everything in a nested batch that is not a container, with the expression that leads to it (``batch[0]``)."""
    if isinstance(data, dict):
        for key, item in data.items():
            yield from leaves(item, f"{path}[{key!r}]")
    elif isinstance(data, list | tuple):
        for i, item in enumerate(data):
            yield from leaves(item, f"{path}[{i}]")
    else:
        yield path, data


def tensors(data: Any) -> list[torch.Tensor]:
    """The tensors of a nested batch, in order."""
    return [item for _, item in leaves(data) if isinstance(item, torch.Tensor)]


def size_bytes(data: Any) -> int:
    """Bytes of the tensors of a nested batch."""
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors(data))


def to_device(data: Any, device: torch.device) -> Any:
    """The batch with all its tensors on a device; from pinned memory without waiting for the copy."""
    return map_tensors(lambda tensor: tensor.to(device, non_blocking=True), data)


def dtypes(data: Any) -> dict[str, torch.dtype]:
    """Type of each tensor of a nested batch, by the expression that leads to it."""
    return {path: item.dtype for path, item in leaves(data) if isinstance(item, torch.Tensor)}
