"""What an average is: weighted by work, exact for integers and BatchNorm, harmless when it fails."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fdl_trainer.averaging import ModelState, Share, Wire


def reduce(states: list[ModelState], samples: list[int]) -> tuple[Wire, list[Share]]:
    """One rank's view of the all-reduce: the sum of everybody's wire buffer."""
    wires = [state.new_wire(rank, len(states), 0) for rank, state in enumerate(states)]
    shares = [Share(1 if count else 0, count) for count in samples]
    for state, wire, share in zip(states, wires, shares, strict=True):
        state.pack(wire, share)
    for wire in wires[1:]:
        for total, part in zip(wires[0].parts, wire.parts, strict=True):
            total.add_(part)
    return wires[0], shares


class Odd(nn.Module):
    """Tied parameters, several dtypes, buffers of every kind."""

    big: torch.Tensor
    mask: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.narrow = nn.Parameter(torch.arange(4.0).to(torch.bfloat16))
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("big", torch.tensor([2**62 + 1, -1, -(2**40)]))
        self.register_buffer("mask", torch.tensor([True, False]))
        self.register_buffer("scratch", torch.ones(2), persistent=False)


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=5), seed=st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_one_step_each_averages_to_one_step_on_the_big_batch(sizes: list[int], seed: int) -> None:
    """Case F10: a rank with 100 samples weighs as 100, not as one of two participants."""
    generator = torch.Generator().manual_seed(seed)
    data = torch.randn(sum(sizes), 6, generator=generator)
    target = torch.randn(sum(sizes), 2, generator=generator)
    start = nn.Linear(6, 2)

    def step(x: torch.Tensor, y: torch.Tensor) -> nn.Linear:
        model = nn.Linear(6, 2)
        model.load_state_dict(start.state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        torch.autograd.backward(nn.functional.mse_loss(model(x), y))
        optimizer.step()
        return model

    models = [step(x, y) for x, y in zip(torch.split(data, sizes), torch.split(target, sizes), strict=True)]
    states = [ModelState(model) for model in models]
    states[0].commit(*reduce(states, sizes))
    big = step(data, target)
    assert torch.allclose(models[0].weight, big.weight, atol=1e-5)
    assert torch.allclose(models[0].bias, big.bias, atol=1e-5)


@given(sizes=st.lists(st.integers(2, 30), min_size=2, max_size=4), mean=st.sampled_from([0.0, 300.0]))
@settings(max_examples=30, deadline=None)
def test_batchnorm_is_pooled_as_if_one_rank_had_seen_it_all(sizes: list[int], mean: float) -> None:
    """In fp32, E[v + m^2] - m^2 gives a variance of zero or less for a mean of 300 and a variance of 1e-3."""
    data = mean + 0.03 * torch.randn(sum(sizes), 4, generator=torch.Generator().manual_seed(sum(sizes)))
    states, norms = [], []
    for part in torch.split(data, sizes):
        norm = nn.BatchNorm1d(4)
        assert norm.running_mean is not None and norm.running_var is not None
        norm.running_mean.fill_(mean)  # the last committed one, the same on all ranks
        state = ModelState(norm)
        state.capture()
        norm.running_mean.copy_(part.mean(0))
        norm.running_var.copy_(part.var(0, unbiased=False))
        states.append(state)
        norms.append(norm)
    states[0].commit(*reduce(states, sizes))
    exact = data.double()
    pooled_mean, pooled_var = norms[0].running_mean, norms[0].running_var
    assert pooled_mean is not None and pooled_var is not None
    assert torch.allclose(pooled_mean.double(), exact.mean(0), rtol=1e-6, atol=1e-6)
    assert torch.allclose(pooled_var.double(), exact.var(0, unbiased=False), rtol=0.02)


def test_integers_come_from_the_lowest_rank_bit_for_bit() -> None:
    low, high = Odd(), Odd()
    low.big.copy_(torch.tensor([-(2**63), 2**63 - 1, 7]))
    low.mask.copy_(torch.tensor([False, True]))
    states = [ModelState(low), ModelState(high)]
    wanted = low.big.clone()
    states[1].commit(*reduce(states, [1, 3]))
    assert torch.equal(high.big, wanted) and high.mask.tolist() == [False, True]


def test_a_rank_without_work_contributes_zeros_even_when_its_model_is_nan() -> None:
    model, idle = nn.Linear(2, 2), nn.Linear(2, 2)
    nn.init.constant_(idle.weight, float("nan"))
    before = model.weight.detach().clone()
    states = [ModelState(model), ModelState(idle)]
    states[1].commit(*reduce(states, [5, 0]))
    torch.testing.assert_close(idle.weight.detach(), before, rtol=1e-6, atol=0.0)  # 5 w / 5 may round


def test_a_model_that_is_not_finite_is_noticed_and_contributes_nothing() -> None:
    model = nn.Linear(2, 2)
    nn.init.constant_(model.bias, float("inf"))
    state = ModelState(model)
    wire = state.new_wire(0, 1, 2)
    state.pack(wire, Share(1, 3))
    wire.write_tail([1.0, 2.0], [0.0, 3.0])
    assert not wire.finite and wire.read_tail() == [0.0, 3.0]
    assert wire.parts[0].tolist() == [0.0] * state.numel + [0.0, 3.0]


def test_packing_touches_neither_the_live_model_nor_the_committed_state() -> None:
    model = Odd()
    state = ModelState(model)
    state.capture()
    live = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    committed = state.committed.clone()
    wire = state.new_wire(0, 1, 7)
    state.pack(wire, Share(2, 11))
    wire.parts[0].fill_(float("nan"))  # as a failed reduce may leave it
    assert all(torch.equal(live[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(committed, state.committed)


def test_the_committed_state_loads_into_a_fresh_model_strictly() -> None:
    model = Odd()
    state = ModelState(model)
    state.capture()
    tensors = state.tensors()
    assert "scratch" not in tensors and torch.equal(tensors["head.weight"], tensors["embedding.weight"])
    other = Odd()
    other.load_state_dict(tensors)
    assert all(torch.equal(tensor, other.state_dict()[name]) for name, tensor in model.state_dict().items())


def test_adopting_gives_the_same_bits_to_the_live_model() -> None:
    donor, joiner = Odd(), Odd()
    given_away, taking = ModelState(donor), ModelState(joiner)
    given_away.capture()
    parameter = joiner.head.weight
    taking.adopt(given_away.committed)
    assert joiner.head.weight is parameter, "parameters change in place: the optimizer holds them"
    assert torch.equal(given_away.committed, taking.committed)
    assert all(torch.equal(tensor, joiner.state_dict()[name]) for name, tensor in donor.state_dict().items())


def test_distance_to_the_average_is_relative() -> None:
    models = [nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)]
    for model, value in zip(models, (1.0, 3.0), strict=True):
        nn.init.constant_(model.weight, value)
    states = [ModelState(model) for model in models]
    states[0].commit(*reduce(states, [1, 1]))
    assert abs(states[0].divergence() - 0.5) < 1e-6


def test_what_was_learnt_during_the_reduce_stays() -> None:
    models = [nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)]
    states = [ModelState(model) for model in models]
    for model, value in zip(models, (1.0, 3.0), strict=True):
        nn.init.constant_(model.weight, value)
    wire = states[0].new_wire(0, 2, 0)
    states[0].pack(wire, Share(1, 1), keep_snapshot=True)
    other = states[1].new_wire(1, 2, 0)
    states[1].pack(other, Share(1, 1))
    wire.parts[0].add_(other.parts[0])
    with torch.no_grad():
        models[0].weight.add_(0.25)  # trained while the reduce was under way
    states[0].commit(wire, [Share(1, 1)] * 2, delta=True)
    assert states[0].committed[0] == 2.0 and models[0].weight.item() == 2.25 and states[0].divergence() == 0.5
    with pytest.raises(RuntimeError, match="snapshot"):
        states[0].commit(wire, [Share(1, 1)] * 2, delta=True)


def test_a_failed_reduce_is_repeated_from_the_snapshot_while_training_has_gone_on() -> None:
    torch.manual_seed(0)
    model = Odd()
    state = ModelState(model)
    state.capture()
    first, again = state.new_wire(0, 2, 0), state.new_wire(0, 2, 0)
    state.pack(first, Share(2, 11), keep_snapshot=True)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    first_bits = first.parts[0].clone()
    first.parts[0].fill_(float("nan"))  # as the failed reduce left it
    state.pack(again, Share(2, 11), again=True)
    assert torch.equal(again.parts[0], first_bits) and again.was_finite


def test_what_was_learnt_since_stays_when_another_rank_holds_the_commit() -> None:
    models = [nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)]
    states = [ModelState(model) for model in models]
    for model, value in zip(models, (1.0, 3.0), strict=True):
        nn.init.constant_(model.weight, value)
    states[0].capture()
    states[0].pack(states[0].new_wire(0, 2, 0), Share(1, 1), keep_snapshot=True)
    with torch.no_grad():
        models[0].weight.add_(0.25)
    states[1].capture()
    states[0].adopt(states[1].gift(), delta=True)
    assert states[0].committed[0] == 3.0 and models[0].weight.item() == 3.25
