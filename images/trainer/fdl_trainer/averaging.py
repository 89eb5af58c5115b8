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
from collections.abc import Iterable, Sequence
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


@dataclass(frozen=True)
class Share:
    """What a rank did in a window, as all ranks read it in the tail: its weight follows from it.

    Args:
        batches: micro-batches.
        samples: samples in them.
    """

    batches: int
    samples: int


class Wire:
    """One epoch's wire buffer: a rank's contribution before the reduce, the sum of all after it.

    Args:
        buffer: what the group reduces, in one operation.
        rank: this rank's place in the epoch.
        ranks: ranks of the epoch.
        tail_numel: floats of the tail, all ranks' together.

    Attributes:
        finite: whether the packed model was finite, bool, shape ``[]``, on the buffer's device.
    """

    def __init__(self, buffer: Tensor, rank: int, ranks: int, tail_numel: int) -> None:
        self.buffer = buffer
        self.rank = rank
        self.ranks = ranks
        self.tail_numel = tail_numel
        self.finite = torch.ones((), dtype=torch.bool, device=buffer.device)

    def write_tail(self, finite: Sequence[float], otherwise: Sequence[float]) -> None:
        """Write the tail, after :meth:`ModelState.pack`: one of two, since the host may not know yet which is true.

        Args:
            finite: the tail if the packed model was finite.
            otherwise: the tail if it was not.
        """
        tails = torch.tensor([list(finite), list(otherwise)]).to(self.buffer.device, non_blocking=True)
        self._tail().copy_(torch.where(self.finite, tails[0], tails[1]))

    def read_tail(self) -> list[float]:
        """The tail; waits for the device."""
        return [float(value) for value in self._tail().tolist()]

    def _tail(self) -> Tensor:
        return self.buffer[self.buffer.numel() - self.tail_numel :]


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
        self._snapshot: Tensor | None = None

    @property
    def numel(self) -> int:
        """Elements of a committed buffer (the wire buffer has the tail on top)."""
        return self.scaled_numel + self.lane_numel

    @property
    def committed(self) -> Tensor:
        """The committed buffer, fp32, shape ``[numel]``. Immutable until the commit after the next."""
        return self._committed

    def new_wire(self, rank: int, ranks: int, tail_numel: int) -> Wire:
        """A fresh wire buffer of an epoch."""
        return Wire(torch.zeros(self.numel + tail_numel), rank, ranks, tail_numel)

    @torch.no_grad()
    def capture(self) -> None:
        """Take the live model as the committed state (at the start and after a checkpoint was loaded)."""
        torch._foreach_copy_(self._views(self._next), self._live)
        self._encode_integers(self._next)
        self._swap()

    @torch.no_grad()
    def pack(self, wire: Wire, share: Share, *, keep_snapshot: bool = False) -> None:
        """Write this rank's contribution into the wire buffer; the tail is left alone.

        Without samples, and when the live model is not finite (``wire.finite``), the contribution is zeros and not a
        product: ``0 x NaN`` is NaN.

        Args:
            wire: from :meth:`new_wire`.
            share: what this rank did in the window.
            keep_snapshot: keep what was packed, so that training may go on during the reduce and
                :meth:`commit` with ``delta`` corrects for it. One at a time.
        """
        flat = wire.buffer
        scaled = flat[: self.scaled_numel]
        views = self._views(flat)
        torch._foreach_copy_(views, self._live)
        if keep_snapshot:
            self._snapshot = scaled.clone()
        wire.finite = torch.ones((), dtype=torch.bool)
        if share.samples > 0:
            self._shift_moments(views)
            scaled.mul_(float(share.samples))
            wire.finite = torch.isfinite(scaled.sum())
        if share.samples == 0 or not wire.finite:
            scaled.zero_()
        if wire.rank == 0:
            self._encode_integers(flat)
        else:
            flat[self.scaled_numel : self.numel].zero_()

    @torch.no_grad()
    def commit(self, wire: Wire, shares: Sequence[Share], *, delta: bool = False, alpha: float = 1.0) -> float:
        """Make the reduced wire buffer the committed state, and bring it into the live model.

        The division is by a tensor: by a Python number it differs between device kinds.

        Args:
            wire: reduced.
            shares: of all ranks, in order, from the reduced tail.
            delta: add ``alpha * (committed - snapshot)`` to the live model instead of overwriting it, so that what
                it learnt since :meth:`pack` with ``keep_snapshot`` stays.
            alpha: share of the correction; below 1 the replicas stay apart, as in elastic averaging (EASGD).

        Returns:
            How far the packed model was from the average, relative to the average's norm.
        """
        flat = wire.buffer
        total = torch.tensor(float(sum(share.samples for share in shares)))
        torch.div(flat[: self.scaled_numel], total, out=self._next[: self.scaled_numel])
        self._next[self.scaled_numel :].copy_(flat[self.scaled_numel : self.numel])
        self._unshift_moments()
        self._swap()
        if delta:
            return self._correct(alpha)
        distance = self._distance()
        self.apply()
        return distance

    def _correct(self, alpha: float) -> float:
        snapshot, committed = self._snapshot, self._committed[: self.scaled_numel]
        if snapshot is None:
            raise RuntimeError("a delta needs the snapshot of pack(keep_snapshot=True); it serves one commit")
        self._snapshot = None
        torch.sub(committed, snapshot, out=snapshot)
        apart, norm = float(snapshot.norm()), float(committed.norm())
        if not math.isfinite(apart):
            self.apply()
            return 0.0
        torch._foreach_add_(self._live, self._views(snapshot.mul_(alpha)))
        self._decode_integers(self._committed)
        return apart / norm if norm > 0.0 else 0.0

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
