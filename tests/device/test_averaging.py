"""Averages of models on a device: buffers there or on the host, the same numbers as on a CPU, no needless wait."""

import pytest
import torch
from torch import nn

from fdl_trainer.averaging import Averaging, ModelState, Share, Weighing, Weights, Wire
from fdl_trainer.averaging.lines import Lines
from fdl_trainer.averaging.live import views
from fdl_trainer.averaging.outer import Outer, OuterStep

SHARES = [Share(3, 24), Share(5, 40)]
SETTINGS = {
    "plain": Averaging(),
    "samples": Averaging(),
    "normalized": Averaging(Weighing(Weights.NORMALIZED)),
    "bf16": Averaging(bf16_wire=True),
    "nesterov": Averaging(outer=OuterStep(Outer.NESTEROV, 0.7, 0.9)),
}
CPU = torch.device("cpu")


def net(name: str = "samples") -> nn.Module:
    torch.manual_seed(1)
    norm = nn.Identity() if name == "plain" else nn.BatchNorm1d(300)
    return nn.Sequential(nn.Linear(100, 300), norm, nn.Linear(300, 10))


def perturb(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in [*model.parameters(), *model.buffers()]:
            if tensor.is_floating_point():
                tensor.add_(0.01 * torch.rand(tensor.shape, generator=generator).to(tensor.device))
            else:
                tensor.add_(seed)


def reduce(wires: list[Wire]) -> None:
    """The sum of all, in the order of the ranks."""
    for number in range(len(wires[0].parts)):
        total = wires[0].parts[number] + wires[1].parts[number]
        for wire in wires:
            wire.parts[number].copy_(total)


def windows(device: str, buffers: torch.device | None, name: str, *, delta: bool = False) -> list[ModelState]:
    """Two ranks' states after three windows."""
    models = [net(name).to(device) for _ in range(2)]
    states = [ModelState(model, SETTINGS[name], buffers) for model in models]
    for state in states:
        state.capture()
    wires = [state.new_wire(rank, 2, 4) for rank, state in enumerate(states)]
    for window in range(3):
        for rank, (model, state, wire) in enumerate(zip(models, states, wires, strict=True)):
            perturb(model, 10 * window + rank)
            state.pack(wire, SHARES[rank], keep_snapshot=delta)
            wire.write_tail([float(rank), 0.0, 1.0, 2.0], [-1.0] * 4)
        reduce(wires)
        for model, state, wire in zip(models, states, wires, strict=True):
            assert wire.read_tail() == [1.0, 0.0, 2.0, 4.0]
            if delta:
                perturb(model, 5)
            state.commit(wire, SHARES, delta=delta)
    return states


@pytest.mark.parametrize("delta", [False, True], ids=["overwrite", "delta"])
@pytest.mark.parametrize("place", ["device", "host"])
@pytest.mark.parametrize("name", SETTINGS)
def test_the_numbers_are_those_of_a_cpu(name: str, place: str, delta: bool) -> None:
    wanted = windows("cpu", None, name, delta=delta)
    found = windows("cuda", CPU if place == "host" else None, name, delta=delta)
    assert torch.equal(found[0].committed, found[1].committed)
    assert found[0].committed.is_pinned() == (place == "host")
    # Sums over many elements decide nothing here, so that only roundings of single operations may differ.
    torch.testing.assert_close(found[0].committed.cpu(), wanted[0].committed, rtol=1e-5, atol=1e-6)
    assert found[0].divergence() == pytest.approx(wanted[0].divergence(), rel=1e-3)
    for key, tensor in wanted[1].tensors().items():
        torch.testing.assert_close(found[1].tensors()[key], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["plain", "samples", "normalized", "nesterov"])
def test_nothing_of_a_window_waits_for_the_device(name: str) -> None:
    model = net(name).cuda()
    state = ModelState(model, SETTINGS[name])
    state.capture()
    wire = state.new_wire(0, 2, 4)
    for attempt in range(2):  # the first one allocates
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error" if attempt else "default")
        try:
            state.pack(wire, SHARES[0])
            wire.write_tail([1.0] * 4, [2.0] * 4)
            state.commit(wire, SHARES)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert wire.read_tail() == [1.0] * 4 and state.divergence() >= 0.0


@pytest.mark.parametrize("name", ["plain", "samples"])
def test_a_model_that_is_not_finite_is_found_on_the_device(name: str) -> None:
    for buffers in (None, CPU):
        model = net(name).cuda()
        state = ModelState(model, None, buffers)
        state.capture()
        with torch.no_grad():
            model[0].bias[7] = float("inf")  # type: ignore[index]
        wire = state.new_wire(0, 2, 2)
        state.pack(wire, SHARES[0])
        wire.write_tail([1.0, 1.0], [0.0, 16.0])
        assert not wire.was_finite and wire.read_tail() == [0.0, 16.0]
        assert wire.floating is not None and not wire.floating.any() and not wire.growth.any()


def test_many_tensors_are_joined_and_split_to_the_bit() -> None:
    generator = torch.Generator("cuda").manual_seed(2)
    tensors = [torch.randn(1 + 37 * number % 5000, device="cuda", generator=generator) for number in range(700)]
    lines, flat = Lines(tensors, torch.float32), torch.zeros(sum(map(torch.numel, tensors)), device="cuda")
    lines.gather(flat, views(flat, tensors))
    assert torch.equal(flat, torch.cat(tensors))
    wanted = [2.0 * tensor for tensor in tensors]
    lines.scatter(flat.mul_(2.0), views(flat, tensors))
    assert all(map(torch.equal, tensors, wanted))


def test_a_model_whose_memory_has_moved_is_averaged_where_it_is() -> None:
    models = [nn.Conv2d(8, 8, 3).cuda() for _ in range(2)]
    states = [ModelState(model) for model in models]
    wires = [state.new_wire(rank, 2, 0) for rank, state in enumerate(states)]
    for number in range(2):
        for model, state, wire in zip(models, states, wires, strict=True):
            if number:
                model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            with torch.no_grad():
                model.weight.fill_(number + wire.rank)
            state.pack(wire, SHARES[wire.rank])
        reduce(wires)
        for state, wire in zip(states, wires, strict=True):
            state.commit(wire, SHARES)
        assert all(bool((model.weight == number + 0.625).all()) for model in models)
