"""The optimizer's step behind a gradient scaler (fp16), which leaves steps out whose gradients overflowed."""

from typing import Any

import torch
from torch import nn

REASON = "the fp16 gradient scaler left the step out, since gradients were infinite or not a number"


def optimizer_step(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    clip_norm: float | None = None,
    scaler: torch.amp.GradScaler | None = None,
) -> bool | torch.Tensor:
    """Clip the gradients, let the optimizer step, and let the scaler learn from it.

    Args:
        model: whose gradients are there, multiplied by the scaler's factor if there is a scaler.
        optimizer: of its parameters.
        clip_norm: largest norm of the step's gradient, in its true scale.
        scaler: of this rank; None: gradients are in their true scale.

    Returns:
        Whether the step was left out. An optimizer that looks for the overflow itself, on the device (torch's fused
        ones), gives it as a tensor there, which is above zero then: to read it would wait for the device.
    """
    if scaler is not None and clip_norm is not None:
        scaler.unscale_(optimizer)
    if clip_norm is not None:
        torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
    if scaler is None:
        optimizer.step()
        return False
    left_out: bool | torch.Tensor = True

    def stepped(taken: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        nonlocal left_out
        found = getattr(taken, "found_inf", None)  # the scaler lends it to optimizers that look for themselves
        left_out = found if isinstance(found, torch.Tensor) else False

    # The scale before and after would tell it, too, but reading it waits for the device, twice a batch.
    hook = optimizer.register_step_post_hook(stepped)
    try:
        scaler.step(optimizer)
    finally:
        hook.remove()
    scaler.update()
    return left_out
