"""Committed states: every setting, every kind of tensor, and models that change when they must not."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fdl_trainer.averaging import (
    Averaging,
    ModelChangedError,
    ModelState,
    Share,
    UnsupportedModelError,
    Weighing,
    Weights,
)
from fdl_trainer.averaging.outer import Outer, OuterStep
from tests.unit.trainer.averaging_model import fill, packed, states_of, window

DILOCO = Averaging(outer=OuterStep(Outer.NESTEROV, 0.7, 0.9))


def linears(count: int, averaging: Averaging | None = None) -> tuple[list[nn.Linear], list[ModelState]]:
    torch.manual_seed(3)
    models = [nn.Linear(7, 5) for _ in range(count)]
    return models, states_of(models, averaging)


@given(
    batches=st.lists(st.integers(0, 20), min_size=2, max_size=4).filter(any),
    weights=st.sampled_from(list(Weights)),
    narrow=st.booleans(),
    seed=st.integers(0, 100),
)
@settings(max_examples=20, deadline=None)
def test_every_rule_gives_what_its_formula_says_and_the_same_bits_on_all_ranks(
    batches: list[int], weights: Weights, narrow: bool, seed: int
) -> None:
    models, states = linears(len(batches), Averaging(Weighing(weights), bf16_wire=narrow))
    base = models[0].weight.detach().double()
    torch.manual_seed(seed)
    for model in models:
        with torch.no_grad():
            model.weight.add_(0.01 * torch.randn_like(model.weight))
    ways = [model.weight.detach().double() - base for model in models]
    shares = [Share(count, 8 * count) for count in batches]
    trained = [rank for rank, count in enumerate(batches) if count]
    if weights is Weights.NORMALIZED:
        tau = sum(batches) / len(trained)
        wanted = base + tau * sum((ways[rank] / batches[rank] for rank in trained), torch.zeros(())) / len(trained)
    else:
        mass = [float(bool(count)) if weights is Weights.UNIFORM else count for count in batches]
        wanted = base + sum((m * way for m, way in zip(mass, ways, strict=True)), torch.zeros(())) / sum(mass)
    window(states, shares)
    scale = float((wanted - base).abs().max()) * (0.02 if narrow else 0.0) + 1e-6
    assert float((models[0].weight.detach().double() - wanted).abs().max()) <= scale
    assert all(torch.equal(state.committed, states[0].committed) for state in states)
    assert all(torch.equal(model.weight, models[0].weight) for model in models)


def test_fifty_windows_of_small_steps_arrive_over_a_bf16_wire() -> None:
    """Cast weights would lose 92 % of a relative motion of 5e-4 a window."""
    models, states = linears(2, Averaging(bf16_wire=True))
    fill(models[0], 1.0)
    states = states_of(models, Averaging(bf16_wire=True))
    for _ in range(50):
        for model in models:
            with torch.no_grad():
                model.weight.mul_(1.0 + 5e-4)
        window(states, [Share(3, 30), Share(7, 70)])
    moved = models[1].weight.detach().double().mean().item() - 1.0
    assert abs(moved / ((1.0 + 5e-4) ** 50 - 1.0) - 1.0) < 0.01


def test_counters_become_the_largest_and_other_integers_the_lowest_ranks() -> None:
    models = [nn.BatchNorm1d(2) for _ in range(3)]
    for number, model in enumerate(models):
        model.register_buffer("table", torch.tensor([number, -number]))
        model.register_buffer("mask", torch.tensor([number == 1]))
    states = states_of(models)
    for model, steps in zip(models, (4, 9, 2), strict=True):
        assert model.num_batches_tracked is not None
        model.num_batches_tracked.add_(steps)
        model.get_buffer("table").fill_(steps)
        model.get_buffer("mask").fill_(steps == 4)
    window(states, [Share(4, 40), Share(9, 90), Share(0, 0)])
    for model in models:
        assert (model.num_batches_tracked, model.get_buffer("table").tolist()) == (9, [4, 4])
        assert model.get_buffer("mask").tolist() == [True]


def test_a_rank_that_is_not_finite_adds_neither_values_nor_counts() -> None:
    models = [nn.BatchNorm1d(2) for _ in range(2)]
    states = states_of(models)
    fill(models[0], 3.0)
    fill(models[1], float("nan"))
    assert models[0].num_batches_tracked is not None and models[1].num_batches_tracked is not None
    models[0].num_batches_tracked.add_(2)
    models[1].num_batches_tracked.add_(50)
    wires = packed(states, [Share(1, 10), Share(1, 10)])
    assert [wire.was_finite for wire in wires] == [True, False]
    for state, wire in zip(states, wires, strict=True):
        state.commit(wire, [Share(1, 10), Share(0, 0)])
    assert models[1].weight.tolist() == [3.0, 3.0] and models[1].num_batches_tracked == 2


def test_frozen_parameters_do_not_travel_keep_their_bits_and_go_to_joiners() -> None:
    torch.manual_seed(5)
    models = [nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 1)) for _ in range(3)]
    for model in models:
        model[0].requires_grad_(False)
    whole = sum(parameter.numel() for parameter in models[0].parameters())
    states = states_of(models[:2])
    backbone = models[0][0].weight.clone()
    assert states[0].new_wire(0, 2, 0).parts[0].numel() < whole / 10
    for _ in range(3):
        window(states, [Share(3, 7), Share(1, 2)])
    assert torch.equal(models[1][0].weight, backbone)
    joiner = ModelState(models[2])
    joiner.adopt(states[0].gift().clone())
    assert torch.equal(models[2][0].weight, backbone) and torch.equal(models[2][1].weight, models[0][1].weight)
    assert torch.equal(joiner.tensors()["0.weight"], backbone)
    models[0][0].requires_grad_(True)
    with pytest.raises(ModelChangedError, match=r"0\.weight was frozen .*freeze it after session\.setup"):
        window(states, [Share(1, 1), Share(1, 1)])


def test_a_model_of_doubles_is_averaged_in_doubles() -> None:
    models = [nn.Linear(2, 2).double() for _ in range(2)]
    states = states_of(models)
    for model, value in zip(models, (1.0, 1.0 + 2e-12), strict=True):
        fill(model, value)
    window(states, [Share(1, 1), Share(1, 1)])
    assert models[0].weight.detach()[0, 0].item() == pytest.approx(1.0 + 1e-12, abs=1e-15)


def test_narrow_types_keep_their_type_and_are_committed_in_fp32() -> None:
    models = [nn.Linear(2, 2).to(torch.bfloat16) for _ in range(2)]
    states = states_of(models)
    for model, value in zip(models, (1.0, 1.0078125), strict=True):
        fill(model, value)
    window(states, [Share(1, 1), Share(1, 1)])
    assert states[0].committed[0] == 1.00390625 and models[0].weight.dtype is torch.bfloat16
    assert 0.0 < states[0].divergence() < 0.01


def test_embeddings_with_sparse_gradients_are_averaged() -> None:
    models = [nn.Embedding(6, 2, sparse=True) for _ in range(2)]
    states = states_of(models)
    start = models[0].weight.detach().clone()
    for model, row in zip(models, (1, 4), strict=True):
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        model(torch.tensor([row])).sum().backward()
        optimizer.step()
    window(states, [Share(1, 1), Share(1, 1)])
    moved = (models[0].weight.detach() - start).sum(1)
    torch.testing.assert_close(moved, torch.tensor([0.0, -1.0, 0.0, 0.0, -1.0, 0.0]))


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (torch.zeros(2, dtype=torch.complex64), "w is complex"),
        (torch.zeros(2, 2).to_sparse(), r"w is torch\.sparse_coo"),
    ],
)
def test_what_cannot_be_averaged_is_refused(tensor: torch.Tensor, words: str) -> None:
    model = nn.Module()
    model.register_buffer("w", tensor)
    with pytest.raises(UnsupportedModelError, match=words):
        ModelState(model)
    with pytest.raises(UnsupportedModelError, match=r"weight has no shape yet"):
        ModelState(nn.Sequential(nn.LazyLinear(3)))
    with pytest.raises(UnsupportedModelError, match="no parameter to train"):
        ModelState(nn.Linear(2, 2).requires_grad_(False))


def test_a_model_that_grows_or_loses_a_tensor_is_refused_by_name() -> None:
    for change, words in (
        (lambda model: setattr(model, "late", nn.Linear(1, 1)), "modules changed after"),
        (lambda model: setattr(model, "bias", None), "bias was replaced"),
        (lambda model: setattr(model, "weight", nn.Parameter(torch.zeros(5, 7))), "weight was replaced"),
        (lambda model: model.register_buffer("cache", torch.zeros(1)), "cache changed after"),
    ):
        models, states = linears(2)
        change(models[0])
        with pytest.raises(ModelChangedError, match=words):
            window(states, [Share(1, 1), Share(1, 1)])


def test_a_buffer_that_a_module_binds_anew_still_counts() -> None:
    models = [nn.Module() for _ in range(2)]
    for model in models:
        model.register_buffer("mean", torch.zeros(1))
    states = states_of(models)
    for model, value in zip(models, (2.0, 4.0), strict=True):
        model.mean = torch.full((1,), value)
    window(states, [Share(1, 1), Share(1, 3)])
    assert [model.mean.item() for model in models] == [3.5, 3.5]


def test_outer_momentum_is_committed_state_for_joiners_and_checkpoints() -> None:
    models, states = linears(3, DILOCO)
    for _ in range(3):
        fill(models[0], models[0].weight[0, 0].item() + 0.1)
        window(states[:2], [Share(1, 10), Share(2, 20)])
    saved = states[0].outer_tensors()
    assert saved["weight"].abs().min() > 0.0 and saved["weight"].shape == (5, 7)
    states[2].adopt(states[1].gift().clone())
    again = ModelState(nn.Linear(7, 5), DILOCO)
    again.adopt(states[0].gift().clone())
    fresh = nn.Linear(7, 5)
    fresh.load_state_dict(states[0].tensors())
    resumed = ModelState(fresh, DILOCO)
    resumed.capture()
    assert resumed.load_outer({}) == ["weight", "bias"]
    assert resumed.load_outer(saved) == [] and torch.equal(resumed.committed, states[0].committed)
    for model in (*models, fresh):
        fill(model, 0.5)
    everybody = [*states, resumed]
    window(everybody, [Share(1, 10)] * 4)
    assert all(torch.equal(state.committed, everybody[0].committed) for state in everybody)
    assert ModelState(nn.Linear(7, 5)).outer_tensors() == {}


def test_a_window_that_fails_leaves_the_outer_momentum_as_it_was() -> None:
    models, states = linears(2, DILOCO)
    window(states, [Share(1, 1), Share(1, 1)])
    before = states[0].committed.clone()
    fill(models[0], 9.0)
    for wire in packed(states, [Share(1, 1), Share(1, 1)]):
        for part in wire.parts:
            part.fill_(float("nan"))
    assert torch.equal(states[0].committed, before)


@pytest.mark.parametrize("alpha", [1.0, 0.5])
@pytest.mark.parametrize("narrow", [False, True])
def test_training_during_a_reduce_is_kept(alpha: float, narrow: bool) -> None:
    models = [nn.BatchNorm1d(2) for _ in range(2)]
    states = states_of(models, Averaging(bf16_wire=narrow))
    for model, value in zip(models, (1.0, 3.0), strict=True):
        fill(model, value)
        assert model.num_batches_tracked is not None
        model.num_batches_tracked.add_(int(value))
    shares = [Share(1, 1), Share(1, 1)]
    wires = packed(states, shares, keep_snapshot=True)
    for model in models:
        with torch.no_grad():
            model.weight.add_(0.25)
            model.num_batches_tracked.add_(2)  # type: ignore[union-attr,operator]
    for state, wire in zip(states, wires, strict=True):
        state.commit(wire, shares, delta=True, alpha=alpha)
    assert [model.weight[0].item() for model in models] == [1.0 + alpha + 0.25, 3.0 - alpha + 0.25]
    assert states[0].committed[:2].tolist() == [2.0, 2.0] and torch.equal(states[0].committed, states[1].committed)
    assert [int(model.num_batches_tracked or 0) for model in models] == [5, 5], "both know 3 batches and did 2 since"
    assert models[0].running_var is not None and models[0].running_var.min() >= 0.0


def test_one_rank_alone_keeps_its_bits() -> None:
    for averaging in (Averaging(), Averaging(Weighing(Weights.NORMALIZED)), Averaging(bf16_wire=True)):
        models, states = linears(1, averaging)
        with torch.no_grad():
            models[0].weight.mul_(1.1)
        trained = models[0].weight.detach().clone()
        window(states, [Share(3, 7)])
        torch.testing.assert_close(models[0].weight.detach(), trained, rtol=2e-7, atol=1e-7)
