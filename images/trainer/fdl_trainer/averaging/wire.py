"""The wire buffer of one membership epoch, and the parts of the flat buffers.

A committed buffer holds, one after the other,

====================  ==============================================================
parameters            trained ones
buffers               floating buffers without a rule of their own
means, variances      running statistics of normalisation layers
lanes                 counters and integer buffers, four floats each
momentum              the outer optimizer's, as long as the parameters; where there is one
====================  ==============================================================

A wire buffer has the same up to the variances, each weighted; then the lanes of the lowest rank's integers; for every
rank a slot with the growth of each counter; the tail; and in some windows what else is averaged (``extra``). All of it
is one SUM. With a bf16 wire the parameters are a
part of their own, since statistics, integers and the tail bear no rounding to eight bits: two operations, and the
window has committed only if both succeeded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fdl_trainer.averaging.integers import LANES
from fdl_trainer.averaging.reading import Reading


@dataclass(frozen=True)
class Layout:
    """Elements of each part.

    Attributes:
        parameters: of trained parameters.
        buffers: of floating buffers without statistics.
        moments: of running means, and again of variances.
        counters: number of counters.
        integers: number of other integers.
        momentum: of the outer optimizer's state: 0, or as many as parameters.
    """

    parameters: int
    buffers: int
    moments: int
    counters: int
    integers: int
    momentum: int

    @property
    def floating(self) -> int:
        """Everything that has a weight."""
        return self.parameters + self.buffers + 2 * self.moments

    @property
    def committed(self) -> int:
        """A committed buffer."""
        return self.floating + LANES * (self.counters + self.integers) + self.momentum

    def split_floating(self, flat: Tensor) -> "Parts":
        """The parts of a buffer that ends with the variances."""
        sizes = [self.parameters, self.buffers, self.moments, self.moments, 0, 0]
        return Parts(flat, flat, *torch.split(flat, sizes))

    def split(self, flat: Tensor) -> "Parts":
        """The parts of a committed buffer."""
        sizes = [
            self.parameters,
            self.buffers,
            self.moments,
            self.moments,
            LANES * (self.counters + self.integers),
            self.momentum,
        ]
        return Parts(flat, flat[: self.floating], *torch.split(flat[: self.committed], sizes))


@dataclass(frozen=True)
class Parts:
    """Views into a committed buffer."""

    flat: Tensor
    floating: Tensor
    parameters: Tensor
    buffers: Tensor
    mean: Tensor
    variance: Tensor
    lanes: Tensor
    momentum: Tensor

    @property
    def rest(self) -> Tensor:
        """The weighted part without the parameters."""
        return self.floating[self.parameters.numel() :]


class Wire:
    """One epoch's wire buffer: a rank's contribution before the reduce, the sum of all after it.

    Made by :meth:`fdl_trainer.averaging.ModelState.new_wire`.

    Attributes:
        rank: this rank's place in the epoch.
        ranks: ranks of the epoch.
        tail_numel: floats of the tail.
        room: elements behind the tail.
        parameters: weighted parameters or their deltas, of the wire's type.
        rest: the other weighted values.
        floating: both, where they are of one type, else None.
        weighted: their parts, where they are of one type, else None.
        views: the tensors in them, by the model's order.
        lanes: the lowest rank's integers.
        growth: of the counters, shape ``[ranks, counters]``.
        finite: whether the packed model was finite, bool, shape ``[]``, on the buffer's device.
        extra: of that room what this window uses, shape ``[n]``; empty unless :meth:`use` was called.
    """

    def __init__(
        self, layout: Layout, rank: int, ranks: int, tail_numel: int, *, narrow: bool, like: Tensor, room: int = 0
    ) -> None:
        bulk = 0 if narrow else layout.parameters
        rest = layout.floating - layout.parameters
        sizes = [bulk, rest, LANES * layout.integers, ranks * layout.counters, tail_numel, room]
        where: dict[str, Any] = {"device": like.device, "pin_memory": like.is_pinned()}
        main = torch.zeros(sum(sizes), dtype=like.dtype, **where)
        self.parameters, self.rest, self.lanes, growth, self._tail, self._room = torch.split(main, sizes)
        self.growth = growth.view(ranks, layout.counters)
        self.floating = None if narrow else main[: layout.floating]
        self.weighted = None if self.floating is None else layout.split_floating(self.floating)
        self.views: list[Tensor] = []
        self._main, self._narrow = main, narrow
        if narrow:
            self.parameters = torch.zeros(layout.parameters, dtype=torch.bfloat16, **where)
        self.rank = rank
        self.ranks = ranks
        self.tail_numel = tail_numel
        self.room = room
        self.extra = self._room[:0]
        self.finite = torch.ones((), dtype=torch.bool, device=like.device)
        self._was_finite: Reading | None = None
        self._said = torch.zeros(2, tail_numel, dtype=like.dtype, pin_memory=like.is_cuda)
        self._choice = self._said.to(like.device)
        self._heard = Reading(self._tail)

    @property
    def parts(self) -> list[Tensor]:
        """What is reduced, in this order."""
        main = self._main[: self._main.numel() - self.room + self.extra.numel()]
        return [self.parameters, main] if self._narrow else [main]

    def use(self, extra: int) -> None:
        """Reduce so many elements behind the tail from now on; all ranks the same number, at most :attr:`room`."""
        assert extra <= self.room
        self.extra = self._room[:extra]

    def reduce(self, all_reduce: Callable[[Tensor], None]) -> None:
        """Reduce all parts. Whatever ``all_reduce`` raises leaves a buffer that has to be packed anew."""
        for part in self.parts:
            all_reduce(part)

    def mark(self, finite: Tensor, *, soon: bool = False) -> None:
        """Note whether what was packed is finite.

        Args:
            finite: bool, shape ``[]``, on the buffer's device.
            soon: the host asks while the device has later work.
        """
        self.finite, self._was_finite = finite, None
        if soon:
            self._read_finite()

    @property
    def was_finite(self) -> bool:
        """The same as a Python value. Waits for the device to have come to the packing, and no longer if it was told
        that this would be asked soon.
        """
        reading = self._was_finite or self._read_finite()
        return bool(reading.numbers()[0])

    def _read_finite(self) -> Reading:
        self._was_finite = Reading(self.finite.reshape(1))
        self._was_finite.begin()
        return self._was_finite

    def write_tail(self, finite: Sequence[float], otherwise: Sequence[float]) -> None:
        """Write the tail, after :meth:`ModelState.pack`: one of two, since the host may not know yet which is true.

        Args:
            finite: the tail if the packed model was finite.
            otherwise: the tail if it was not.
        """
        # The memory for it is the wire's own. A copy of an earlier tail that the device has not come to yet belongs to
        # a reduce that was given up, and whatever it copies is copied over.
        self._said.copy_(torch.tensor([list(finite), list(otherwise)], dtype=self._said.dtype))
        if self._choice is not self._said:
            self._choice.copy_(self._said, non_blocking=True)
        torch.where(self.finite, self._choice[0], self._choice[1], out=self._tail)

    def read_tail(self) -> list[float]:
        """The tail; waits for the device."""
        self._heard.begin()
        return self._heard.numbers()
