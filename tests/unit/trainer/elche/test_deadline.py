import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdl_trainer.elche.deadline import is_jittery, lease, should_stop, spread, window_ms
from fdl_trainer.elche.speed import RankSpeed


@pytest.mark.parametrize(
    ("ring", "expected"), [((), 0.0), ((10.0, 12.0), 0.0), ((10.0, 10.0, 10.0), 0.0), ((9.0, 10.0, 11.0), 0.2)]
)
def test_the_spread_needs_three_samples(ring: tuple[float, ...], expected: float) -> None:
    assert spread(RankSpeed(ring)) == pytest.approx(expected)


def test_a_rank_whose_last_sample_was_far_off_stops_by_time_too() -> None:
    assert not is_jittery(RankSpeed((10.0, 10.0, 10.0)))
    assert is_jittery(RankSpeed((10.0, 10.0, 10.0), suspect=23.0))
    assert lease(RankSpeed((10.0, 10.0, 10.0)), 40) == 40
    assert lease(RankSpeed((9.0, 10.0, 11.0)), 40) == 50
    assert lease(RankSpeed((9.0, 10.0, 11.0)), 0) == 0


@pytest.mark.parametrize(
    ("suspect", "bounded", "given"),
    [(23.0, False, 50), (9.0, False, 50), (4.0, False, 100), (0.1, False, 160), (4.0, True, 50)],
)
def test_a_rank_that_seems_faster_is_given_what_it_could_do(suspect: float, bounded: bool, given: int) -> None:
    """It stops by time, so that what it cannot do goes back; bounded by four quotas, or by the user's word."""
    assert lease(RankSpeed((10.0, 10.0, 10.0), suspect=suspect), 40, bounded=bounded) == given


def test_the_window_is_as_long_as_its_longest_quota() -> None:
    ranks = {"a": RankSpeed((4.0,), quota=23), "b": RankSpeed((9.2,), quota=10), "new": RankSpeed(quota=2)}
    assert window_ms(ranks) == pytest.approx(92.0)
    assert window_ms({}) == 0.0


@pytest.mark.parametrize(
    ("elapsed", "window", "done", "stops"),
    [
        (0.0, 100.0, 0, False),
        (500.0, 100.0, 0, False),
        (94.0, 100.0, 9, False),
        (96.0, 100.0, 9, True),
        (10.0, 100.0, 13, True),
        (10_000.0, 0.0, 12, False),
    ],
)
def test_a_rank_stops_when_its_next_batch_would_be_more_out_than_in(
    elapsed: float, window: float, done: int, stops: bool
) -> None:
    assert should_stop(elapsed, 10.0, window, done, 13) is stops


@given(batches=st.lists(st.floats(1.0, 100.0), min_size=200, max_size=200), window=st.floats(100.0, 1000.0))
def test_whatever_batches_take_the_end_is_off_by_no_more_than_the_last_one(batches: list[float], window: float) -> None:
    elapsed, done = 0.0, 0
    while not should_stop(elapsed, 50.0, window, done, 200):
        elapsed += batches[done]
        done += 1
    assert window - 25.0 <= elapsed <= max(window - 25.0 + batches[done - 1], batches[0])
