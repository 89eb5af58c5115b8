import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdl_trainer.permutation import Permutation

seeds = st.integers(-(2**63), 2**63)


@given(samples=st.integers(1, 3000), seed=seeds, data_epoch=st.integers(0, 100))
def test_every_sample_has_exactly_one_place(samples: int, seed: int, data_epoch: int) -> None:
    order = Permutation(samples, seed, data_epoch).indices(0, samples)
    assert order.dtype == np.int64
    assert np.array_equal(np.sort(order), np.arange(samples))


@given(samples=st.integers(1, 2**40), seed=seeds, data=st.data())
def test_a_place_alone_or_in_a_range_gives_the_same_sample(samples: int, seed: int, data: st.DataObject) -> None:
    order = Permutation(samples, seed, 1)
    start = data.draw(st.integers(0, samples - 1))
    stop = min(samples, start + 17)
    assert order.indices(start, stop).tolist() == [order.index(position) for position in range(start, stop)]


def test_passes_and_seeds_have_orders_of_their_own() -> None:
    orders = [Permutation(1000, seed, epoch).indices(0, 1000).tolist() for seed in (0, 1) for epoch in (0, 1)]
    assert len({tuple(order) for order in orders}) == 4


def test_the_order_is_pinned_since_checkpoints_rely_on_it() -> None:
    assert Permutation(10, 42, 0).indices(0, 10).tolist() == [0, 1, 5, 4, 2, 8, 3, 7, 9, 6]


def test_the_order_looks_random() -> None:
    """Neighbours in the order are as far apart as in a shuffled deck: a third of the range on average."""
    samples = 60_000
    order = Permutation(samples, 7, 3).indices(0, samples)
    assert abs(np.abs(np.diff(order)).mean() / samples - 1 / 3) < 0.01
    assert abs(np.corrcoef(order, np.arange(samples))[0, 1]) < 0.02


def test_small_datasets_reach_all_orders() -> None:
    assert len({tuple(Permutation(3, seed, 0).indices(0, 3).tolist()) for seed in range(200)}) == 6


@pytest.mark.parametrize("position", [-1, 5])
def test_a_place_outside_is_an_error(position: int) -> None:
    with pytest.raises(IndexError):
        Permutation(5, 0, 0).index(position)
    with pytest.raises(IndexError):
        Permutation(5, 0, 0).indices(position, position + 1)


def test_an_empty_dataset_has_no_order() -> None:
    with pytest.raises(ValueError, match="0 samples"):
        Permutation(0, 0, 0)
