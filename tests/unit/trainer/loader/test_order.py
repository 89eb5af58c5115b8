import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdl_trainer.ledger import Span
from fdl_trainer.loader.order import CHUNK, Order
from fdl_trainer.permutation import Permutation


@given(blocks=st.integers(1, 200), block=st.integers(1, 50), seed=st.integers(), data_epoch=st.integers(0, 3))
def test_each_pass_has_every_sample_once_and_blocks_stay_whole(
    blocks: int, block: int, seed: int, data_epoch: int
) -> None:
    samples = blocks * block
    order = Order(samples, seed, block)
    start = data_epoch * samples
    indices = order.indices(Span(start, start + samples)).tolist()
    assert sorted(indices) == list(range(samples))
    for first in range(0, samples, block):
        assert indices[first : first + block] == list(range(indices[first], indices[first] + block))
    assert order.data_epoch(Span(start, start + 1)) == data_epoch


@given(data=st.data(), block=st.integers(1, 7))
def test_a_span_is_that_part_of_the_pass(data: st.DataObject, block: int) -> None:
    order = Order(block * 30, 5, block)
    start = data.draw(st.integers(0, order.samples - 1))
    stop = data.draw(st.integers(start + 1, order.samples))
    whole = order.indices(Span(0, order.samples)).tolist()
    assert order.indices(Span(start, stop)).tolist() == whole[start:stop]


def test_without_blocks_it_is_the_permutation() -> None:
    assert Order(100, 3).indices(Span(205, 230)).tolist() == Permutation(100, 3, 2).indices(5, 30).tolist()


def test_blocks_must_make_up_the_dataset() -> None:
    with pytest.raises(ValueError, match="10 samples are not made up of blocks of 4"):
        Order(10, 0, 4)


@given(data=st.data(), samples=st.integers(2 * CHUNK - 2, 2 * CHUNK + 2))
def test_a_span_may_cross_the_border_of_what_is_computed_at_once(data: st.DataObject, samples: int) -> None:
    start = data.draw(st.integers(CHUNK - 3, CHUNK + 3) | st.integers(0, samples))
    stop = data.draw(st.integers(start, samples) | st.integers(start, min(start + 5, samples)))
    found = Order(samples, 3).indices(Span(2 * samples + start, 2 * samples + stop))
    assert found.tolist() == Permutation(samples, 3, 2).indices(start, stop).tolist()


def test_indices_are_the_callers_own() -> None:
    order = Order(CHUNK, 3)
    before = order.indices(Span(0, 8))
    kept = before.tolist()
    before[:] = -1
    assert order.indices(Span(0, 8)).tolist() == kept


def test_a_span_of_two_passes_is_refused() -> None:
    with pytest.raises(IndexError, match=r"positions 90\.\.110 are outside of 0\.\.100"):
        Order(100, 3).indices(Span(90, 110))
