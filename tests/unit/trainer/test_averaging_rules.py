"""The pure rules of an average: weights, integers, the outer step, and what it all costs."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fdl_api.run import ElcheSpec
from fdl_trainer.averaging import Averaging, NotEnoughMemoryError, Share, Weighing, Weights, integers, memory
from fdl_trainer.averaging.outer import Outer, OuterStep
from fdl_trainer.averaging.weighing import power

COUNTS = st.lists(st.tuples(st.integers(0, 500), st.integers(1, 64)), min_size=1, max_size=6).filter(
    lambda pairs: any(batches for batches, _ in pairs)
)


@given(counts=COUNTS, weights=st.sampled_from(list(Weights)), gamma=st.sampled_from([0.0, 0.5, 1.0, 2.0]))
@settings(max_examples=30, deadline=None)
def test_the_divisor_is_the_sum_of_what_was_multiplied_in(
    counts: list[tuple[int, int]], weights: Weights, gamma: float
) -> None:
    rule = Weighing(weights, gamma)
    shares = [Share(batches, batches * size) for batches, size in counts]
    factors = [rule.factor(share) for share in shares]
    assert all((factor > 0) == (share.samples > 0) for factor, share in zip(factors, shares, strict=True))
    if weights is not Weights.NORMALIZED:
        divisor = rule.divisor(shares)
        assert divisor == sum(factors)
        assert divisor >= 2**18 or torch.tensor(divisor).double().item() == divisor, "exact in fp32"


def test_weights_follow_samples_batches_or_nothing() -> None:
    few, many = Share(2, 30), Share(8, 40)
    assert [Weighing().factor(share) for share in (few, many)] == [30.0, 40.0]
    assert [Weighing(Weights.BATCHES).factor(share) for share in (few, many)] == [2.0, 8.0]
    assert [Weighing(Weights.UNIFORM, 2.0).factor(share) for share in (few, many)] == [1.0, 1.0]
    assert [Weighing(Weights.BATCHES, 2.0).factor(share) for share in (few, many)] == [4.0, 64.0]
    assert [Weighing(Weights.SAMPLES, 0.0).factor(share) for share in (few, Share(0, 0))] == [1.0, 0.0]


def test_normalized_takes_the_mean_way_per_batch_times_the_mean_batches() -> None:
    rule, shares = Weighing(Weights.NORMALIZED), [Share(2, 20), Share(8, 80), Share(0, 0)]
    ways = [3.0, 24.0, 0.0]
    total = sum(rule.factor(share) * way for share, way in zip(shares, ways, strict=True))
    assert total / rule.divisor(shares) == pytest.approx((10 / 2) * ((3.0 / 2 + 24.0 / 8) / 2))


@given(count=st.integers(1, 10**6), gamma=st.floats(0.0, 2.0))
def test_powers_are_multiples_of_a_64th_and_close(count: int, gamma: float) -> None:
    value = power(count, gamma)
    assert value * 64 == int(value * 64) and value > 0
    assert value == pytest.approx(count**gamma, abs=1 / 64, rel=1e-9)


@given(values=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=20), wide=st.booleans())
def test_integers_survive_a_floating_buffer(values: list[int], wide: bool) -> None:
    numbers = torch.tensor(values, dtype=torch.int64)
    lanes = torch.empty(integers.LANES * len(values), dtype=torch.float64 if wide else torch.float32)
    integers.encode(numbers, lanes)
    assert torch.equal(integers.decode(lanes), numbers)


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("bn.num_batches_tracked", True),
        ("step", True),
        ("ema.global_steps", True),
        ("hits_count", True),
        ("position_ids", False),
        ("stepper", False),
    ],
)
def test_counters_are_known_by_their_names(name: str, counts: bool) -> None:
    assert integers.is_counter(name, torch.int64) is counts
    assert not integers.is_counter(name, torch.bool)


def test_the_outer_steps_are_those_of_torch_sgd_on_the_pseudo_gradient() -> None:
    torch.manual_seed(1)
    start = torch.randn(600_000, dtype=torch.float64)
    averages = [start + 0.1 * torch.randn_like(start) for _ in range(3)]
    for kind, nesterov in ((Outer.NESTEROV, True), (Outer.SLOWMO, False)):
        reference = torch.nn.Parameter(start.clone())
        sgd = torch.optim.SGD([reference], lr=0.7, momentum=0.9, nesterov=nesterov)
        outer = OuterStep(kind, 0.7, 0.9)
        theta, momentum = start.clone(), torch.zeros_like(start)
        for average in averages:
            reference.grad = reference.detach() - average
            sgd.step()
            result, after = average.clone(), torch.empty_like(momentum)
            outer.apply(theta, result, momentum, after)
            theta, momentum = result, after
        torch.testing.assert_close(theta, reference.detach())


def test_without_momentum_and_at_rate_one_the_outer_step_is_the_average() -> None:
    theta, average = torch.tensor([1.0, 2.0]), torch.tensor([1.5, 1.0])
    wanted = average.clone()
    OuterStep(Outer.SLOWMO, 1.0, 0.0).apply(theta, average, torch.ones(2), torch.empty(2))
    assert torch.equal(average, wanted)


def test_settings_come_from_the_spec_with_the_papers_defaults() -> None:
    assert Averaging.of(ElcheSpec()) == Averaging()
    spec = ElcheSpec.model_validate({"weights": "batches", "gamma": 0.5, "outer": {"optimizer": "nesterov"}})
    assert Averaging.of(spec) == Averaging(Weighing(Weights.BATCHES, 0.5), OuterStep(Outer.NESTEROV, 0.7, 0.9))
    spec = ElcheSpec.model_validate({"outer": {"optimizer": "slowmo", "learningRate": 0.9, "momentum": 0.0}})
    assert Averaging.of(spec).outer == OuterStep(Outer.SLOWMO, 0.9, 0.0)


def test_bytes_a_parameter_are_known_and_what_does_not_fit_is_refused_with_a_way_out() -> None:
    outer = Averaging(outer=OuterStep(Outer.NESTEROV, 0.7, 0.9))
    assert memory.demand(Averaging()) == memory.Demand(12, 0)
    assert memory.demand(Averaging(bf16_wire=True)) == memory.Demand(10, 0)
    assert memory.demand(outer) == memory.Demand(20, 0)
    assert memory.demand(Averaging(), overlap=True) == memory.Demand(16, 0)
    assert memory.demand(Averaging(), staged=True, overlap=True) == memory.Demand(12, 8)
    assert memory.demand(Averaging(), element=8) == memory.Demand(24, 0)
    assert memory.demand(Averaging(bf16_wire=True), slots=3) == memory.Demand(22, 0)
    assert memory.demand(Averaging(), element=8, slots=2) == memory.Demand(40, 0)
    memory.require(1000, memory.Demand(12, 8), 12_000, 8_000)
    with pytest.raises(NotEnoughMemoryError, match=r"1000 parameters takes 12 bytes each, .*spec\.elche\.outer"):
        memory.require(1000, memory.Demand(12, 8), 11_999, 8_000)
    with pytest.raises(NotEnoughMemoryError, match="on the model's device"):
        memory.require(1000, memory.Demand(12, 8), 12_000, 7_999)
