"""Fingerprints of model and dataset, by which members prove before training that they have the same."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fdl_api.wire import ParameterSpec
from fdl_trainer import randomness
from fdl_trainer.datasets import AbsentSampleError, length_of, probes_of, sample_of
from fdl_trainer.loader.memory import is_out_of_memory
from fdl_trainer.treefile import is_sharded

PROBES = 8
"""Samples of the dataset that the signature looks at."""
MEAN_DIGITS = 3
"""Digits of a floating sample's mean that count: arithmetic on unlike processors may differ in the last bits."""


def model_signature(model: torch.nn.Module) -> tuple[str, list[ParameterSpec]]:
    """SHA-256 (hex) over the ordered (name, dtype, shape) of parameters, then buffers, and that list itself.

    Values do not count: members may start from different random weights, since one of them gives its own to all.

    Raises:
        ValueError: if a lazy module has not been given its shapes yet, or a tensor is sharded.
    """
    specs: list[ParameterSpec] = []
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        if torch.nn.parameter.is_lazy(tensor):
            raise ValueError(
                f"the model's {name} has no shape yet: run one batch through a lazy module before giving it to fdl"
            )
        if is_sharded(tensor):
            raise ValueError(
                f"the model's {name} is a part of a sharded tensor (DTensor, e.g. by FSDP2's fully_shard): each rank "
                "of fdl is given the whole model; leave it whole, or shard it by the argument shard of session.setup, "
                "where spec.cohorts[].rankSpans is member (docs/tasks/shard.md)"
            )
        specs.append(ParameterSpec(name=name, dtype=str(tensor.dtype).removeprefix("torch."), shape=list(tensor.shape)))
    return digest(specs), specs


def digest(specs: Sequence[ParameterSpec]) -> str:
    """SHA-256 (hex) of a model's ordered entries."""
    hasher = hashlib.sha256(b"fdl-model-1")
    for spec in specs:
        hasher.update(f"\n{spec.name}\t{spec.dtype}\t{','.join(map(str, spec.shape))}".encode())
    return hasher.hexdigest()


def first_difference(
    ours: Sequence[ParameterSpec], theirs: Sequence[ParameterSpec], our_name: str = "here", their_name: str = "there"
) -> str:
    """A sentence that names the first entry in which two models differ; empty if they do not."""
    for i, (our, their) in enumerate(zip(ours, theirs, strict=False)):
        if our != their:
            return f"Entry {i} is {_describe(our)} {our_name} and {_describe(their)} {their_name}."
    if len(ours) > len(theirs):
        return f"Entry {len(theirs)}, {_describe(ours[len(theirs)])}, exists only {our_name}."
    if len(theirs) > len(ours):
        return f"Entry {len(ours)}, {_describe(theirs[len(ours)])}, exists only {their_name}."
    return ""


def dataset_signature(dataset: Any, batch_size: int, data_epochs: int, seed: int, *, skips: bool = False) -> str:
    """SHA-256 (hex) over length, batch size, passes, seed and a few samples.

    Whole numbers, text and bytes count exactly, floating values by shape, type and rounded mean. Random augmentation
    is held still by a fixed seed; the random state of the process is as before afterwards.

    Args:
        dataset: the dataset.
        batch_size: of the run.
        data_epochs: passes.
        seed: of the run.
        skips: samples that cannot be read are left out in training, and so they are here, unless none can be read.

    Raises:
        TypeError: if it is not map-style.
        ValueError: if the dataset is empty, or its tensors are of unequal length.
    """
    length = length_of(dataset)
    hasher = hashlib.sha256(f"fdl-data-1\n{length}\n{batch_size}\n{data_epochs}\n{seed}".encode())
    read = 0
    failure: Exception | None = None
    with randomness.held(seed=0):
        for index in probes_of(dataset, length, PROBES):
            try:
                sample = sample_of(dataset, index)
            except AbsentSampleError:
                hasher.update(b"\nabsent")
                continue
            except Exception as error:
                if not skips or is_out_of_memory(error):
                    raise
                failure = error
                hasher.update(b"\nunreadable")
                continue
            read += 1
            for part in _describe_sample(sample):
                hasher.update(b"\n" + part)
    if failure is not None and not read:
        raise failure
    return hasher.hexdigest()


def _describe(spec: ParameterSpec) -> str:
    return f"{spec.name} ({spec.dtype}, {'x'.join(map(str, spec.shape)) or 'scalar'})"


def _describe_sample(sample: Any) -> Iterator[bytes]:
    if isinstance(sample, torch.Tensor):
        yield from _describe_array(sample.detach().cpu().to_dense())
    elif isinstance(sample, np.ndarray | np.generic):
        yield from _describe_numpy(np.asarray(sample))
    elif isinstance(sample, bool | int | str | bytes):
        yield repr(sample).encode()
    elif isinstance(sample, float):
        yield _mean(sample)
    elif isinstance(sample, Mapping):
        for key in sample:
            yield repr(key).encode()
            yield from _describe_sample(sample[key])
    elif isinstance(sample, list | tuple):
        yield f"{len(sample)} items".encode()
        for item in sample:
            yield from _describe_sample(item)
    else:
        yield f"{type(sample).__module__}.{type(sample).__qualname__}".encode()


def _describe_array(tensor: torch.Tensor) -> Iterator[bytes]:
    if tensor.is_floating_point():
        yield f"{tensor.dtype} {tuple(tensor.shape)}".encode()
        yield _mean(float(tensor.double().mean()) if tensor.numel() else 0.0)
    elif tensor.is_complex():
        yield f"{tensor.dtype} {tuple(tensor.shape)}".encode()
    else:
        yield from _describe_numpy(tensor.contiguous().numpy())


def _describe_numpy(array: "np.ndarray[Any, Any]") -> Iterator[bytes]:
    yield f"{array.dtype} {array.shape}".encode()
    if array.dtype.kind == "f":
        yield _mean(float(array.mean(dtype=np.float64)) if array.size else 0.0)
    elif array.dtype.kind in "biuSU":
        yield np.ascontiguousarray(array).tobytes()


def _mean(value: float) -> bytes:
    return f"{value:.{MEAN_DIGITS - 1}e}".encode()
