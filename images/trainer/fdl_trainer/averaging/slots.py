"""The optimizer's own tensors, averaged every so many windows (``elche.averageStateEvery``).

A *slot* is a name under which an optimizer keeps a floating tensor of its parameter's shape: ``momentum_buffer`` of
SGD, ``exp_avg`` and ``exp_avg_sq`` of Adam. Which ones there are shows only when the optimizer has stepped. So that
ranks can never disagree about the length of a buffer, each tells in the tail of every window which it holds
(:attr:`Slots.mark`), and what most of them said at the last commit holds for the next
(:attr:`fdl_trainer.tail.Tail.slots`): that is replicated state. Whoever holds others then, or none, adds nothing and
takes nothing.

Each slot of each parameter travels with its weight, so that a parameter which only some ranks have trained is divided
by those ranks' weights alone.

Step counts stay each rank's own. Moments that start from zero are smaller than what they estimate by ``1 - beta^t`` at
their step t, which is small just after a start; ranks at different steps are brought to one scale before they are
added, and each takes the average at its own: ``m_i <- (1 - beta^t_i) sum(w_j m_j / (1 - beta^t_j)) / sum(w_j)`` (the
bias correction of Kingma and Ba 2015, arXiv 1412.6980, section 3).
"""

import hashlib
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fdl_trainer.averaging.live import views
from fdl_trainer.averaging.weighing import Share, Weighing

log = logging.getLogger(__name__)

MAX_SLOTS = 15
"""Most names that are averaged; what has more is left alone."""
_COUNT_BITS, _HASH_BITS = 4, 20
_DECAYS = {"exp_avg": 0, "exp_avg_sq": 1, "max_exp_avg_sq": 1}
"""Moments that start from zero, with the place of their decay in ``betas``."""


def mark_of(names: Sequence[str]) -> int:
    """A set of names in 24 bits, which fp32 carries exactly: their number and a digest. 0: none."""
    if not 0 < len(names) <= MAX_SLOTS:
        return 0
    digest = int.from_bytes(hashlib.sha256("\n".join(names).encode()).digest()[:4], "big")
    return (digest >> (32 - _HASH_BITS)) << _COUNT_BITS | len(names)


def count_of(mark: int) -> int:
    """How many names a mark is of."""
    return mark & MAX_SLOTS


def expected(optimizer: torch.optim.Optimizer) -> int:
    """Slots to count with before the optimizer has stepped: two as Adam has, or three with ``amsgrad``."""
    return 2 + any(bool(group.get("amsgrad")) for group in optimizer.param_groups)


@dataclass(frozen=True)
class _Entry:
    """One slot of one parameter: its place among the weights, its tensor, and the scale of what it holds."""

    place: int
    tensor: Tensor
    scale: float


