"""Goodput: never above 1, whatever the machine does; every loss lowers it, and a dead rank is no loss."""

import random

import pytest

from fdl_api import wire
from fdl_coordinator.goodput import Goodput


def commit(window: int, **ranks: tuple[int, float]) -> wire.WindowCommitted:
    """A window; each rank's samples and seconds of computing."""
    rows = [
        wire.RankWindow(
            uid=uid,
            quota=1,
            batches=1,
            samples=samples,
            compute_ms=seconds * 1000,
            data_wait_ms=0,
            ms_per_batch=1,  # what ElChe believes plays no part
            share=0.5,
        )
        for uid, (samples, seconds) in ranks.items()
    ]
    return wire.WindowCommitted(epoch=1, window=window, samples=window * 100, data_epoch=0, ranks=rows)


def value(goodput: Goodput) -> float:
    assert goodput.value is not None
    return goodput.value


def test_it_is_the_part_of_the_possible_samples() -> None:
    goodput = Goodput()
    for window in range(20):
        goodput.committed(commit(window, a=(60, 0.9), b=(30, 0.6)), window * 1.0)
    assert value(goodput) == pytest.approx(90 / (60 / 0.9 + 30 / 0.6))


def test_there_is_none_before_a_second_was_seen() -> None:
    goodput = Goodput()
    for window in range(3):
        assert goodput.value is None
        goodput.committed(commit(window, a=(10, 0.1)), window * 0.4)
    assert goodput.value is None


def test_it_stays_below_one_when_ranks_slow_down_and_reports_come_in_bursts() -> None:
    chance = random.Random(3)
    goodput, now = Goodput(), 0.0
    for window in range(500):
        busy = chance.choice([0.05, 0.05, 0.6])
        now += chance.choice([0.0, busy, busy, 2 * busy])
        goodput.committed(commit(window, a=(64, busy), b=(64, busy * 0.8)), now)
        assert goodput.value is None or 0 < goodput.value <= 1


def test_a_recovery_is_a_loss_and_a_dead_rank_is_none() -> None:
    steady, hurt = Goodput(), Goodput()
    for window in range(10):
        for one in (steady, hurt):
            one.committed(commit(window, a=(10, 1.0), b=(10, 1.0)), window * 1.0)
    assert value(hurt) == pytest.approx(1)
    steady.committed(commit(10, a=(10, 1.0)), 10.0)  # b died, and cost no time
    hurt.committed(commit(10, a=(10, 1.0)), 13.0)  # b died, and three seconds with it
    assert value(steady) == pytest.approx(1)
    assert 0.8 < value(hurt) < 0.95


def test_windows_that_nobody_told_of_count_like_the_next() -> None:
    goodput = Goodput()
    goodput.committed(commit(1, a=(10, 0.8)), 1.0)
    goodput.committed(wire.WindowCommitted(epoch=1, window=2, samples=20, data_epoch=0), 2.0)
    goodput.committed(commit(4, a=(10, 0.8)), 4.0)
    assert value(goodput) == pytest.approx(0.8)


def test_a_second_report_and_the_time_before_a_restart_do_not_count() -> None:
    goodput = Goodput()
    for window in range(5):
        for _ in range(2):
            goodput.committed(commit(window, a=(10, 0.5)), window * 1.0)
    assert value(goodput) == pytest.approx(0.5)
    goodput.restarted()
    goodput.committed(commit(2, a=(10, 0.5)), 100.0)
    goodput.committed(commit(3, a=(10, 0.5)), 101.0)
    assert value(goodput) == pytest.approx(0.5)
