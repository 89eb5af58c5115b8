"""Medians, intervals and splits of sizes."""

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.training import stats
from bench.training.tuning import SMALLEST, rebalanced, split

VALUES = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=12)


@given(values=VALUES, seed=st.integers(0, 5))
def test_the_interval_holds_the_estimate_and_lies_in_the_values(values: list[float], seed: int) -> None:
    found = stats.bootstrap(values, seed=seed, resamples=300)
    assert min(values) <= found.low <= found.value <= found.high <= max(values)
    assert found.value == median(values)
    assert found.count == len(values)


def test_the_interval_of_the_mean_has_the_width_of_theory() -> None:
    """1.96 standard errors to each side for many values: here sqrt(833.25 / 100) = 2.887, so 5.66."""
    found = stats.mean_interval([float(value) for value in range(100)])
    assert found.value == 49.5
    assert found.high - found.value == pytest.approx(5.66, rel=0.08)
    assert found.value - found.low == pytest.approx(5.66, rel=0.08)


def test_the_same_values_give_the_same_interval() -> None:
    assert stats.bootstrap([1.0, 5.0, 2.0], seed=3) == stats.bootstrap([1.0, 5.0, 2.0], seed=3)


def test_one_value_has_no_width_and_none_is_refused() -> None:
    assert stats.bootstrap([2.0]) == stats.Interval(2.0, 2.0, 2.0, 1)
    with pytest.raises(ValueError, match="at least one"):
        stats.bootstrap([])
    with pytest.raises(ValueError, match="finite"):
        stats.bootstrap([1.0, float("nan")])


def test_ratios_are_paired_by_round_and_not_by_place() -> None:
    assert stats.paired_ratios({1: 4.0, 2: 9.0, 3: 1.0}, {2: 3.0, 1: 2.0, 4: 7.0}) == [2.0, 3.0]


def test_quantiles_are_linear_between_neighbours() -> None:
    assert stats.quantile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert stats.quantile([0.0, 10.0], 0.95) == pytest.approx(9.5)


@given(
    weights=st.lists(st.floats(0.1, 50.0), min_size=1, max_size=6),
    more=st.integers(0, 300),
)
def test_a_split_keeps_the_total_and_the_smallest_size(weights: list[float], more: int) -> None:
    total = SMALLEST * len(weights) + more
    parts = split(total, weights)
    assert sum(parts) == total
    assert min(parts) >= SMALLEST


def test_sizes_follow_the_rates() -> None:
    assert rebalanced([64, 64], [1000.0, 2300.0]) == [39, 89]
    assert rebalanced([10, 10, 10], [1.0, 1.0, 4.0]) == [5, 5, 20]


def test_a_total_that_cannot_be_split_is_refused() -> None:
    with pytest.raises(ValueError, match="cannot be split"):
        split(3, [1.0, 1.0])
