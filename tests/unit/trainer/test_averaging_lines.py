"""Models copied as lines of memory, and commits that use what was collected: the same bits as the plain way."""

import pytest
import torch
from torch import nn

from fdl_trainer.averaging import Averaging, ModelState, Share, Weighing, Weights
from fdl_trainer.averaging.lines import Lines
from fdl_trainer.averaging.live import views
from fdl_trainer.averaging.outer import Outer, OuterStep
from tests.unit.trainer.averaging_model import fill, packed, window

SHARES = [Share(3, 24), Share(5, 40)]


def net() -> nn.Module:
    torch.manual_seed(4)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.Linear(9, 7), nn.Linear(7, 7, bias=False))


def as_on_a_device(model: nn.Module, averaging: Averaging | None = None) -> ModelState:
    """A state that goes a device's way with a processor's memory."""
    state = ModelState(model, averaging)
    live = state._model
    live._in_cache = False
    live._lines = Lines(live._floating, torch.float32)
    state._keeps_own = state._has_one_divisor()
    return state


def trained(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))


@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("kind", ["usual", "channels last", "narrow", "empty"])
def test_tensors_of_every_kind_come_to_the_flat_buffer_and_back(kind: str, joined: bool) -> None:
    tensors = [nn.Parameter(torch.randn(2, 3, 4, 5)), torch.randn(7), torch.randn(()), nn.Parameter(torch.randn(3, 2))]
    if kind == "channels last":
        tensors[0] = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    elif kind == "narrow":
        tensors[1] = torch.randn(7).to(torch.bfloat16)
    elif kind == "empty":
        tensors[1] = torch.zeros(0)
    lines = Lines(tensors, torch.float32, joined=joined)
    wanted = [tensor.detach().float().reshape(-1).clone() for tensor in tensors]
    flat = torch.zeros(sum(part.numel() for part in wanted))
    with torch.no_grad():
        lines.gather(flat, views(flat, tensors))
        assert torch.equal(flat, torch.cat(wanted))
        lines.scatter(flat.mul_(2.0), views(flat, tensors))
    assert all(
        torch.equal(tensor.float().reshape(-1), 2.0 * part) for tensor, part in zip(tensors, wanted, strict=True)
    )


def test_more_tensors_than_one_kernel_takes_come_back_to_the_bit() -> None:
    tensors = [nn.Parameter(torch.randn(1 + number % 7)) for number in range(200)]
    lines, flat = Lines(tensors, torch.float32), torch.zeros(sum(tensor.numel() for tensor in tensors))
    with torch.no_grad():
        lines.gather(flat, views(flat, tensors))
        wanted = [3.0 * tensor for tensor in tensors]
        lines.scatter(flat.mul_(3.0), views(flat, tensors))
    assert all(map(torch.equal, tensors, wanted)) and all(tensor._version > 0 for tensor in tensors)


def test_memory_that_moved_is_noticed_and_used() -> None:
    tensor = nn.Parameter(torch.zeros(3, 3))
    lines, flat = Lines([tensor], torch.float32), torch.zeros(9)
    assert not lines.renew()
    tensor.data = torch.ones(3, 3)
    assert lines.renew() and not lines.renew()
    with torch.no_grad():
        lines.gather(flat, views(flat, [tensor]))
        assert flat.tolist() == [1.0] * 9
        lines.scatter(flat.fill_(5.0), views(flat, [tensor]))
    assert tensor.tolist() == [[5.0] * 3] * 3


def test_a_commit_from_what_was_collected_gives_the_bits_of_the_plain_way() -> None:
    models, others = [net() for _ in range(2)], [net() for _ in range(2)]
    plain, own = [ModelState(model) for model in models], [as_on_a_device(model) for model in others]
    assert all(state._keeps_own for state in own)
    for state in (*plain, *own):
        state.capture()
    shares = [SHARES, [Share(2, 16), Share(0, 0)], SHARES]
    for number, each in enumerate(shares):
        for some in (models, others):
            for rank, model in enumerate(some):
                trained(model, 10 * number + rank)
        window(plain, each)
        window(own, each)
        for one, two in zip(plain, own, strict=True):
            assert torch.equal(one.committed, two.committed)
            assert one.divergence() == pytest.approx(two.divergence(), rel=1e-5)
        assert plain[1].divergence() > 0.0
        for model, other in zip(models, others, strict=True):
            assert all(map(torch.equal, model.state_dict().values(), other.state_dict().values()))


def test_a_rank_that_is_not_finite_gets_the_others_average() -> None:
    models = [net() for _ in range(2)]
    states = [as_on_a_device(model) for model in models]
    fill(models[0], 3.0)
    fill(models[1], float("nan"))
    wires = packed(states, SHARES)
    assert [wire.was_finite for wire in wires] == [True, False]
    for state, wire in zip(states, wires, strict=True):
        state.commit(wire, [SHARES[0], Share(0, 0)])
    assert all(bool((parameter == 3.0).all()) for parameter in models[1].parameters())
    assert states[0].divergence() == 0.0 == states[1].divergence()


def test_a_failed_reduce_and_a_gift_leave_nothing_of_what_was_collected() -> None:
    models = [net() for _ in range(3)]
    states = [as_on_a_device(model) for model in models]
    for state in states:
        state.capture()
    before = states[0].committed.clone()
    trained(models[0], 1)
    wires = packed(states[:2], SHARES)
    assert torch.equal(states[0].committed, before), "what is collected lies elsewhere"
    states[0].adopt(states[2].gift())  # the reduce failed, and another rank holds a later window
    for state, wire in zip(states, wires, strict=False):
        state.commit(wire, SHARES)
    assert torch.equal(states[0].committed, states[1].committed)
    assert all(map(torch.equal, models[0].state_dict().values(), models[1].state_dict().values()))


def test_a_model_that_moved_between_windows_is_averaged_where_it_is() -> None:
    models = [net() for _ in range(2)]
    states = [as_on_a_device(model) for model in models]
    for value in (1.0, 2.0):
        for model in models:
            for parameter in model.parameters():
                parameter.data = torch.full_like(parameter, value)
        fill(models[1], value + 8.0)
        window(states, SHARES)
        assert all(bool((parameter == value + 5.0).all()) for model in models for parameter in model.parameters())


def test_only_a_plain_average_is_made_of_what_was_collected() -> None:
    class Buffered(nn.Linear):
        def __init__(self) -> None:
            super().__init__(2, 2)
            self.register_buffer("mean", torch.zeros(2))

    by_batches = Averaging(Weighing(Weights.BATCHES))
    assert as_on_a_device(nn.Linear(2, 2), by_batches)._keeps_own and as_on_a_device(Buffered())._keeps_own
    for model, averaging in (
        (Buffered(), by_batches),
        (nn.BatchNorm1d(2), Averaging()),
        (nn.Linear(2, 2), Averaging(bf16_wire=True)),
        (nn.Linear(2, 2), Averaging(Weighing(Weights.NORMALIZED))),
        (nn.Linear(2, 2), Averaging(outer=OuterStep(Outer.NESTEROV, 0.7, 0.9))),
    ):
        assert not as_on_a_device(model, averaging)._keeps_own
