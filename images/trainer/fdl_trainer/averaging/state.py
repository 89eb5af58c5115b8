"""A model's committed state, and how a window's work goes into it.

The live model is not touched before the whole reduce has succeeded: a failed one leaves nothing to undo. The result is
built in a second committed buffer, and only then do the two change places.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fdl_trainer.averaging import integers, moments
from fdl_trainer.averaging.gradients import Gradients
from fdl_trainer.averaging.live import LiveModel, elements, saved_names, views
from fdl_trainer.averaging.reading import Reading
from fdl_trainer.averaging.settings import Averaging
from fdl_trainer.averaging.weighing import Share
from fdl_trainer.averaging.wire import Layout, Parts, Wire


class ModelState:
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
        self.averaging = averaging or Averaging()
        self._model = LiveModel(model, device)
        self._saved_as = saved_names(model)
        inventory = self._model.inventory
        self.layout = Layout(
            parameters=elements(inventory.parameters),
            buffers=elements(inventory.buffers),
            moments=elements(inventory.means),
            counters=elements(inventory.counters),
            integers=elements(inventory.integers),
            momentum=elements(inventory.parameters) if self.averaging.outer.has_state else 0,
        )
        self._committed, self._next = self._new_buffer(), self._new_buffer()
        self._views = {id(parts): self._model.views(parts.floating) for parts in (self._committed, self._next)}
        self._distance: Reading | None = None
        self.gradients: Gradients | None = None
        if self.averaging.gradients:
            assert optimizer is not None
            self.gradients = Gradients(self.parameters, optimizer, inventory.dtype)

    @property
    def device(self) -> torch.device:
        """Where the flat buffers live."""
        return self._model.device

    @property
    def numel(self) -> int:
        """Elements of a committed buffer."""
        return self.layout.committed

    @property
    def committed(self) -> Tensor:
        """The committed buffer, shape ``[numel]``. It stays as it is until the second :meth:`pack` from now."""
        return self._committed.flat

    def divergence(self) -> float:
        """How far this rank's model was from the average at the last commit, relative to the average's norm."""
        return 0.0 if self._distance is None else float(self._distance)

    @property
    def parameters(self) -> list[Tensor]:
        """The trained parameters, in the order of the flat buffers."""
        return list(self._model.inventory.parameters.values())

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

    @torch.no_grad()
    def capture(self) -> None:
        """Take the live model as the committed state (at the start and after a checkpoint was loaded)."""
        self._model.refresh()
        self._model.collect(self._next.floating, self._views_of(self._next))
        integers.encode(self._model.numbers(), self._next.lanes)
        self._next.momentum.copy_(self._committed.momentum)
        self._swap()

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
        self._model.refresh()
        keep_snapshot = keep_snapshot and not again
        idle, narrow = share.samples == 0, wire.floating is None
        parts = self._next if wire.floating is None else self.layout.split_floating(wire.floating)
        finite = torch.ones((), dtype=torch.bool, device=self.device)
        part_views = self._views_of(self._next) if narrow else wire.views
        if again:
            finite = self._model.recall(parts.floating)
        elif self.gradients is not None and not idle:
            finite = self._model.collect_rest(self.gradients.sums, parts.floating, part_views)
        elif not idle or keep_snapshot:
            finite = self._model.collect(parts.floating, part_views)
        wire.mark(finite)
        numbers = self._model.kept_numbers() if again else self._model.numbers()
        if keep_snapshot:
            self._model.keep(parts.floating, numbers)
        if idle or (not finite.is_cuda and not finite):
            parts.floating.zero_()
        else:
            self._weigh(wire, parts, share)
        if narrow:
            wire.parameters.copy_(parts.parameters)
            wire.rest.copy_(parts.rest)
        self._pack_numbers(wire, numbers)
        if self.gradients is not None:
            self.gradients.pack(wire.extra, wire.rank, share, finite)

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
        if wire.finite.is_cuda:  # the host does not wait to learn whether it is
            zero = torch.zeros((), dtype=parts.floating.dtype, device=self.device)
            torch.where(wire.finite, parts.floating, zero, out=parts.floating)

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
        """
        if delta and not self._model.has_snapshot:
            raise RuntimeError("a delta needs the snapshot of pack(keep_snapshot=True); it serves one commit")
        before, after = self._committed, self._next
        self._divide(wire, shares, after)
        if self.averaging.of_deltas:
            after.parameters.add_(before.parameters)
        if self.layout.moments:
            moments.unshift(after.mean, after.variance, before.mean)
        self.averaging.outer.apply(before.parameters, after.parameters, before.momentum, after.momentum)
        numbers = integers.decode(before.lanes)
        if numbers.numel():
            numbers[: self.layout.counters] += wire.growth.amax(0).to(torch.int64)
            numbers[self.layout.counters :] = integers.decode(wire.lanes)
            integers.encode(numbers, after.lanes)
        flat, flat_views = after.floating, self._views_of(after)
        if self.gradients is not None:
            self._model.put_parameters(before.floating, self._views_of(before))  # a script may have changed them
            self.gradients.step(after.parameters, wire.extra, shares)
            self._model.put_rest(flat, flat_views, numbers)
        self._swap()
        if self.gradients is not None:
            return
        if delta and wire.was_finite:
            distance = self._model.correct(flat, flat_views, numbers, alpha)
        else:
            distance = self._model.overwrite(flat, flat_views, numbers, wire.floating, wire.views)
        self._distance = Reading(distance)
        self._model.forget()

    def _divide(self, wire: Wire, shares: Sequence[Share], target: Parts) -> None:
        """Sums to averages. The divisor is a tensor: division by a Python number differs between device kinds."""
        if wire.ranks == 1 and not self.averaging.gradients:
            target.parameters.copy_(wire.parameters)
            target.rest.copy_(wire.rest)
            return
        divisor, samples = self.averaging.weighing.divisor(shares), float(sum(share.samples for share in shares))
        by = torch.full((), divisor, dtype=target.flat.dtype, device=self.device)
        by_samples = torch.full((), samples, dtype=target.flat.dtype, device=self.device)
        if divisor == samples and wire.floating is not None:
            torch.div(wire.floating, by, out=target.floating)
            return
        target.parameters.copy_(wire.parameters).div_(by)
        torch.div(wire.rest, by_samples, out=target.rest)

    def forget_gradients(self) -> None:
        """What was added up in the window is void, or counts for nothing."""
        if self.gradients is not None:
            self.gradients.clear()

    # --- other ranks' states ----------------------------------------------------------------------------

    @torch.no_grad()
    def gift(self) -> Tensor:
        """What a rank without the state is given: the committed buffer, and the frozen parameters behind it."""
        frozen = self._model.inventory.frozen.values()
        if not frozen:
            return self.committed
        flat = [tensor.reshape(-1).to(self.device, self.committed.dtype) for tensor in frozen]
        return torch.cat([self.committed, *flat])

    @torch.no_grad()
    def adopt(self, gift: Tensor, *, delta: bool = False, alpha: float = 1.0) -> None:
        """Take another rank's :meth:`gift`, and bring it into the live model.

        Args:
            gift: theirs.
            delta: as in :meth:`commit`, for a rank that has trained on since it sent its part of that commit.
            alpha: likewise.
        """
        self._next.flat.copy_(gift[: self.numel])
        frozen = list(self._model.inventory.frozen.values())
        for tensor, given in zip(frozen, views(gift[self.numel :], frozen), strict=True):
            tensor.copy_(given)
        self._swap()
        self._distance = None
        if delta:
            committed = self._committed
            numbers = integers.decode(committed.lanes)
            self._model.correct(committed.floating, self._views_of(committed), numbers, alpha)
        else:
            self.apply()
        self._model.forget()

    @torch.no_grad()
    def apply(self) -> None:
        """Copy the committed state into the live model; what was added up since is void."""
        self.forget_gradients()
        committed = self._committed
        self._model.put(committed.floating, self._views_of(committed), integers.decode(committed.lanes))

    # --- checkpoints ------------------------------------------------------------------------------------

    @torch.no_grad()
    def tensors(self) -> dict[str, Tensor]:
        """A copy of the committed state by the keys of the model's state dict, in the model's dtypes, on the CPU."""
        inventory = self._model.inventory
        numbers = views(integers.decode(self._committed.lanes), list(inventory.whole.values()))
        values: dict[str, Tensor] = {
            **dict(zip(inventory.floating, self._views_of(self._committed), strict=True)),
            **dict(zip(inventory.whole, numbers, strict=True)),
            **inventory.frozen,
        }
        like = {**inventory.floating, **inventory.whole, **inventory.frozen}
        return {
            key: values[name].detach().to("cpu", like[name].dtype, copy=True) for key, name in self._saved_as.items()
        }

    @torch.no_grad()
    def outer_tensors(self) -> dict[str, Tensor]:
        """A copy of the outer optimizer's state by parameter, on the CPU; empty without one."""
        return {name: view.to("cpu", copy=True) for name, view in self._momenta().items()}

    @torch.no_grad()
    def load_outer(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """Take the outer optimizer's state from a checkpoint, after :meth:`capture`.

        Returns:
            Parameters without one there; theirs starts from zero.
        """
        momenta = self._momenta()
        known = {
            name: tensors[name]
            for name, view in momenta.items()
            if name in tensors and tensors[name].shape == view.shape
        }
        for name, saved in known.items():
            momenta[name].copy_(saved)
        return [name for name in momenta if name not in known]

    def _momenta(self) -> dict[str, Tensor]:
        if not self.averaging.outer.has_state:
            return {}
        parameters = self._model.inventory.parameters
        return dict(zip(parameters, views(self._committed.momentum, list(parameters.values())), strict=True))

    # --- buffers ----------------------------------------------------------------------------------------

    def _new_buffer(self) -> Parts:
        dtype = self._model.inventory.dtype
        return self.layout.split(
            torch.zeros(self.numel, dtype=dtype, device=self.device, pin_memory=self._model.staged)
        )

    def _swap(self) -> None:
        self._committed, self._next = self._next, self._committed

    def _views_of(self, parts: Parts) -> list[Tensor]:
        return self._views[id(parts)]
