"""Integer and bool buffers: by rule, and exact on a floating wire.

Counters (``num_batches_tracked`` and the like) become the largest of all ranks'; anything else is taken from the
epoch's lowest rank, since a mean of indices or masks is none. A value travels as four lanes of 16 bits, which fp32
holds exactly; a counter as its growth since the last commit, in a slot of its rank's.
"""

import re
from functools import cache

import torch
from torch import Tensor

LANES = 4
"""Floats that one integer takes in a buffer."""
MAX_GROWTH = (1 << 24) - 1
"""Growth of a counter in one window that fp32 carries exactly; more is cut off."""
_LANE_BITS = 16
_LANE_MASK = (1 << _LANE_BITS) - 1
_COUNTER = re.compile(r"(^|_)(num_batches_tracked|n_averaged|num_updates|steps?|count(er)?|iterations?)$")


def is_counter(name: str, dtype: torch.dtype) -> bool:
    """Whether a buffer counts something that only grows, judged by its name.

    Counters are called ``num_batches_tracked``, ``n_averaged``, ``num_updates``, ``step(s)``, ``count(er)`` or
    ``iteration(s)``, or end so after an underscore.
    """
    return dtype is not torch.bool and _COUNTER.search(name.rpartition(".")[2]) is not None


def gather(tensors: list[Tensor], device: torch.device) -> Tensor:
    """All elements of integer tensors in order, int64, shape ``[elements]``."""
    if not tensors:
        return torch.zeros(0, dtype=torch.int64, device=device)
    return torch.cat([tensor.reshape(-1).to(torch.int64) for tensor in tensors]).to(device)


def scatter(values: Tensor, tensors: list[Tensor]) -> None:
    """Inverse of :func:`gather`, into the tensors."""
    if not tensors:
        return
    parts = torch.split(values.to(tensors[0].device), [tensor.numel() for tensor in tensors])
    torch._foreach_copy_(tensors, [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)])


def encode(values: Tensor, lanes: Tensor) -> None:
    """Write integers as lanes.

    Args:
        values: int64, shape ``[n]``.
        lanes: floating, shape ``[LANES * n]``; overwritten.
    """
    lanes.view(LANES, values.numel()).copy_((values >> _shifts(values.device)) & _LANE_MASK)


def decode(lanes: Tensor) -> Tensor:
    """Inverse of :func:`encode`."""
    rows = lanes.view(LANES, lanes.numel() // LANES).to(torch.int64)
    return (rows << _shifts(lanes.device)).sum(0)  # no two lanes share a bit, so that a sum joins them


@cache
def _shifts(device: torch.device) -> Tensor:
    """By how many bits each lane is moved, int64, shape ``[LANES, 1]``."""
    return torch.arange(0, LANES * _LANE_BITS, _LANE_BITS, device=device).unsqueeze(1)


def growth(values: Tensor, base: Tensor) -> Tensor:
    """By how much counters grew since the last commit, 0 for one that fell."""
    return (values - base).clamp_(0, MAX_GROWTH)