class Slots:
    """An optimizer's slots, and the way to and from the region of a wire buffer that is theirs.

    The region holds every name's values for all parameters, one after the other, and then every name's weights.

    Args:
        parameters: trained ones, in the order of the flat buffers.
        optimizer: of them; its state may be replaced at any time.
        weighing: how ranks weigh.
    """

    def __init__(self, parameters: Sequence[Tensor], optimizer: torch.optim.Optimizer, weighing: Weighing) -> None:
        self._parameters = list(parameters)
        self._optimizer = optimizer
        self._weighing = weighing
        self._said = False

    def names(self) -> list[str]:
        """Names of the slots that this rank holds, in order."""
        found: set[str] = set()
        others: set[str] = set()
        for parameter in self._parameters:
            for name, value in self._state(parameter).items():
                # A parameter without dimensions has the shape of a step count: others tell what is a slot.
                (found if parameter.dim() and _fits(value, parameter) else others).add(str(name))
        self._say(sorted(found), sorted(others - found))
        return sorted(found)

    @property
    def mark(self) -> int:
        """:func:`mark_of` its names."""
        return mark_of(self.names())

    def room(self, count: int) -> int:
        """Elements of the region for so many names."""
        return count * (sum(parameter.numel() for parameter in self._parameters) + len(self._parameters))

    def pack(self, region: Tensor, mark: int, share: Share, finite: Tensor) -> None:
        """Write this rank's part into the region: zeros, unless it has work, holds those slots, and all is finite.

        Args:
            region: shape ``[room(count_of(mark))]``; overwritten.
            mark: the slots that are averaged in this window.
            share: what this rank did in it.
            finite: whether its model is finite, bool, shape ``[]``, on the region's device.
        """
        names = self.names()
        region.zero_()
        factor = self._weighing.slot_factor(share)
        if mark_of(names) != mark or not factor:
            return
        values, weights = self._split(region, count_of(mark))
        entries = [entry for entry in self._entries(names) if entry.scale > 0.0]
        if not entries:
            return
        targets = self._targets(values, entries)
        torch._foreach_copy_(targets, [entry.tensor for entry in entries])
        torch._foreach_mul_(targets, [factor / entry.scale for entry in entries])
        own = torch.zeros(weights.numel(), dtype=weights.dtype)
        own[[entry.place for entry in entries]] = factor
        weights.copy_(own)
        # The model may be finite and they not; and zero times what is not finite is not zero.
        usable = finite & torch.isfinite(values.sum())
        torch.where(usable, region, torch.zeros((), dtype=region.dtype, device=region.device), out=region)

    def take(self, region: Tensor, mark: int) -> None:
        """Put the averages into the optimizer's state, where this rank holds those slots; of the reduced region."""
        names = self.names()
        if mark_of(names) != mark:
            return
        values, weights = self._split(region, count_of(mark))
        sums = weights.tolist()
        entries = [entry for entry in self._entries(names) if sums[entry.place] > 0.0]
        if not entries:
            return
        targets = self._targets(values, entries)
        torch._foreach_mul_(targets, [entry.scale / sums[entry.place] for entry in entries])
        torch._foreach_copy_([entry.tensor for entry in entries], targets)

    def _state(self, parameter: Tensor) -> dict[str, Any]:
        return self._optimizer.state.get(parameter) or {}  # the state makes entries for what is looked up by []

    def _split(self, region: Tensor, count: int) -> tuple[Tensor, Tensor]:
        weights = count * len(self._parameters)
        return region[: region.numel() - weights], region[region.numel() - weights :]

    def _targets(self, values: Tensor, entries: Sequence[_Entry]) -> list[Tensor]:
        all_views = views(values, self._parameters * (values.numel() // max(1, self._elements())))
        return [all_views[entry.place] for entry in entries]

    def _elements(self) -> int:
        return sum(parameter.numel() for parameter in self._parameters)

    def _entries(self, names: Sequence[str]) -> list[_Entry]:
        """What this rank holds of these slots."""
        betas = {
            id(parameter): group["betas"]
            for group in self._optimizer.param_groups
            if "betas" in group
            for parameter in group["params"]
        }
        places: list[int] = []
        tensors: list[Tensor] = []
        decays: list[Any] = []
        steps: list[Any] = []
        for row, name in enumerate(names):
            for column, parameter in enumerate(self._parameters):
                state = self._state(parameter)
                value = state.get(name)
                if not isinstance(value, Tensor) or not _fits(value, parameter):
                    continue
                warms = name in _DECAYS and id(parameter) in betas and "step" in state
                places.append(row * len(self._parameters) + column)
                tensors.append(value)
                decays.append(betas[id(parameter)][_DECAYS[name]] if warms else 0.0)
                steps.append(state["step"] if warms else 1.0)
        scales = [1.0 - decay**step for decay, step in zip(_numbers(decays), _numbers(steps), strict=True)]
        return [_Entry(*entry) for entry in zip(places, tensors, scales, strict=True)]

    def _say(self, slots: list[str], others: list[str]) -> None:
        if self._said or not slots:
            return
        self._said = True
        if len(slots) > MAX_SLOTS:
            log.warning("the optimizer keeps %d tensors a parameter; its state is not averaged", len(slots))
            return
        rest = f"; each rank's own stay {', '.join(others)}" if others else ""
        log.info("of the optimizer's state %s are averaged%s", ", ".join(slots), rest)


def _fits(value: Any, parameter: Tensor) -> bool:
    return (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and value.layout is torch.strided
        and value.shape == parameter.shape
    )


def _numbers(values: Sequence[Any]) -> list[float]:
    """Numbers, and scalars on any device, as the host's: it waits for the device at most once."""
    away = [value.reshape(()).float() for value in values if isinstance(value, Tensor) and value.device.type != "cpu"]
    host = iter(torch.stack(away).tolist() if away else [])
    return [
        next(host) if isinstance(value, Tensor) and value.device.type != "cpu" else float(value) for value in values
    ]
