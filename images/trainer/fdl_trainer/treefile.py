"""Nested Python data with tensors, as one safetensors image: no pickle, so reading runs no code.

Used for optimizer state, on disk and for the hand-over to a joiner. Tensors are entries of the image; everything
else is JSON in its metadata, with marks that keep tuples, and keys that are no strings, what they were.
"""

import json
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

STRUCTURE = "fdl.structure"
"""Key of the metadata that holds the structure."""


def pack(tree: Any) -> bytes:
    """The tree as bytes. Tensors are copied to the CPU.

    Args:
        tree: dicts (keys: strings or integers), lists, tuples, tensors, numbers, strings, booleans and None.

    Raises:
        TypeError: if the tree holds anything else; the message says where.
    """
    flattener = _Flattener()
    structure = flattener.flatten(tree, "state")
    return save_tensors(flattener.tensors, metadata={STRUCTURE: json.dumps(structure)})


def unpack(data: bytes) -> Any:
    """Inverse of :func:`pack`, bit for bit.

    Raises:
        ValueError: if the bytes are not such an image.
    """
    try:
        tensors = load_tensors(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
        return _rebuild(json.loads(header["__metadata__"][STRUCTURE]), tensors)
    except (SafetensorError, KeyError, IndexError, TypeError, UnicodeDecodeError) as error:
        raise ValueError(f"these {len(data)} bytes hold no packed state: {error}") from error


def copied(tree: Any) -> Any:
    """The tree with tensors that have memory of their own, on their devices, so that training may go on."""
    if isinstance(tree, torch.Tensor):
        return tree.detach().clone(memory_format=torch.contiguous_format) if tree.layout is torch.strided else tree
    if isinstance(tree, dict):
        return {key: copied(item) for key, item in tree.items()}
    if isinstance(tree, list | tuple):
        items = [copied(item) for item in tree]
        return tuple(items) if isinstance(tree, tuple) else items
    return tree


def is_sharded(tensor: torch.Tensor) -> bool:
    """Whether a tensor holds only this rank's part of one (DTensor: FSDP2, tensor parallelism).

    Told by its attributes: importing ``torch.distributed.tensor`` to ask for its class costs a second.
    """
    return hasattr(tensor, "device_mesh") and hasattr(tensor, "placements")


class _Flattener:
    """Takes the tensors out of a tree."""

    def __init__(self) -> None:
        self.tensors: dict[str, torch.Tensor] = {}
        self._storages: set[int] = set()

    def flatten(self, tree: Any, path: str) -> Any:
        """The JSON form of a tree; ``path`` names it in errors."""
        if isinstance(tree, torch.Tensor):
            name = f"{len(self.tensors)}:{path}"
            self.tensors[name] = self._own(tree, path)
            return {"tensor": name}
        if tree is None or isinstance(tree, bool | int | float | str):
            return {"value": tree}
        if isinstance(tree, dict):
            return {"dict": [[_key(key, path), self.flatten(item, f"{path}.{key}")] for key, item in tree.items()]}
        if isinstance(tree, list | tuple):
            kind = "tuple" if isinstance(tree, tuple) else "list"
            return {kind: [self.flatten(item, f"{path}.{i}") for i, item in enumerate(tree)]}
        raise TypeError(
            f"{path} is a {type(tree).__module__}.{type(tree).__qualname__}; a checkpoint holds tensors, numbers, "
            "strings, lists, tuples and dicts only, since anything else would have to be unpickled"
        )

    def _own(self, tensor: torch.Tensor, path: str) -> torch.Tensor:
        """The tensor on the CPU with memory that no other entry shares, which an image cannot express."""
        if is_sharded(tensor):
            raise TypeError(f"{path} is a part of a sharded tensor (DTensor); only whole tensors can be saved")
        if tensor.layout is not torch.strided:
            raise TypeError(f"{path} is a {tensor.layout} tensor; only dense tensors can be saved")
        tensor = tensor.detach().to("cpu").contiguous()
        storage = tensor.untyped_storage()
        if storage.data_ptr() in self._storages or storage.nbytes() != tensor.nbytes:
            return tensor.clone()
        self._storages.add(storage.data_ptr())
        return tensor


def _key(key: Any, path: str) -> str | int:
    if not isinstance(key, str | int):
        raise TypeError(f"{path} has a key of type {type(key).__name__}; keys must be strings or integers")
    return key


def _rebuild(node: Any, tensors: dict[str, torch.Tensor]) -> Any:
    ((kind, content),) = node.items()
    if kind == "tensor":
        return tensors[content]
    if kind == "value":
        return content
    if kind == "dict":
        return {key: _rebuild(item, tensors) for key, item in content}
    items = [_rebuild(item, tensors) for item in content]
    return tuple(items) if kind == "tuple" else items
