"""How a window's work goes into a model's committed state.

The live model is not touched before the whole reduce has succeeded: a failed one leaves nothing to undo. The result is
built in a second committed buffer, and only then do the two change places.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fdl_trainer.averaging import integers, moments
from fdl_trainer.averaging.committed import Committed
from fdl_trainer.averaging.gradients import Gradients
from fdl_trainer.averaging.live import is_finite
from fdl_trainer.averaging.settings import Averaging
from fdl_trainer.averaging.weighing import Share, Weights
from fdl_trainer.averaging.wire import Parts, Wire
from fdl_trainer.ending import step_not_finite

_CONSTANTS = 8
"""Divisors that are kept on the device."""


class ModelState(Committed):
    """A model's averaged tensors, the committed buffers, and the way between them.

    Args:
        model: written to in place, so that optimizers, compiled graphs and hooks keep their references.
        averaging: how the run averages; the defaults of the spec when None.
        device: where the flat buffers live: the model's device, or the CPU (pinned) for a group that reduces there.
            The model's when None.
        optimizer: of the model; needed where gradients are averaged, and then steps at commits only.

    Attributes:
        gradients: the sums of the window's gradients, where those are averaged.

    Raises:
        UnsupportedModelError: the model holds something that cannot be averaged.
    """

    def __init__(
        self,
        model: nn.Module,
        averaging: Averaging | None = None,
        device: torch.device | None = None,
        optimizer: torch.optim.Optimizer | None = None,
    ) -> None:
        super().__init__(model, averaging or Averaging(), device)
        self._keeps_own = self.device.type != "cpu" and self._has_one_divisor()
        self._own_of: Wire | None = None
        self._yes = torch.ones((), dtype=torch.bool, device=self.device)
        self._zero = torch.zeros((), dtype=self.committed.dtype, device=self.device)
        self._constants: dict[float, Tensor] = {}
        self.gradients: Gradients | None = None
        if self.averaging.gradients:
            assert optimizer is not None
            self.gradients = Gradients(self.parameters, optimizer, self.committed.dtype)

    def new_wire(self, rank: int, ranks: int, tail_numel: int, room: int = 0) -> Wire:
        """A fresh wire buffer of an epoch.

        Args:
            rank: this rank's place in the epoch.
            ranks: ranks of the epoch.
            tail_numel: floats of the tail, all ranks' together.
            room: elements behind it, for :attr:`fdl_trainer.averaging.Wire.extra`.
        """
        narrow = self.averaging.bf16_wire and ranks > 1
        wire = Wire(self.layout, rank, ranks, tail_numel, narrow=narrow, like=self.committed, room=room)
        if wire.floating is not None:
            wire.views = self._model.views(wire.floating)
        return wire

    # --- a window ---------------------------------------------------------------------------------------

    @torch.no_grad()
    def pack(self, wire: Wire, share: Share, *, keep_snapshot: bool = False, again: bool = False) -> None:
        """Write this rank's contribution into the wire buffer; the tail is left alone.

        Without samples, and when the live model is not finite (``wire.finite``), the contribution is zeros and not a
        product: ``0 x NaN`` is NaN.

        Args:
            wire: from :meth:`new_wire`.
            share: what this rank did in the window.
            keep_snapshot: keep what was packed, so that training may go on during the reduce and
                :meth:`commit` with ``delta`` corrects for it. One at a time.
            again: pack what was kept instead of the live model: its reduce failed, and training has gone on.

        Raises:
            ModelChangedError: the model is not the one that was set up.
        """
        keep_snapshot = keep_snapshot and not again
        idle, narrow = share.samples == 0, wire.weighted is None
        parts = self._next if wire.weighted is None else wire.weighted
        keeps_own = self._keeps_own and wire.ranks > 1 and not (idle or keep_snapshot or again)
        self._own_of = wire if keeps_own else None
        raw, raw_views = (parts, wire.views) if not (narrow or keeps_own) else (self._next, self._views_of(self._next))
        collects = not again and (keep_snapshot or not idle)
        finite = self._collect(raw, raw_views) if collects else self._yes
        if self._model.refresh() and collects:  # looked while a device copies
            finite = self._collect(raw, raw_views)
        if again:
            finite = self._model.recall(parts.floating)
        wire.mark(finite, soon=keep_snapshot or again)
        numbers = self._model.kept_numbers() if again else self._model.numbers()
        if keep_snapshot:
            self._model.keep(parts.floating, numbers)
        if idle or (not finite.is_cuda and not finite):
            parts.floating.zero_()
        elif keeps_own:
            torch.mul(raw.floating, self.averaging.weighing.factor(share), out=parts.floating)
            self._zero_unless_finite(wire, parts)
        else:
            self._weigh(wire, parts, share)
            self._zero_unless_finite(wire, parts)
        if narrow:
            wire.parameters.copy_(parts.parameters)
            wire.rest.copy_(parts.rest)
        self._pack_numbers(wire, numbers)
        if self.gradients is not None:
            self.gradients.pack(wire.extra, wire.rank, share, finite)

    def _collect(self, parts: Parts, part_views: list[Tensor]) -> Tensor:
        if self.gradients is not None:
            return self._model.collect_rest(self.gradients.sums, parts.floating, part_views)
        return self._model.collect(parts.floating, part_views)

    def _has_one_divisor(self) -> bool:
        """Whether an average is the sum of the weighted values divided by one number, and nothing else. Then what a
        rank collected serves as the scratch memory of its commit (:meth:`LiveModel.replace`).
        """
        weighing = self.averaging.weighing
        special = self.averaging.of_deltas or self.averaging.gradients or self.averaging.outer.has_state
        by_samples = weighing.weights is Weights.SAMPLES and weighing.gamma == 1.0
        plain = not (special or self.layout.moments or self._model.staged)
        return plain and (by_samples or not self.layout.buffers)

    def _weigh(self, wire: Wire, parts: Parts, share: Share) -> None:
        if self.layout.moments:
            moments.shift(parts.mean, parts.variance, self._committed.mean)
        if self.averaging.of_deltas:
            parts.parameters.sub_(self._committed.parameters)
        if self.averaging.gradients:
            parts.rest.mul_(share.samples)  # gradients are sums over samples already
        elif wire.ranks > 1:
            factor = self.averaging.weighing.factor(share)
            if factor == share.samples:
                parts.floating.mul_(factor)
            else:
                parts.parameters.mul_(factor)
                parts.rest.mul_(share.samples)

    def _zero_unless_finite(self, wire: Wire, parts: Parts) -> None:
        if wire.finite.is_cuda:  # the host does not wait to learn whether it is
            torch.where(wire.finite, parts.floating, self._zero, out=parts.floating)

    def _pack_numbers(self, wire: Wire, numbers: Tensor) -> None:
        if not numbers.numel():
            return
        counters = self.layout.counters
        wire.lanes.zero_()
        wire.growth.zero_()
        if wire.rank == 0:
            integers.encode(numbers[counters:], wire.lanes)
        if counters:
            grown = integers.growth(numbers[:counters], integers.decode(self._committed.lanes)[:counters])
            wire.growth[wire.rank].copy_(torch.where(wire.finite, grown.to(wire.growth.dtype), 0.0))

    @torch.no_grad()
    def commit(self, wire: Wire, shares: Sequence[Share], *, delta: bool = False, alpha: float = 1.0) -> None:
        """Make the reduced wire buffer the committed state, and bring it into the live model.

        Args:
            wire: reduced.
            shares: of all ranks, in order, from the reduced tail; somebody has samples.
            delta: add ``alpha * (committed - snapshot)`` to the live model instead of overwriting it, so that what
                it learnt since :meth:`pack` with ``keep_snapshot`` stays. A model that was not finite is overwritten.
            alpha: share of the correction; below 1 the replicas stay apart, as in elastic averaging (EASGD, Zhang et
                al. 2015, arXiv 1412.6651).

        Raises:
            RuntimeError: ``delta`` without a snapshot.
            RunEndedError: the step with the mean gradient has made a parameter not finite; nothing is committed.
        """
        if delta and not self._model.has_snapshot:
            raise RuntimeError("a delta needs the snapshot of pack(keep_snapshot=True); it serves one commit")
        before, after = self._committed, self._next
        own, self._own_of = self._own_of is wire and not delta, None
        if not own:
            self._average(wire, shares, before, after)
        numbers = self._commit_numbers(wire, before, after)
        flat, flat_views = after.floating, self._views_of(after)
        if self.gradients is not None:
            self._model.put_parameters(before.floating, self._views_of(before))  # a script may have changed them
            self.gradients.step(after.parameters, wire.extra, shares)
            self._model.put_rest(flat, flat_views, numbers)
            self._require_finite(after)
        self._swap()
        if self.gradients is not None:
            return
        if own and wire.floating is not None:
            divisor = self.averaging.weighing.divisor(shares)
            self._model.replace(wire.floating, divisor, self._constant(divisor), flat, flat_views, numbers=numbers)
        elif delta and wire.was_finite:
            self._model.correct(flat, flat_views, numbers, alpha)
        else:
            self._model.overwrite(flat, flat_views, numbers, wire.floating, wire.views)
        self._model.forget()

    def _require_finite(self, after: Parts) -> None:
        """A step that went wrong is no commit: neither checkpoints nor other ranks get what came of it."""
        if is_finite(after.parameters):
            return
        parts = zip(self._model.inventory.parameters, self._views_of(after), strict=False)
        raise step_not_finite(next((name for name, view in parts if not is_finite(view)), ""))

    def _average(self, wire: Wire, shares: Sequence[Share], before: Parts, after: Parts) -> None:
        self._divide(wire, shares, after)
        if self.averaging.of_deltas:
            after.parameters.add_(before.parameters)
        if self.layout.moments:
            moments.unshift(after.mean, after.variance, before.mean)
        self.averaging.outer.apply(before.parameters, after.parameters, before.momentum, after.momentum)

    def _commit_numbers(self, wire: Wire, before: Parts, after: Parts) -> Tensor:
        if not before.lanes.numel():
            return self._model.numbers()
        numbers = integers.decode(before.lanes)
        numbers[: self.layout.counters] += wire.growth.amax(0).to(torch.int64)
        numbers[self.layout.counters :] = integers.decode(wire.lanes)
        integers.encode(numbers, after.lanes)
        return numbers

    def _divide(self, wire: Wire, shares: Sequence[Share], target: Parts) -> None:
        """Sums to averages. The divisor is a tensor: division by a Python number differs between device kinds."""
        if wire.ranks == 1 and not self.averaging.gradients:
            target.parameters.copy_(wire.parameters)
            target.rest.copy_(wire.rest)
            return
        divisor, samples = self.averaging.weighing.divisor(shares), float(sum(share.samples for share in shares))
        if divisor == samples and wire.floating is not None:
            torch.div(wire.floating, self._constant(divisor), out=target.floating)
            return
        target.parameters.copy_(wire.parameters).div_(self._constant(divisor))
        torch.div(wire.rest, self._constant(samples), out=target.rest)

    def _constant(self, value: float) -> Tensor:
        """A number on the buffers' device, shape ``[]``; most windows divide by what the last one did."""
        if value not in self._constants:
            if len(self._constants) >= _CONSTANTS:
                self._constants.clear()
            self._constants[value] = torch.full((), value, dtype=self._zero.dtype, device=self.device)
        return self._constants[value]

    # --- what makes an open window void -------------------------------------------------------------------

    def capture(self) -> None:
        """See :meth:`Committed.capture`."""
        self._own_of = None
        super().capture()

    def adopt(self, gift: Tensor, *, delta: bool = False, alpha: float = 1.0) -> None:
        """See :meth:`Committed.adopt`."""
        self._own_of = None
        super().adopt(gift, delta=delta, alpha=alpha)

    def apply(self) -> None:
        """Copy the committed state into the live model; what was added up since is void."""
        self.forget_gradients()
        super().apply()

    def forget_gradients(self) -> None:
        """What was added up in the window is void, or counts for nothing."""
        if self.gradients is not None:
            self.gradients.clear()
