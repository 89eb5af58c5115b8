"""What the tests of averages share: an all-reduce without processes."""

from collections.abc import Sequence

import torch
from torch import nn

from fdl_trainer.averaging import Averaging, ModelState, Share, Wire


def states_of(models: Sequence[nn.Module], averaging: Averaging | None = None) -> list[ModelState]:
    """States that begin with the first model's values, as after the exchange at a start."""
    states = [ModelState(model, averaging) for model in models]
    states[0].capture()
    gift = states[0].gift().clone()
    for state in states[1:]:
        state.adopt(gift)
    return states


def packed(states: Sequence[ModelState], shares: Sequence[Share], *, keep_snapshot: bool = False) -> list[Wire]:
    """Everybody's wire buffer after the reduce: the sum of all, added in the order of the ranks."""
    wires = [state.new_wire(rank, len(states), 1) for rank, state in enumerate(states)]
    for state, wire, share in zip(states, wires, shares, strict=True):
        state.pack(wire, share, keep_snapshot=keep_snapshot)
    for number in range(len(wires[0].parts)):
        total = wires[0].parts[number].clone()
        for wire in wires[1:]:
            total += wire.parts[number]
        for wire in wires:
            wire.parts[number].copy_(total)
    return wires


def window(states: Sequence[ModelState], shares: Sequence[Share]) -> None:
    """One whole window."""
    for state, wire in zip(states, packed(states, shares), strict=True):
        state.commit(wire, shares)


def fill(model: nn.Module, value: float) -> None:
    """Set all parameters."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
