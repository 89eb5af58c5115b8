"""A model's committed state, and how a window's work goes into it.

The live model is not touched before the whole reduce has succeeded: a failed one leaves nothing to undo. The result is
built in a second committed buffer, and only then do the two change places.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fdl_trainer.averaging import integers, moments
from fdl_trainer.averaging.inventory import Watch, take
from fdl_trainer.averaging.outer import OuterStep
from fdl_trainer.averaging.reading import Reading
from fdl_trainer.averaging.weighing import Share, Weighing
from fdl_trainer.averaging.wire import Layout, Parts, Wire


@dataclass(frozen=True)
class Averaging:
    """How a run averages; the same on all ranks.

    Args:
        weighing: how much each rank counts.
        outer: a step on top of the average.
        bf16_wire: send the parameters' way from the last commit as bf16. Each number then has a relative error of at
            most 2^-9 a rank, of that way and not of the parameter.
    """

    weighing: Weighing = field(default_factory=Weighing)
    outer: OuterStep = field(default_factory=OuterStep)
    bf16_wire: bool = False

    @property
    def of_deltas(self) -> bool:
        """Whether ranks send how far they went from the last commit, instead of where they are."""
        return self.bf16_wire or self.weighing.of_deltas


class ModelState:
    """A model's averaged tensors, the committed buffers, and the way between them.

    Args:
        model: its parameters and buffers are written to in place and never rebound, so that optimizers, compiled
            graphs and hooks keep their references.
        averaging: how the run averages.
        device: where the flat buffers live: the model's device, or the CPU (pinned) for a group that reduces there.
            The model's when None.

    Raises:
        UnsupportedModelError: the model holds something that cannot be averaged.
    """

    def __init__(
        self, model: nn.Module, averaging: Averaging = Averaging(), device: torch.device | None = None
    ) -> None:
        inventory = take(model)
        self.averaging = averaging
        self._inventory = inventory
        self._watch = Watch(model, inventory)
        self._saved_as = _saved_names(model)
        self._live = list(inventory.floating.values())
        self._home = next((tensor.device for tensor in self._live), torch.device("cpu"))
        self.device = device or self._home
        self.layout = Layout(
            parameters=_elements(inventory.parameters),
            buffers=_elements(inventory.buffers),
            moments=_elements(inventory.means),
            counters=_elements(inventory.counters),
            integers=_elements(inventory.integers),
            momentum=_elements(inventory.parameters) if averaging.outer.has_state else 0,
        )
        pinned = self.device.type == "cpu" and self._home.type == "cuda"
        self._committed, self._next = (
            self.layout.split(torch.zeros(self.numel, dtype=inventory.dtype, device=self.device, pin_memory=pinned))
            for _ in range(2)
        )
        # Where the model is elsewhere, one flat copy on its device is what crosses the bus, at once.
        self._stage = (
            torch.zeros(self.layout.floating, dtype=inventory.dtype, device=self._home)
            if self._home != self.device
            else None
        )
        self._stage_views = [] if self._stage is None else _split(self._stage, self._live)
        self._views = {id(parts): _split(parts.floating, self._live) for parts in (self._committed, self._next)}
        self._snapshot: Tensor | None = None
        self._snapshot_whole: Tensor | None = None
        self._has_snapshot = False
        self._distance: Reading | None = None

    @property
    def numel(self) -> int:
        """Elements of a committed buffer."""
        return self.layout.committed

    @property
    def committed(self) -> Tensor:
        """The committed buffer, shape ``[numel]``. It stays as it is until the second :meth:`pack` from now."""
        return self._committed.flat

    def new_wire(self, rank: int, ranks: int, tail_numel: int) -> Wire:
        """A fresh wire buffer of an epoch.

        Args:
            rank: this rank's place in the epoch.
            ranks: ranks of the epoch.
            tail_numel: floats of the tail, all ranks' together.
        """
        narrow = self.averaging.bf16_wire and ranks > 1
        like = self._committed.flat
        wire = Wire(self.layout, rank, ranks, tail_numel, narrow=narrow, like=like)
        if wire.floating is not None:
            wire.views = _split(wire.floating, self._live)
        return wire

    @torch.no_grad()
    def capture(self) -> None:
        """Take the live model as the committed state (at the start and after a checkpoint was loaded)."""
        self._refresh()
        self._collect(self._next.floating, self._views_of(self._next))
        integers.encode(self._whole(), self._next.lanes)
        self._next.momentum.copy_(self._committed.momentum)
        self._swap()

    # --- a window ---------------------------------------------------------------------------------------

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

        Raises:
            ModelChangedError: the model is not the one that was set up.
        """
        self._refresh()
        idle = share.samples == 0
        narrow = wire.floating is None
        parts = self._next if wire.floating is None else self.layout.split_floating(wire.floating)
        finite = torch.ones((), dtype=torch.bool, device=self.device)
        if not idle or keep_snapshot:
            finite = self._collect(parts.floating, self._views_of(self._next) if narrow else wire.views)
        wire.mark(finite)
        whole = self._whole()
        if keep_snapshot:
            self._keep(parts.floating, whole)
        if idle or (not finite.is_cuda and not finite):
            parts.floating.zero_()
        else:
            self._weigh(wire, parts, share)
        if narrow:
            wire.parameters.copy_(parts.parameters)
            wire.rest.copy_(parts.rest)
        self._pack_whole(wire, whole)

    def _weigh(self, wire: Wire, parts: Parts, share: Share) -> None:
        moments.shift(parts.mean, parts.variance, self._committed.mean)
        if self.averaging.of_deltas:
            parts.parameters.sub_(self._committed.parameters)
        if wire.ranks > 1:
            factor = self.averaging.weighing.factor(share)
            if factor == share.samples:
                parts.floating.mul_(factor)
            else:
                parts.parameters.mul_(factor)
                parts.rest.mul_(share.samples)
        if wire.finite.is_cuda:
            zero = torch.zeros((), dtype=parts.floating.dtype, device=self.device)
            torch.where(wire.finite, parts.floating, zero, out=parts.floating)

    def _pack_whole(self, wire: Wire, whole: Tensor) -> None:
        counters = self.layout.counters
        wire.lanes.zero_()
        wire.growth.zero_()
        if wire.rank == 0:
            integers.encode(whole[counters:], wire.lanes)
        if counters:
            grown = integers.growth(whole[:counters], integers.decode(self._committed.lanes)[:counters])
            wire.growth[wire.rank].copy_(torch.where(wire.finite, grown.to(wire.growth.dtype), 0.0))

    @torch.no_grad()
    def commit(self, wire: Wire, shares: Sequence[Share], *, delta: bool = False, alpha: float = 1.0) -> None:
        """Make the reduced wire buffer the committed state, and bring it into the live model.

        Args:
            wire: reduced.
            shares: of all ranks, in order, from the reduced tail; somebody has samples.
            delta: add ``alpha * (committed - snapshot)`` to the live model instead of overwriting it, so that what
                it learnt since :meth:`pack` with ``keep_snapshot`` stays.
            alpha: share of the correction; below 1 the replicas stay apart, as in elastic averaging (EASGD, Zhang et
                al. 2015, arXiv 1412.6651).

        Raises:
            RuntimeError: ``delta`` without a snapshot.
        """
        if delta and not self._has_snapshot:
            raise RuntimeError("a delta needs the snapshot of pack(keep_snapshot=True); it serves one commit")
        before, after = self._committed, self._next
        self._divide(wire, shares, after)
        if self.averaging.of_deltas:
            after.parameters.add_(before.parameters)
        moments.unshift(after.mean, after.variance, before.mean)
        self.averaging.outer.apply(before.parameters, after.parameters, before.momentum, after.momentum)
        if self._inventory.whole:
            numbers = integers.decode(before.lanes)
            numbers[: self.layout.counters] += wire.growth.amax(0).to(torch.int64)
            numbers[self.layout.counters :] = integers.decode(wire.lanes)
            integers.encode(numbers, after.lanes)
        self._swap()
        if delta and wire.was_finite:
            self._correct(alpha)
        else:
            self._distance = Reading(self._overwrite())
        self._has_snapshot = False

    def _divide(self, wire: Wire, shares: Sequence[Share], target: Parts) -> None:
        """Sums to averages. The divisor is a tensor: division by a Python number differs between device kinds."""
        if wire.ranks == 1:
            target.parameters.copy_(wire.parameters)
            target.rest.copy_(wire.rest)
            return
        floating = wire.floating
        divisor, samples = self.averaging.weighing.divisor(shares), float(sum(share.samples for share in shares))
        by, by_samples = (
            torch.tensor(value, dtype=target.flat.dtype, device=self.device) for value in (divisor, samples)
        )
        if divisor == samples and floating is not None:
            torch.div(floating, by, out=target.floating)
            return
        target.parameters.copy_(wire.parameters).div_(by)
        torch.div(wire.rest, by_samples, out=target.rest)

    def divergence(self) -> float:
        """How far this rank's model was from the average at the last commit, relative to the average's norm."""
        return 0.0 if self._distance is None else float(self._distance)

    # --- other ranks' states ----------------------------------------------------------------------------

    @torch.no_grad()
    def gift(self) -> Tensor:
        """What a rank without the state is given: the committed buffer, and the frozen parameters behind it."""
        frozen = self._inventory.frozen.values()
        if not frozen:
            return self.committed
        flat = [tensor.reshape(-1).to(self.device, self.committed.dtype) for tensor in frozen]
        return torch.cat([self.committed, *flat])

    @torch.no_grad()
    def adopt(self, gift: Tensor) -> None:
        """Take another rank's :meth:`gift`, and copy it into the live model."""
        self._next.flat.copy_(gift[: self.numel])
        integers.scatter(gift[self.numel :], list(self._inventory.frozen.values()))
        self._swap()
        self._has_snapshot = False
        self._distance = None
        self.apply()

    @torch.no_grad()
    def apply(self) -> None:
        """Copy the committed state into the live model."""
        self._apply(self._committed_here()[1])

    def _apply(self, views: list[Tensor]) -> None:
        torch._foreach_copy_(self._live, views)
        integers.scatter(integers.decode(self._committed.lanes), list(self._inventory.whole.values()))

    # --- checkpoints ------------------------------------------------------------------------------------

    @torch.no_grad()
    def tensors(self) -> dict[str, Tensor]:
        """A copy of the committed state by the keys of the model's state dict, in the model's dtypes, on the CPU."""
        inventory = self._inventory
        values = dict(zip(inventory.floating, self._views_of(self._committed), strict=True)) | inventory.frozen
        numbers = torch.split(
            integers.decode(self._committed.lanes), [item.numel() for item in inventory.whole.values()]
        )
        values |= dict(zip(inventory.whole, numbers, strict=True))
        models = {**inventory.floating, **inventory.frozen, **inventory.whole}
        return {
            key: values[name].detach().reshape(models[name].shape).to("cpu", models[name].dtype, copy=True)
            for key, name in self._saved_as.items()
        }

    @torch.no_grad()
    def outer_tensors(self) -> dict[str, Tensor]:
        """A copy of the outer optimizer's state by parameter, on the CPU; empty without one."""
        if not self.averaging.outer.has_state:
            return {}
        views = _split(self._committed.momentum, list(self._inventory.parameters.values()))
        return {name: view.to("cpu", copy=True) for name, view in zip(self._inventory.parameters, views, strict=True)}

    @torch.no_grad()
    def load_outer(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """Take the outer optimizer's state from a checkpoint.

        Returns:
            Parameters without one there; theirs starts from zero.
        """
        if not self.averaging.outer.has_state:
            return []
        views = _split(self._committed.momentum, list(self._inventory.parameters.values()))
        missing = []
        for (name, parameter), view in zip(self._inventory.parameters.items(), views, strict=True):
            saved = tensors.get(name)
            if saved is None or saved.shape != parameter.shape:
                missing.append(name)
            else:
                view.copy_(saved)
        return missing

    # --- between the live model and flat buffers --------------------------------------------------------

    def _refresh(self) -> None:
        replaced = self._watch.check()
        if not replaced:
            return
        inventory = self._inventory
        for rule in (inventory.buffers, inventory.means, inventory.variances, inventory.counters, inventory.integers):
            rule.update({name: tensor for name, tensor in replaced.items() if name in rule})
        self._live = list(inventory.floating.values())

    def _collect(self, flat: Tensor, views: list[Tensor]) -> Tensor:
        """The live floating tensors, into a flat buffer; returns whether they are finite, bool, shape ``[]``.

        The sum over everything is finite if all is: one fused pass. Where the model is on another device, the wait is
        for the one copy, since the host reads it next.
        """
        if self._stage is None:
            torch._foreach_copy_(views, self._live)
            return torch.isfinite(flat.sum())
        torch._foreach_copy_(self._stage_views, self._live)
        finite = torch.isfinite(self._stage.sum())
        flat.copy_(self._stage, non_blocking=True)
        return finite.to(self.device)

    def _whole(self) -> Tensor:
        return integers.gather(list(self._inventory.whole.values()), self.device)

    def _keep(self, flat: Tensor, whole: Tensor) -> None:
        source = flat if self._stage is None else self._stage
        if self._snapshot is None:
            self._snapshot = torch.empty_like(source)
        self._snapshot.copy_(source)
        self._snapshot_whole = whole
        self._has_snapshot = True

    def _committed_here(self) -> tuple[Tensor, list[Tensor]]:
        """The committed floating state on the model's device: flat, and by tensor."""
        if self._stage is None:
            return self._committed.floating, self._views_of(self._committed)
        return self._stage.copy_(self._committed.floating, non_blocking=True), self._stage_views

    def _overwrite(self) -> Tensor:
        """Put the committed state into the live model; returns how far it was from it.

        The difference is taken in the live model itself, which is about to be overwritten.
        """
        flat, views = self._committed_here()
        torch._foreach_sub_(self._live, views)
        apart = _norm(self._live, flat.dtype)
        self._apply(views)
        return _relative(apart, torch.linalg.vector_norm(flat))

    def _correct(self, alpha: float) -> None:
        snapshot, whole = self._snapshot, self._snapshot_whole
        assert snapshot is not None and whole is not None
        flat, _ = self._committed_here()
        norm = torch.linalg.vector_norm(flat)
        torch.sub(flat, snapshot, out=snapshot)
        self._distance = Reading(_relative(torch.linalg.vector_norm(snapshot), norm))
        torch._foreach_add_(self._live, _split(snapshot.mul_(alpha), self._live))
        if self.layout.moments:
            torch._foreach_clamp_min_(list(self._inventory.variances.values()), 0.0)
        counters = self.layout.counters
        numbers = integers.decode(self._committed.lanes)
        numbers[:counters] += (self._whole() - whole)[:counters]
        integers.scatter(numbers, list(self._inventory.whole.values()))

    def _swap(self) -> None:
        self._committed, self._next = self._next, self._committed

    def _views_of(self, parts: Parts) -> list[Tensor]:
        return self._views[id(parts)]


def _split(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    parts = torch.split(flat, [tensor.numel() for tensor in like])
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]


def _elements(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors.values())


def _norm(tensors: list[Tensor], dtype: torch.dtype) -> Tensor:
    """L2 norm over many tensors: one fused operation, and a second over its results."""
    if not tensors:
        return torch.zeros((), dtype=dtype)
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors, 2.0, dtype=dtype)))
    return norm


def _relative(apart: Tensor, norm: Tensor) -> Tensor:
    """Their ratio; 0 when the norm is, or the distance is not finite."""
    known = torch.isfinite(apart) & (norm > 0)
    return torch.where(known, apart / norm, torch.zeros_like(norm))


def _saved_names(model: nn.Module) -> dict[str, str]:
    """The keys of the state dict, with the name of the tensor behind each: tied ones have two keys."""
    sources = [*model.named_parameters(), *model.named_buffers()]
    names = {id(tensor): name for name, tensor in sources}
    return {
        key: names[id(tensor)]
        for key, tensor in model.state_dict(keep_vars=True).items()
        if isinstance(tensor, Tensor) and id(tensor) in names
    }
