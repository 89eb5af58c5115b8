"""One step on the mean gradient of all ranks' batches (``elche.average: gradients``).

In a window every rank adds up ``samples x gradient`` of its batches, all at the last committed parameters. The sums are
added up over the ranks in place of the parameters, and every rank, also one without a batch, takes the same step with
the sum over all samples: what one process would do with all these batches as one. The optimizer steps at the commit and
nowhere else, so that a failed reduce leaves parameters and optimizer as they were, and the same sums are sent again.

What a step depends on besides the gradient must be the same everywhere, too. A rank without a batch has not run the
script's schedule, so each sends what it would step with (:class:`Terms`), bit for bit, and all take the lowest rank's
that has trained, for this step only: their own stay to their schedules. A parameter that no batch reached has no
gradient anywhere, as in one process. All steps start from the committed parameters: what a script did to its own
meanwhile is undone.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from fdl_api.reasons import Ended
from fdl_trainer.averaging import integers
from fdl_trainer.averaging.inventory import ModelChangedError
from fdl_trainer.averaging.live import views
from fdl_trainer.averaging.weighing import Share
from fdl_trainer.ending import user_code

SCHEDULED = ("lr", "momentum", "betas", "weight_decay")
"""What schedules change in a parameter group."""
_BETAS = 2


@dataclass(frozen=True)
class Terms:
    """What a parameter group steps with, as far as schedules change it; NaN where it has no such thing.

    Attributes:
        lr: learning rate.
        momentum: of SGD and its kind.
        beta1: first decay of Adam and its kind, which cyclic schedules move.
        beta2: second decay.
        weight_decay: its weight decay.
    """

    lr: float
    momentum: float
    beta1: float
    beta2: float
    weight_decay: float

    @classmethod
    def of(cls, group: dict[str, Any]) -> "Terms":
        """A parameter group's."""
        beta1, beta2 = group["betas"] if len(group.get("betas", ())) == _BETAS else (None, None)
        found = (group.get("lr"), group.get("momentum"), beta1, beta2, group.get("weight_decay"))
        return cls(*(float("nan") if value is None else float(value) for value in found))

    def lend(self, group: dict[str, Any]) -> dict[str, Any]:
        """Put them into a group; returns what has to go back (``group.update``)."""
        before: dict[str, Any] = {}
        wanted: dict[str, Any] = {"lr": self.lr, "momentum": self.momentum, "weight_decay": self.weight_decay}
        if len(group.get("betas", ())) == _BETAS:
            wanted["betas"] = (self.beta1, self.beta2)
        for key, value in wanted.items():
            own = group.get(key)
            if own is None:
                continue
            before[key] = own
            # A learning rate in a tensor is one because the optimizer reads it on the device.
            group[key] = torch.full_like(own, value) if isinstance(own, Tensor) else value
        return before


_TERMS = len(fields(Terms))
_CLIP = 1


