"""Averages of models on a device: buffers there or on the host, the same numbers as on a CPU, no needless wait."""

import pytest
import torch
from torch import nn

from fdl_trainer.averaging import Averaging, ModelState, Share, Weighing, Weights, Wire
from fdl_trainer.averaging.outer import Outer, OuterStep

SHARES = [Share(3, 24), Share(5, 40)]
SETTINGS = {
    "samples": Averaging(),
    "normalized": Averaging(Weighing(Weights.NORMALIZED)),
    "bf16": Averaging(bf16_wire=True),
    "nesterov": Averaging(outer=OuterStep(Outer.NESTEROV, 0.7, 0.9)),
}
CPU = torch.device("cpu")


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(100, 300), nn.BatchNorm1d(300), nn.Linear(300, 10))


def perturb(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in [*model.parameters(), model[1].running_mean, model[1].running_var]:  # type: ignore[index]
            tensor.add_(0.01 * torch.rand(tensor.shape, generator=generator).to(tensor.device))
        model[1].num_batches_tracked.add_(seed)  # type: ignore[index]


def reduce(wires: list[Wire]) -> None:
    """The sum of all, in the order of the ranks."""
    for number in range(len(wires[0].parts)):
        total = wires[0].parts[number] + wires[1].parts[number]
        for wire in wires:
            wire.parts[number].copy_(total)


def windows(
    device: str, buffers: torch.device | None, averaging: Averaging, *, delta: bool = False
) -> list[ModelState]:
    """Two ranks' states after three windows."""
    models = [net().to(device) for _ in range(2)]
    states = [ModelState(model, averaging, buffers) for model in models]
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
    wanted = windows("cpu", None, SETTINGS[name], delta=delta)
    found = windows("cuda", CPU if place == "host" else None, SETTINGS[name], delta=delta)
    assert torch.equal(found[0].committed, found[1].committed)
    assert found[0].committed.is_pinned() == (place == "host")
    # Sums over many elements decide nothing here, so that only roundings of single operations may differ.
    torch.testing.assert_close(found[0].committed.cpu(), wanted[0].committed, rtol=1e-5, atol=1e-6)
    assert found[0].divergence() == pytest.approx(wanted[0].divergence(), rel=1e-3)
    for key, tensor in wanted[1].tensors().items():
        torch.testing.assert_close(found[1].tensors()[key], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["samples", "normalized", "nesterov"])
def test_nothing_of_a_window_waits_for_the_device(name: str) -> None:
    model = net().cuda()
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


def test_a_model_that_is_not_finite_is_found_on_the_device() -> None:
    for buffers in (None, CPU):
        model = net().cuda()
        state = ModelState(model, None, buffers)
        state.capture()
        with torch.no_grad():
            model[0].bias[7] = float("inf")  # type: ignore[index]
        wire = state.new_wire(0, 2, 2)
        state.pack(wire, SHARES[0])
        wire.write_tail([1.0, 1.0], [0.0, 16.0])
        assert not wire.was_finite and wire.read_tail() == [0.0, 16.0]
        assert wire.floating is not None and not wire.floating.any() and not wire.growth.any()
