"""When a run's log says how far it is, and in which words."""

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fdl_api.telling import TELL_SECONDS, Reached, Teller

START = Reached(window=1, samples=100, total=1000, ranks=1, loss=2.30259, final=False)


def test_the_first_commit_one_in_ten_seconds_and_the_last_are_told() -> None:
    teller = Teller()
    assert teller.line(START, 5.0) == "window 1: 100 samples trained (10 % of 1000), 1 rank, loss 2.303"
    assert teller.line(replace(START, window=2, samples=200), 5.0 + TELL_SECONDS - 0.1) == ""
    third = replace(START, window=3, samples=399, ranks=2, loss=None)
    assert teller.line(third, 15.0) == "window 3: 399 samples trained (39 % of 1000), 2 ranks, 30 samples/s"
    assert teller.line(third, 30.0) == "", "nothing has moved"
    last = replace(third, window=9, samples=1000, loss=float("nan"), final=True)
    assert teller.line(last, 16.0) == "window 9: 1000 samples trained (100 % of 1000), 2 ranks, 601 samples/s"
    assert teller.line(last, 16.1) == "", "once"


def test_a_run_that_went_back_has_no_speed() -> None:
    teller = Teller()
    teller.line(replace(START, window=9), 0.0)
    assert teller.line(replace(START, window=5, samples=50, total=0), 60.0) == (
        "window 5: 50 samples trained, 1 rank, loss 2.303"
    )


@given(st.lists(st.floats(0.0, 4.0), min_size=1, max_size=60))
def test_while_windows_are_committed_no_silence_is_longer_than_the_time_and_a_window(waits: list[float]) -> None:
    teller, now, told = Teller(), 0.0, []
    for window, wait in enumerate(waits, start=1):
        now += wait
        if teller.line(replace(START, window=window, samples=window), now):
            told.append(now)
    gaps = [after - before for before, after in itertools.pairwise(told)]
    assert all(TELL_SECONDS <= gap <= TELL_SECONDS + 4.0 for gap in gaps)
    assert now - told[-1] < TELL_SECONDS
