"""The flat buffers of an average: what goes on the wire, and what is committed.

The wire buffer is fp32 and has three parts, reduced by one SUM:

* ``scaled``: parameters and floating buffers, each multiplied by the samples that the rank trained in the window;
* ``lanes``: integer and bool buffers of the epoch's lowest rank, 16 bits a lane so that fp32 holds them exactly
  (zeros from all others);
* ``tail``: the numbers of :mod:`fdl_trainer.plan`, never multiplied.

The live model is not touched before the whole reduce has succeeded: a failed one leaves nothing to undo. The result is
divided into a second committed buffer, and only then do the two change places.

BatchNorm's statistics are pooled exactly: a rank sends its mean relative to the last committed one, and the variance
plus that shifted mean squared. Without the shift, ``E[v + m^2] - m^2`` cancels in fp32.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

LANES = 4
_LANE_BITS = 16
_LANE_MASK = (1 << _LANE_BITS) - 1


@dataclass(frozen=True)
class _Moments:
    """Indices, in the list of floating tensors, of one normalisation layer's statistics."""

    mean: int
    var: int


class ModelState:
    """A model's averaged tensors, their places in a flat buffer, and the committed buffers.

    Args:
        model: its parameters and buffers are written to on :meth:`apply`, in place and never rebound, so that
            optimizers, compiled graphs and hooks keep their references.

    Attributes:
        scaled_numel: elements of the weighted part.
        lane_numel: elements of the integer part.
    """

    def __init__(self, model: nn.Module) -> None:
        sources: list[tuple[str, Tensor]] = [*model.named_parameters(), *model.named_buffers()]
        named = [(name, tensor.detach()) for name, tensor in sources]
        unsupported = [name for name, tensor in named if tensor.is_complex() or tensor.is_sparse]
        if unsupported:
            raise ValueError(
                f"The model's tensor {unsupported[0]} is complex or sparse: fdl averages real dense ones. Keep it as "
                "two real tensors."
            )
        floating = [(name, tensor) for name, tensor in named if tensor.is_floating_point()]
        self._names = [name for name, _ in floating]
        self._live = [tensor for _, tensor in floating]
        self._integer = [(name, tensor) for name, tensor in named if not tensor.is_floating_point()]
        self._moments = _find_moments(self._names)
        by_identity = {id(tensor): name for name, tensor in sources}
        self._saved_as = {
            key: by_identity[id(tensor)]
            for key, tensor in model.state_dict(keep_vars=True).items()
            if id(tensor) in by_identity
        }
        self.scaled_numel = sum(tensor.numel() for tensor in self._live)
        self.lane_numel = LANES * sum(tensor.numel() for _, tensor in self._integer)
        self._committed = torch.zeros(self.numel)
        self._next = torch.zeros(self.numel)

    @property
    def numel(self) -> int:
        """Elements of a committed buffer (the wire buffer has the tail on top)."""
        return self.scaled_numel + self.lane_numel

    @property
    def committed(self) -> Tensor:
        """The committed buffer, fp32, shape ``[numel]``. Immutable until the commit after the next."""
        return self._committed

    def new_wire(self, tail_numel: int) -> Tensor:
        """A fresh wire buffer for groups whose tail has ``tail_numel`` elements."""
        return torch.zeros(self.numel + tail_numel)

    def tail(self, wire: Tensor) -> Tensor:
        """The tail's view of a wire buffer."""
        return wire[self.numel :]

    @torch.no_grad()
    def capture(self) -> None:
        """Take the live model as the committed state (at the start and after a checkpoint was loaded)."""
        torch._foreach_copy_(self._views(self._next), self._live)
        self._encode_integers(self._next)
        self._swap()

    @torch.no_grad()
    def pack(self, wire: Tensor, samples: int, *, lowest: bool) -> bool:
        """Write this rank's contribution into the wire buffer; the tail is left alone.

        Args:
            wire: from :meth:`new_wire`.
            samples: weight. With zero the contribution is zeros (not a product: ``0 x NaN`` is NaN).
            lowest: whether this is the lowest rank of the epoch, which gives the integer buffers.

        Returns:
            False when the live model is not finite: the contribution is zeros then and must count no batch.
        """
        scaled = wire[: self.scaled_numel]
        finite = True
        if samples > 0:
            views = self._views(wire)
            torch._foreach_copy_(views, self._live)
            self._shift_moments(views)
            scaled.mul_(float(samples))
            finite = bool(torch.isfinite(scaled.sum()))
        if samples == 0 or not finite:
            scaled.zero_()
        if lowest:
            self._encode_integers(wire)
        else:
            wire[self.scaled_numel : self.numel].zero_()
        return finite

    @torch.no_grad()
    def commit(self, wire: Tensor, total_samples: int) -> float:
        """Make the reduced wire buffer the committed state and copy it into the live model.

        The division is by a tensor: by a Python number it differs between device kinds.

        Returns:
            How far the live model was from the average, relative to the average's norm.
        """
        total = torch.tensor(float(total_samples))
        torch.div(wire[: self.scaled_numel], total, out=self._next[: self.scaled_numel])
        self._next[self.scaled_numel :].copy_(wire[self.scaled_numel : self.numel])
        self._unshift_moments()
        self._swap()
        distance = self._distance()
        self.apply()
        return distance

    @torch.no_grad()
    def adopt(self, flat: Tensor) -> None:
        """Take another rank's committed buffer, shape ``[numel]``, and copy it into the live model."""
        self._next.copy_(flat)
        self._swap()
        self.apply()

    @torch.no_grad()
    def apply(self) -> None:
        """Copy the committed state into the live model."""
        torch._foreach_copy_(self._live, self._views(self._committed))
        self._decode_integers(self._committed)

    @torch.no_grad()
    def tensors(self) -> dict[str, Tensor]:
        """A copy of the committed state by the keys of the model's state dict, in the model's dtypes, on the CPU."""
        views = dict(zip(self._names, self._views(self._committed), strict=True))
        dtypes = {name: live.dtype for name, live in zip(self._names, self._live, strict=True)}
        for (name, live), value in zip(self._integer, self._integers(self._committed), strict=True):
            views[name], dtypes[name] = value.reshape(live.shape), live.dtype
        return {key: views[name].to(dtypes[name], copy=True) for key, name in self._saved_as.items()}

    def _distance(self) -> float:
        apart = norm = 0.0
        for live, view in zip(self._live, self._views(self._committed), strict=True):
            apart += float((live.to("cpu", torch.float32) - view).norm()) ** 2
            norm += float(view.norm()) ** 2
        return math.sqrt(apart / norm) if norm > 0.0 and math.isfinite(apart) else 0.0

    def _swap(self) -> None:
        self._committed, self._next = self._next, self._committed

    def _views(self, flat: Tensor) -> list[Tensor]:
        return _split(flat[: self.scaled_numel], self._live)

    def _shift_moments(self, views: list[Tensor]) -> None:
        shift = self._views(self._committed)
        for pair in self._moments:
            mean, var = views[pair.mean], views[pair.var]
            mean.sub_(shift[pair.mean])
            var.add_(mean * mean)

    def _unshift_moments(self) -> None:
        shift, views = self._views(self._committed), self._views(self._next)
        for pair in self._moments:
            mean, var = views[pair.mean], views[pair.var]
            var.sub_(mean * mean).clamp_(min=0.0)
            mean.add_(shift[pair.mean])

    def _encode_integers(self, flat: Tensor) -> None:
        offset = self.scaled_numel
        for _, tensor in self._integer:
            value = tensor.reshape(-1).to("cpu", torch.int64)
            for lane in range(LANES):
                part = (value >> (_LANE_BITS * lane)) & _LANE_MASK
                flat[offset : offset + value.numel()].copy_(part)
                offset += value.numel()

    def _decode_integers(self, flat: Tensor) -> None:
        for (_, tensor), value in zip(self._integer, self._integers(flat), strict=True):
            tensor.copy_(value.reshape(tensor.shape).to(tensor.dtype))

    def _integers(self, flat: Tensor) -> Iterable[Tensor]:
        offset = self.scaled_numel
        for _, tensor in self._integer:
            count = tensor.numel()
            value = torch.zeros(count, dtype=torch.int64)
            for lane in range(LANES):
                part = flat[offset : offset + count].to(torch.int64)
                value |= part << (_LANE_BITS * lane)
                offset += count
            yield value


def _split(flat: Tensor, like: list[Tensor]) -> list[Tensor]:
    views, offset = [], 0
    for tensor in like:
        views.append(flat[offset : offset + tensor.numel()].view(tensor.shape))
        offset += tensor.numel()
    return views


def _find_moments(names: list[str]) -> list[_Moments]:
    index = {name: place for place, name in enumerate(names)}
    pairs = []
    for name, place in index.items():
        prefix, _, last = name.rpartition("running_mean")
        if name.endswith("running_mean") and not last and f"{prefix}running_var" in index:
            pairs.append(_Moments(place, index[f"{prefix}running_var"]))
    return pairs
