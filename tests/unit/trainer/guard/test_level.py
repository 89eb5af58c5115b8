import math

import pytest

from fdl_trainer.guard import Verdict
from fdl_trainer.guard.level import LEVEL_RING, level, remember


@pytest.mark.parametrize(
    ("ring", "verdict"),
    [
        ([], Verdict.STABLE),
        ([0.01, 0.9], Verdict.STABLE),
        ([0.01, 0.04, 0.06], Verdict.SUPPRESS_GROWTH),
        ([0.01, 0.02, 0.05], Verdict.STABLE),
        ([0.9, 0.8, 0.7], Verdict.STABLE),
        ([0.1, 0.2, 0.2], Verdict.STABLE),
        ([0.9, 0.1, 0.2, 0.3], Verdict.SUPPRESS_GROWTH),
    ],
)
def test_growth_stops_only_after_three_rises_above_the_threshold(ring: list[float], verdict: Verdict) -> None:
    assert level(ring, 0.05).verdict is verdict


def test_the_ring_holds_the_newest_measured_values() -> None:
    ring: tuple[float, ...] = ()
    for value in [0.1, 0.0, math.nan, math.inf, -1.0, 0.2, 0.3, 0.4, 0.5, 0.6]:
        ring = remember(ring, value)
    assert ring == (0.2, 0.3, 0.4, 0.5, 0.6)
    assert len(ring) == LEVEL_RING


def test_the_reason_has_the_figures() -> None:
    assert level([0.01, 0.04, 0.06], 0.05).why == "Divergence rose three times (0.01, 0.04, 0.06) and is above 0.05."
