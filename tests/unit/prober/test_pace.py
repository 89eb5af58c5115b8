"""When to look and when to write."""

from datetime import timedelta

import pytest

from fdl_prober import decide, pace
from fdl_prober.settings import Settings

from .stories import NOW, facts, nvidia, seen


@pytest.mark.parametrize(("not_ready", "seconds"), [(0, 15), (1, 5), (2, 10), (3, 20), (5, 80), (6, 120), (1000, 120)])
def test_a_driver_that_is_not_there_is_looked_for_soon_and_then_ever_later(not_ready: int, seconds: float) -> None:
    assert pace.look_again_seconds(15, not_ready, 0.5) == seconds


def test_looks_are_spread() -> None:
    assert pace.look_again_seconds(100, 0, 0.0) == pytest.approx(80)
    assert pace.look_again_seconds(100, 0, 1.0) == pytest.approx(120)


def test_a_slow_period_is_not_overtaken_by_the_backoff_for_ever() -> None:
    assert pace.look_again_seconds(600, 50, 0.5) == 600


@pytest.mark.parametrize(("max_age", "seconds"), [(900, 300), (300, 100), (30, 10), (86400, 300)])
def test_an_unchanged_report_is_renewed_well_before_it_is_too_old(max_age: int, seconds: float) -> None:
    assert pace.refresh_seconds(Settings(node="n"), max_age) == seconds


def test_the_refresh_can_be_set() -> None:
    assert pace.refresh_seconds(Settings(node="n", refresh_seconds=7), 900) == 7


def test_writing() -> None:
    now = decide.desired(facts(), NOW)
    later = decide.desired(facts(clock_offset_seconds=-0.2), NOW + timedelta(seconds=59))
    assert pace.must_write(None, now, 60, NOW)
    assert not pace.must_write(now, later, 60, NOW + timedelta(seconds=59))
    assert pace.must_write(now, later, 60, NOW + timedelta(seconds=60))
    assert pace.must_write(now, decide.desired(facts(seen(nvml=nvidia("sm_90"))), NOW), 60, NOW)
    assert pace.must_write(({**now[0], "fdl.dev/x": "y"}, now[1]), now, 60, NOW)
