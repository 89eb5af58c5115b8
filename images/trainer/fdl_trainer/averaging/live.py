"""The live model, and what moves between it and flat buffers."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from fdl_trainer.averaging import integers
from fdl_trainer.averaging.inventory import Watch, take
from fdl_trainer.averaging.lines import Lines
from fdl_trainer.averaging.reading import Reading

_BLOCK = 1 << 17
"""Elements that a processor works on at a time where several operations follow each other."""


class LiveModel:
    """A model's averaged tensors. They are written to in place and never rebound.

    Args:
        model: the model.
        device: where the flat buffers live: the model's device, or the CPU. The model's when None.

    Attributes:
        inventory: its tensors by rule.
        device: of the flat buffers.
        staged: whether the model is on another device. Then one flat copy of it there is what crosses the bus at once.
    """

    def __init__(self, model: nn.Module, device: torch.device | None) -> None:
        self.inventory = take(model)
        self._watch = Watch(model, self.inventory)
        self._floating = list(self.inventory.floating.values())
        home = next((tensor.device for tensor in self._floating), torch.device("cpu"))
        self.device = device or home
        self.staged = home.type != self.device.type
        self._stage = torch.empty(0, device=home)
        self._stage_views: list[Tensor] = []
        if self.staged:
            self._stage = torch.zeros(elements(self.inventory.floating), dtype=self.inventory.dtype, device=home)
            self._stage_views = self.views(self._stage)
        self._in_cache = home.type == "cpu" and not self.staged
        self._blocks = _blocks(self._floating, _BLOCK if self._in_cache else None)
        self._lines = Lines(self._floating, self.inventory.dtype, joined=not self._in_cache)
        self._no_numbers = torch.zeros(0, dtype=torch.int64, device=self.device)
        self._snapshot: Tensor | None = None
        self._snapshot_numbers: Tensor | None = None
        self._distance = Reading(torch.zeros(2, dtype=self.inventory.dtype, device=home))
        self._apart, self._norm = self._distance.values.unbind(0)
        self._scale = 0.0

    def views(self, flat: Tensor) -> list[Tensor]:
        """A flat buffer's floating part, tensor by tensor."""
        return views(flat, self._floating)

    def refresh(self) -> bool:
        """Look whether the model is still the one that was set up.

        Returns:
            Whether a tensor's memory is elsewhere now: what was collected before this call is not what it holds.

        Raises:
            ModelChangedError: it is not.
        """
        replaced = self._watch.check()
        if not replaced:
            return self._lines.renew()
        inventory = self.inventory
        for rule in (inventory.buffers, inventory.means, inventory.variances, inventory.counters, inventory.integers):
            rule.update({name: tensor for name, tensor in replaced.items() if name in rule})
        self._floating = list(inventory.floating.values())
        self._lines = Lines(self._floating, inventory.dtype, joined=not self._in_cache)
        return True

    def collect(self, flat: Tensor, flat_views: list[Tensor]) -> Tensor:
        """Copy the floating tensors into a flat buffer; returns whether they are finite, bool, shape ``[]``.

        Where the model is on another device, this waits for the one copy, since the host reads it next.
        """
        if self._in_cache:
            sums = []
            for elements, tensors in self._blocks:
                torch._foreach_copy_(flat_views[tensors], self._floating[tensors])
                sums.append(flat[elements].sum())
            return torch.isfinite(torch.stack(sums).sum())
        if not self.staged:
            self._lines.gather(flat, flat_views)
            return is_finite(flat)
        self._lines.gather(self._stage, self._stage_views)
        finite = is_finite(self._stage)
        flat.copy_(self._stage, non_blocking=True)
        return finite.to(self.device)

    def collect_rest(self, parameters: Tensor, flat: Tensor, flat_views: list[Tensor]) -> Tensor:
        """As :meth:`collect`, with other values in place of the parameters' own.

        Args:
            parameters: these values, flat, on the model's device.
            flat: overwritten.
            flat_views: of it.
        """
        count = len(self.inventory.parameters)
        target, target_views = (self._stage, self._stage_views) if self.staged else (flat, flat_views)
        target[: parameters.numel()].copy_(parameters)
        if self._floating[count:]:
            torch._foreach_copy_(target_views[count:], self._floating[count:])
        finite = torch.isfinite(target.sum())
        if self.staged:
            flat.copy_(target, non_blocking=True)
        return finite.to(self.device)

    def put_parameters(self, flat: Tensor, flat_views: list[Tensor]) -> None:
        """Overwrite the parameters, and nothing else."""
        count, size = len(self.inventory.parameters), elements(self.inventory.parameters)
        if self.staged:
            self._stage[:size].copy_(flat[:size], non_blocking=True)
        torch._foreach_copy_(self._floating[:count], (self._stage_views if self.staged else flat_views)[:count])

    def put_rest(self, flat: Tensor, flat_views: list[Tensor], numbers: Tensor) -> None:
        """Overwrite all of the model but its parameters, and these in the flat buffer."""
        count, size = len(self.inventory.parameters), elements(self.inventory.parameters)
        target, target_views = (self._stage, self._stage_views) if self.staged else (flat, flat_views)
        if self.staged:
            target[size:].copy_(flat[size:])
        if self._floating[count:]:
            torch._foreach_copy_(self._floating[count:], target_views[count:])
        torch._foreach_copy_(target_views[:count], self._floating[:count])
        if self.staged:
            flat[:size].copy_(target[:size])
        integers.scatter(numbers, list(self.inventory.whole.values()))

    def numbers(self) -> Tensor:
        """Counters and integers, int64, on the flat buffers' device."""
        whole = self.inventory.whole
        return integers.gather(list(whole.values()), self.device) if whole else self._no_numbers

    def keep(self, flat: Tensor, numbers: Tensor) -> None:
        """Remember what was collected, for :meth:`correct`."""
        source = self._stage if self.staged else flat
        if self._snapshot is None:
            self._snapshot = torch.empty_like(source)
        self._snapshot.copy_(source)
        self._snapshot_numbers = numbers

    def recall(self, flat: Tensor) -> Tensor:
        """Copy what was kept into a flat buffer; returns whether it is finite, bool, shape ``[]``."""
        assert self._snapshot is not None
        flat.copy_(self._snapshot)
        return is_finite(flat)

    def kept_numbers(self) -> Tensor:
        """The counters and integers that were kept."""
        assert self._snapshot_numbers is not None
        return self._snapshot_numbers

    def forget(self) -> None:
        """Drop what :meth:`keep` kept; its memory stays for the next."""
        self._snapshot_numbers = None

    @property
    def has_snapshot(self) -> bool:
        """Whether something was kept and not used yet."""
        return self._snapshot_numbers is not None

    def put(self, flat: Tensor, flat_views: list[Tensor], numbers: Tensor) -> None:
        """Overwrite the model."""
        self._lines.renew()
        self._scatter(*self._here(flat, flat_views), numbers)

    def overwrite(
        self,
        flat: Tensor,
        flat_views: list[Tensor],
        numbers: Tensor,
        scratch: Tensor | None,
        scratch_views: list[Tensor],
    ) -> None:
        """Overwrite the model, and measure the relative distance that it had (:meth:`distance`).

        Where launching an operation costs more than a pass over memory, the difference is taken in a flat scratch
        buffer, else in the live model itself, which is about to be overwritten.
        """
        if self.has_snapshot:
            self._lines.renew()  # training has gone on since the last look
        here, here_views = self._here(flat, flat_views)
        if here.is_cuda and scratch is not None and scratch.device == here.device:
            self._lines.gather(scratch, scratch_views)
            torch.linalg.vector_norm(scratch.sub_(here), out=self._apart)
            torch.linalg.vector_norm(here, out=self._norm)
            self._scatter(here, here_views, numbers)
        else:
            self._overwrite_in_blocks(here, here_views)
            integers.scatter(numbers, list(self.inventory.whole.values()))
        self._measured(1.0)

    def replace(
        self, total: Tensor, divisor: float, by: Tensor, own: Tensor, own_views: list[Tensor], *, numbers: Tensor
    ) -> None:
        """Turn a sum into the average and overwrite the model, which is as it was collected; measure as
        :meth:`overwrite` does.

        The least passes over memory that this takes: what was collected becomes the difference, and then the average.

        Args:
            total: of all ranks, on the model's device.
            divisor: makes it an average.
            by: the same on the device: by a number of the host's, some devices multiply with its inverse.
            own: what this rank collected before it was weighted; overwritten with the average.
            own_views: its tensors.
            numbers: counters and integers.
        """
        torch.sub(total, own, alpha=divisor, out=own)
        torch.linalg.vector_norm(own, out=self._apart)
        torch.div(total, by, out=own)
        torch.linalg.vector_norm(own, out=self._norm)
        self._scatter(own, own_views, numbers)
        self._measured(divisor)

    def distance(self) -> float:
        """What the last commit measured: how far the model was from the average, relative to the average's norm; 0
        when nothing was, or it is not finite. Waits for the device to have come to it.
        """
        if not self._scale:
            return 0.0
        apart, norm = self._distance.numbers()
        return apart / self._scale / norm if math.isfinite(apart) and norm > 0.0 else 0.0

    def forget_distance(self) -> None:
        """As before the first commit."""
        self._scale = 0.0

    def _measured(self, scale: float) -> None:
        self._scale = scale
        self._distance.begin()

    def _scatter(self, here: Tensor, here_views: list[Tensor], numbers: Tensor) -> None:
        self._lines.scatter(here, here_views)
        integers.scatter(numbers, list(self.inventory.whole.values()))

    def _overwrite_in_blocks(self, here: Tensor, here_views: list[Tensor]) -> None:
        """A block's tensors stay in the processor's cache from one operation to the next."""
        distances, norms = [], []
        for elements, tensors in self._blocks:
            live, wanted = self._floating[tensors], here_views[tensors]
            torch._foreach_sub_(live, wanted)
            distances.append(_norm(live, here.dtype))
            torch._foreach_copy_(live, wanted)
            norms.append(torch.linalg.vector_norm(here[elements]))
        torch.linalg.vector_norm(torch.stack(distances), out=self._apart)
        torch.linalg.vector_norm(torch.stack(norms), out=self._norm)

    def correct(self, flat: Tensor, flat_views: list[Tensor], numbers: Tensor, alpha: float) -> None:
        """Add ``alpha`` times the way from the snapshot to a flat buffer, and measure that way's relative length.

        Counters grow by what they missed; other integers are overwritten.
        """
        snapshot, before = self._snapshot, self._snapshot_numbers
        assert snapshot is not None and before is not None
        here, _ = self._here(flat, flat_views)
        torch.linalg.vector_norm(here, out=self._norm)
        torch.sub(here, snapshot, out=snapshot)
        torch.linalg.vector_norm(snapshot, out=self._apart)
        torch._foreach_add_(self._floating, self.views(snapshot.mul_(alpha)))
        if self.inventory.variances:
            torch._foreach_clamp_min_(list(self.inventory.variances.values()), 0.0)
        counters = elements(self.inventory.counters)
        missed = numbers.clone()
        missed[:counters] += (self.numbers() - before)[:counters]
        integers.scatter(missed, list(self.inventory.whole.values()))
        self._measured(1.0)

    def _here(self, flat: Tensor, flat_views: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """A flat buffer on the model's device."""
        if not self.staged:
            return flat, flat_views
        return self._stage.copy_(flat, non_blocking=True), self._stage_views


def _blocks(tensors: Sequence[Tensor], limit: int | None) -> list[tuple[slice, slice]]:
    """Runs of tensors with at most ``limit`` elements (or one larger tensor): their elements, and their places."""
    blocks, start, first, end = [], 0, 0, 0
    for place, tensor in enumerate(tensors):
        if limit is not None and end > start and end + tensor.numel() - start > limit:
            blocks.append((slice(start, end), slice(first, place)))
            start, first = end, place
        end += tensor.numel()
    return [*blocks, (slice(start, end), slice(first, len(tensors)))]


def views(flat: Tensor, like: Sequence[Tensor]) -> list[Tensor]:
    """A flat buffer cut into tensors of given shapes."""
    parts = torch.split(flat, [tensor.numel() for tensor in like])
    return [part.view(tensor.shape) for part, tensor in zip(parts, like, strict=True)]


def elements(tensors: Mapping[str, Tensor]) -> int:
    """Elements of all tensors together."""
    return sum(tensor.numel() for tensor in tensors.values())


def saved_names(model: nn.Module) -> dict[str, str]:
    """The keys of the state dict, with the name of the tensor behind each: tied ones have two keys."""
    names = {id(tensor): name for name, tensor in [*model.named_parameters(), *model.named_buffers()]}
    return {
        key: names[id(tensor)]
        for key, tensor in model.state_dict(keep_vars=True).items()
        if isinstance(tensor, Tensor) and id(tensor) in names
    }


def _norm(tensors: list[Tensor], dtype: torch.dtype) -> Tensor:
    """L2 norm over many tensors: one fused operation, and a second over its results."""
    if not tensors:
        return torch.zeros((), dtype=dtype)
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(tensors, 2.0, dtype=dtype)))
    return norm


def is_finite(flat: Tensor) -> Tensor:
    """Whether a flat buffer is finite, bool, shape ``[]``: the sum of all magnitudes is if each is. Two operations."""
    finite: Tensor = torch.linalg.vector_norm(flat, 1) < math.inf
    return finite
