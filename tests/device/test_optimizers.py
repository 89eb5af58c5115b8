"""Optimizers whose state is on a device: steps with the mean gradient, and averaged moments, are those of a CPU."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import nn

from fdl_trainer.averaging import Averaging, ModelState, Share, Slots, Weighing, Wire
from fdl_trainer.averaging.slots import count_of

CPU = torch.device("cpu")
BATCH = 16
Maker = Callable[[Any], torch.optim.Optimizer]
MAKERS: dict[str, Maker] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
}


def capturable(parameters: Any) -> torch.optim.Optimizer:
    """Rates and step counts on the device, as for CUDA graphs."""
    return torch.optim.Adam(parameters, lr=torch.tensor(0.01, device="cuda"), capturable=True)


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 5))


def backward(model: nn.Module, seed: int, device: str, scaler: torch.amp.GradScaler | None = None) -> None:
    x = torch.randn(BATCH, 20, generator=torch.Generator().manual_seed(seed)).to(device)
    model.zero_grad()
    loss = model(x).pow(2).mean()
    torch.autograd.backward(loss if scaler is None else scaler.scale(loss))


def summed(wires: Sequence[Wire]) -> None:
    for parts in zip(*(wire.parts for wire in wires), strict=True):
        total = torch.stack(list(parts)).sum(0)
        for part in parts:
            part.copy_(total)


def stepped(device: str, buffers: torch.device | None, make: Maker) -> list[nn.Module]:
    """Models of three ranks, one of them idle, after three windows."""
    models = [net().to(device) for _ in range(3)]
    states = [ModelState(model, Averaging(gradients=True), buffers, make(model.parameters())) for model in models]
    shares = [Share(2, 2 * BATCH), Share(1, BATCH), Share(0, 0)]
    wires = []
    for rank, state in enumerate(states):
        state.capture()
        assert state.gradients is not None
        wires.append(state.new_wire(rank, 3, 4, state.gradients.room(3)))
        wires[-1].use(wires[-1].room)
    for window in range(3):
        for rank, (model, state, wire) in enumerate(zip(models, states, wires, strict=True)):
            for batch in range(shares[rank].batches):
                backward(model, 100 * window + 10 * rank + batch, device)
                assert state.gradients is not None
                state.gradients.add(BATCH, clip_norm=1.0)
            state.pack(wire, shares[rank])
        summed(wires)
        for state, wire in zip(states, wires, strict=True):
            state.commit(wire, shares)
    assert all(torch.equal(states[0].committed, state.committed) for state in states)
    return models


@pytest.mark.parametrize("place", ["device", "host"])
@pytest.mark.parametrize("name", MAKERS)
def test_steps_with_the_mean_gradient_are_those_of_a_cpu(name: str, place: str) -> None:
    wanted = stepped("cpu", None, MAKERS[name])
    found = stepped("cuda", CPU if place == "host" else None, MAKERS[name])
    for model in found:
        for mine, theirs, first in zip(model.parameters(), wanted[0].parameters(), found[0].parameters(), strict=True):
            assert torch.equal(mine, first)
            torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-3, atol=1e-4)


def test_rates_and_step_counts_on_the_device() -> None:
    found = stepped("cuda", None, capturable)
    wanted = stepped("cpu", None, lambda p: torch.optim.Adam(p, lr=0.01))
    for mine, theirs in zip(found[2].parameters(), wanted[2].parameters(), strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-3, atol=1e-4)


def test_an_overflow_is_found_on_the_device_and_left_out() -> None:
    model = net().cuda()
    state = ModelState(model, Averaging(gradients=True), None, MAKERS["fused"](model.parameters()))
    assert state.gradients is not None
    scaler = torch.amp.GradScaler("cuda", init_scale=2.0)
    backward(model, 1, "cuda", scaler)
    found = [state.gradients.add(BATCH, scaler=scaler)]
    sums = state.gradients.sums.clone()
    backward(model, 2, "cuda", scaler)
    model[0].weight.grad[3, 3] = float("nan")  # type: ignore[index,union-attr]
    found.append(state.gradients.add(BATCH, scaler=scaler))
    assert [bool(each > 0) for each in found if each is not None] == [False, True]
    assert torch.equal(state.gradients.sums, sums) and scaler.get_scale() == 1.0


def averaged(device: str, buffers: str, make: Maker) -> list[torch.optim.Optimizer]:
    """Optimizers of two ranks at different steps, after their moments were averaged."""
    optimizers, regions, slots = [], [], []
    shares = [Share(2, 20), Share(7, 70)]
    for rank, share in enumerate(shares):
        model = net().to(device)
        optimizers.append(make(model.parameters()))
        for step in range(share.batches):
            backward(model, 10 * rank + step, device)
            optimizers[-1].step()
        slots.append(Slots(list(model.parameters()), optimizers[-1], Weighing()))
        region = torch.zeros(slots[-1].room(count_of(slots[-1].mark)), device=buffers)
        slots[-1].pack(region, slots[-1].mark, share, torch.tensor(True, device=buffers))
        regions.append(region)
    for each in slots:
        each.take(regions[0] + regions[1], each.mark)
    return optimizers


@pytest.mark.parametrize("buffers", ["cuda", "cpu"])
@pytest.mark.parametrize("make", [*MAKERS.values(), capturable], ids=[*MAKERS, "capturable"])
def test_averaged_moments_are_those_of_a_cpu(make: Maker, buffers: str) -> None:
    on_cpu = (lambda p: torch.optim.Adam(p, lr=0.01)) if make is capturable else make
    for mine, theirs in zip(averaged("cuda", buffers, make), averaged("cpu", "cpu", on_cpu), strict=True):
        states = [optimizer.state_dict()["state"] for optimizer in (mine, theirs)]
        for place, state in states[1].items():
            for name, value in state.items():
                torch.testing.assert_close(states[0][place][name].cpu(), value, rtol=1e-3, atol=1e-5)
