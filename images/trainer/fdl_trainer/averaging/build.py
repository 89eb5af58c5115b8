"""A run's :class:`ModelState`: its settings, the place of its buffers, and the check that they fit."""

import inspect
from collections.abc import Callable

import torch
from torch import nn

from fdl_api.run import ElcheSpec, Mode
from fdl_trainer.averaging import memory, slots
from fdl_trainer.averaging.inventory import UnsupportedModelError, take
from fdl_trainer.averaging.live import elements
from fdl_trainer.averaging.settings import Averaging
from fdl_trainer.averaging.state import ModelState
from fdl_trainer.loader.memory import free_bytes

CPU = torch.device("cpu")


def build(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    knobs: ElcheSpec,
    mode: Mode,
    device: torch.device,
    *,
    sharers: int = 1,
    make: Callable[[nn.Module, Averaging, torch.device, torch.optim.Optimizer], ModelState] = ModelState,
) -> ModelState:
    """The state of a model that is on its device.

    In NCCL modes the flat buffers live there too, in CPU modes in the host's memory.

    Args:
        model: the model.
        optimizer: of its parameters.
        knobs: the run's settings.
        mode: the run's mode.
        device: the model's device.
        sharers: ranks that share the host's memory.
        make: makes it.

    Raises:
        UnsupportedModelError: the model cannot be averaged, or the optimizer cannot step with a mean gradient.
        NotEnoughMemoryError: its buffers do not fit.
    """
    averaging = Averaging.of(knobs)
    if averaging.gradients and _needs_closure(optimizer):
        raise UnsupportedModelError(
            f"{type(optimizer).__name__} computes gradients anew within a step, and spec.elche.average is gradients: a "
            "window has one mean gradient. Use another optimizer, or set spec.elche.average to parameters."
        )
    place = device if mode.is_nccl else CPU
    staged = place.type != device.type
    inventory = take(model)
    need = memory.demand(
        averaging,
        element=inventory.dtype.itemsize,
        staged=staged,
        overlap=mode is Mode.CPU_ASYNC,
        slots=slots.expected(optimizer) if knobs.average_state_every else 0,
    )
    count = elements(inventory.floating)
    memory.require(count, need, free_bytes(place, sharers), free_bytes(device) if staged else None)
    return make(model, averaging, place, optimizer)


def _needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it steps by a function of the script's only, as LBFGS does."""
    parameter = inspect.signature(type(optimizer).step).parameters.get("closure")
    return parameter is not None and parameter.default is inspect.Parameter.empty