class Gradients:
    """The sums of one rank, and the step with everybody's.

    The region behind a wire buffer's tail holds for each parameter whether any batch reached it, and then for each rank
    its terms: those of each parameter group, and the largest norm of the gradient (NaN: any).

    Args:
        parameters: trained ones, in the order of the flat buffers.
        optimizer: of them.
        dtype: of the flat buffers.

    Attributes:
        sums: samples x gradient, flat, on the parameters' device.
    """

    def __init__(self, parameters: Sequence[Tensor], optimizer: torch.optim.Optimizer, dtype: torch.dtype) -> None:
        self._parameters = list(parameters)
        self._optimizer = optimizer
        self._groups = len(optimizer.param_groups)
        self._stepping = False
        self._reached = [False] * len(self._parameters)
        self._clip_norm: float | None = None
        count = sum(parameter.numel() for parameter in self._parameters)
        self.sums = torch.zeros(count, dtype=dtype, device=self._parameters[0].device)
        self._views = views(self.sums, self._parameters)
        optimizer.register_step_pre_hook(self._refuse_steps)

    def room(self, ranks: int) -> int:
        """Elements of the region."""
        return len(self._parameters) + ranks * self._numbers * integers.LANES

    @property
    def _numbers(self) -> int:
        return self._groups * _TERMS + _CLIP

    # --- in a window ------------------------------------------------------------------------------------

    @torch.no_grad()
    def add(
        self, samples: int, *, clip_norm: float | None = None, scaler: torch.amp.GradScaler | None = None
    ) -> Tensor | None:
        """Take in the parameters' gradients of a batch's mean loss.

        Args:
            samples: of the batch.
            clip_norm: largest norm of the mean gradient of the window.
            scaler: the gradients are multiplied by its scale; those that overflowed are left out.

        Returns:
            With a scaler: above zero where they overflowed, shape ``[]``, on the device.

        Raises:
            RunEndedError: a gradient is sparse.
        """
        reached = [place for place, parameter in enumerate(self._parameters) if parameter.grad is not None]
        grads = [grad for place in reached if (grad := self._parameters[place].grad) is not None]
        if any(grad.layout is not torch.strided for grad in grads):
            raise user_code(
                Ended.SCRIPT_RAISED,
                "The model has sparse gradients, and spec.elche.average is gradients: their mean is dense. Make the "
                "embedding with sparse=False, or set spec.elche.average to parameters.",
            )
        overflowed = None
        if scaler is not None and scaler.is_enabled() and grads:
            scaler.unscale_(self._optimizer)
            # A gradient without elements has no largest one.
            filled = [grad for grad in grads if grad.numel()] or [torch.zeros(1, device=grads[0].device)]
            overflowed = ~torch.isfinite(torch.stack(torch._foreach_norm(filled, float("inf")))).all()
            for grad in grads:
                grad.masked_fill_(overflowed, 0.0)
            scaler.update()
        for place in reached:
            self._reached[place] = True
        if grads:
            torch._foreach_add_([self._views[place] for place in reached], grads, alpha=float(samples))
        self._clip_norm = clip_norm
        return overflowed

    def clear(self) -> None:
        """Forget the sums: they are in a commit, or void."""
        self.sums.zero_()
        self._reached = [False] * len(self._parameters)

    # --- between windows --------------------------------------------------------------------------------

    @torch.no_grad()
    def pack(self, region: Tensor, rank: int, share: Share, finite: Tensor) -> None:
        """Write this rank's part into the region.

        Args:
            region: shape ``[room(ranks)]``; overwritten.
            rank: this rank's place in the epoch.
            share: what it did in the window.
            finite: whether its sums are, bool, shape ``[]``, on the region's device.

        Raises:
            ModelChangedError: the optimizer has other parameter groups than at the start.
        """
        groups = self._optimizer.param_groups
        if len(groups) != self._groups:
            raise ModelChangedError(
                f"The optimizer has {len(groups)} parameter groups and had {self._groups} in session.setup: the other "
                "ranks do not know the new one. Make all groups in the optimizer factory."
            )
        reached, numbers = self._split(region)
        region.zero_()
        if not share.samples:
            return
        reached.copy_(torch.tensor(self._reached, dtype=region.dtype)).mul_(finite)
        own = [getattr(terms, field.name) for terms in map(Terms.of, groups) for field in fields(Terms)]
        own.append(float("nan") if self._clip_norm is None else float(self._clip_norm))
        bits = torch.tensor([struct.unpack("<q", struct.pack("<d", value))[0] for value in own], dtype=torch.int64)
        lanes = torch.empty(numbers.shape[1], dtype=region.dtype)
        integers.encode(bits, lanes)
        numbers[rank].copy_(lanes)

    @torch.no_grad()
    def step(self, mean: Tensor, region: Tensor, shares: Sequence[Share]) -> None:
        """Take the step, and forget the sums.

        Args:
            mean: mean gradient over all samples of the window, flat.
            region: reduced.
            shares: of all ranks; somebody has samples.
        """
        reached, numbers = self._split(region)
        leader = next(rank for rank, share in enumerate(shares) if share.samples)
        bits = integers.decode(numbers[leader].cpu()).tolist()
        values = [struct.unpack("<d", struct.pack("<q", value))[0] for value in bits]
        self.sums.copy_(mean)
        given = [count > 0 for count in reached.tolist()]
        for parameter, view, wanted in zip(self._parameters, self._views, given, strict=True):
            parameter.grad = _like(view, parameter) if wanted else None
        if not math.isnan(values[-1]):
            clipped = [parameter for parameter, wanted in zip(self._parameters, given, strict=True) if wanted]
            torch.nn.utils.clip_grad_norm_(clipped, values[-1])
        terms = [Terms(*values[i * _TERMS : (i + 1) * _TERMS]) for i in range(self._groups)]
        self._step_with(terms)
        for parameter in self._parameters:
            parameter.grad = None
        self.clear()

    def _step_with(self, terms: Sequence[Terms]) -> None:
        groups = self._optimizer.param_groups
        own = [each.lend(group) for each, group in zip(terms, groups, strict=True)]
        self._stepping = True
        try:
            self._optimizer.step()
        finally:
            self._stepping = False
            for group, before in zip(groups, own, strict=True):
                group.update(before)

    def _refuse_steps(self, *_: Any) -> None:
        if not self._stepping:
            raise user_code(
                Ended.SCRIPT_RAISED,
                "The script called optimizer.step, and spec.elche.average is gradients: the optimizer steps once a "
                "window with the mean of all ranks. Call session.step(loss) for each batch instead, or set "
                "spec.elche.average to parameters.",
            )

    def _split(self, region: Tensor) -> tuple[Tensor, Tensor]:
        count = len(self._parameters)
        return region[:count], region[count:].view(-1, self._numbers * integers.LANES)


def _like(gradient: Tensor, parameter: Tensor) -> Tensor:
    """A gradient of the parameter's type and memory format, as fused optimizers want it."""
    if gradient.dtype is parameter.dtype and gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)
