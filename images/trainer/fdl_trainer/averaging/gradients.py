"""One step on the mean gradient of all ranks' batches (``elche.average: gradients``).

In a window every rank adds up ``samples x gradient`` of its batches, all at the last committed parameters. The sums are
added up over the ranks in place of the parameters, and every rank, also one without a batch, takes the same step with
the sum over all samples: what one process would do with all these batches as one. The optimizer steps at the commit and
nowhere else, so that a failed reduce leaves parameters and optimizer as they were, and the same sums are sent again.

What a step depends on besides the gradient must be the same everywhere, too. A rank without a batch has not run the
script's schedule, so each sends what it would step with (:mod:`fdl_trainer.averaging.options`), bit for bit, and all
take the lowest rank's that has trained, for this step only: their own stay to their schedules. A parameter that no
batch reached has no gradient anywhere, as in one process. All steps start from the committed parameters: what a script
did to its own meanwhile is undone.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fdl_api.reasons import Ended
from fdl_trainer.averaging import integers, options
from fdl_trainer.averaging.inventory import ModelChangedError
from fdl_trainer.averaging.live import views
from fdl_trainer.averaging.options import Options
from fdl_trainer.averaging.weighing import Share
from fdl_trainer.ending import user_code

_CLIP = 1


class Gradients:
    """The sums of one rank, and the step with everybody's.

    The region behind a wire buffer's tail holds for each parameter whether any batch reached it, and then for each rank
    what it steps with: the options of each parameter group, and the largest norm of the gradient (none: any).

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
        self._options = [Options.of(group) for group in optimizer.param_groups]
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
        return sum(group.count for group in self._options) + _CLIP

    @property
    def digest(self) -> int:
        """Equal on all ranks whose parts of a region mean the same: they have the same options."""
        return options.digest(self._options)

    def __str__(self) -> str:
        return "; ".join(f"parameter group {number}: {group}" for number, group in enumerate(self._options))

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
            ModelChangedError: the optimizer has other parameter groups or options than at the start.
        """
        groups = self._optimizer.param_groups
        if len(groups) != len(self._options):
            raise ModelChangedError(
                f"The optimizer has {len(groups)} parameter groups and had {len(self._options)} in session.setup: "
                "the other ranks do not know the new one. Make all groups in the optimizer factory."
            )
        reached, numbers = self._split(region)
        region.zero_()
        if not share.samples:
            return
        reached.copy_(torch.tensor(self._reached, dtype=region.dtype)).mul_(finite)
        own = [number for known, group in zip(self._options, groups, strict=True) for number in known.read(group)]
        bits = torch.tensor(options.encode([*own, self._clip_norm]), dtype=torch.int64)
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
        *values, clip_norm = options.decode(integers.decode(numbers[leader].cpu()).tolist())
        self.sums.copy_(mean)
        given = [count > 0 for count in reached.tolist()]
        for parameter, view, wanted in zip(self._parameters, self._views, given, strict=True):
            parameter.grad = _like(view, parameter) if wanted else None
        if clip_norm is not None:
            clipped = [parameter for parameter, wanted in zip(self._parameters, given, strict=True) if wanted]
            torch.nn.utils.clip_grad_norm_(clipped, clip_norm)
        self._step_with(values)
        for parameter in self._parameters:
            parameter.grad = None
        self.clear()

    def _step_with(self, values: Sequence[float | None]) -> None:
        loans = []
        for known, group in zip(self._options, self._optimizer.param_groups, strict=True):
            loans.append((group, known.lend(group, values[: known.count])))
            values = values[known.count :]
        self._stepping = True
        try:
            self._optimizer.step()
        finally:
            self._stepping = False
            for group, loan in loans:
                options.give_back(group, loan)

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
