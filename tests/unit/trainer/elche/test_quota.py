import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdl_api.spec_policy import RATIO_CAP
from fdl_trainer.elche.quota import best_window, within_epoch


def rate(quotas: dict[str, int], speeds: dict[str, float]) -> float:
    """Batches a millisecond of a window."""
    return sum(quotas.values()) / max(quotas[uid] * ms for uid, ms in speeds.items())


@pytest.mark.parametrize(
    ("speeds", "anchor", "quotas"),
    [
        ([4.0, 9.2], 10, [23, 10]),
        ([4.0, 9.2], 49, [113, 49]),
        ([4.0, 9.2], 50, [115, 50]),
        ([1.0, 1.0, 4.0], 7, [28, 28, 7]),
        ([5.0, 5.0], 3, [3, 3]),
        ([1.0, 1000.0], 3, [192, 3]),
    ],
)
def test_quotas_of_known_speeds(speeds: list[float], anchor: int, quotas: list[int]) -> None:
    named = {f"r{i}": ms for i, ms in enumerate(speeds)}
    assert list(best_window(named, anchor, max(speeds)).values()) == quotas


def test_a_rank_rounded_up_does_not_make_all_others_wait() -> None:
    """At 10 batches of 10 ms, 10.6 batches of 9.4 ms would be rounded to 11, 3.4 ms too long for seven ranks."""
    speeds = {f"r{i}": 10.0 for i in range(7)} | {"fast": 9.4}
    assert set(best_window(speeds, 10, 10.0).values()) == {10}


@given(
    ms=st.lists(st.floats(0.05, 1.0), min_size=1, max_size=12),
    anchor=st.integers(1, 60),
)
def test_no_window_between_a_and_a_half_batch_more_has_more_batches_a_millisecond(ms: list[float], anchor: int) -> None:
    speeds = {"slow": 1.0, **{f"r{i}": value for i, value in enumerate(ms)}}
    quotas = best_window(speeds, anchor, 1.0)
    assert quotas["slow"] == anchor
    assert max(quotas[uid] * value for uid, value in speeds.items()) < anchor + 0.5
    for step in range(50):
        length = anchor + step / 100
        others = {uid: max(1, math.floor(length / value)) for uid, value in speeds.items()}
        assert rate(quotas, speeds) >= rate(others, speeds) * (1 - 1e-9)


@given(
    st.dictionaries(st.text(min_size=1, max_size=3), st.floats(0.01, 1e4), min_size=1, max_size=8), st.integers(1, 50)
)
def test_quotas_are_from_one_to_64_anchors(speeds: dict[str, float], anchor: int) -> None:
    for slow_ms in (max(speeds.values()), min(speeds.values())):
        quotas = best_window(speeds, anchor, slow_ms)
        assert all(1 <= quota <= RATIO_CAP * anchor for quota in quotas.values())


@given(st.dictionaries(st.text(max_size=3), st.integers(1, 200), min_size=1, max_size=20), st.integers(1, 300))
def test_a_window_is_cut_to_an_epoch_and_nobody_is_left_without(quotas: dict[str, int], epoch_batches: int) -> None:
    capped, binding = within_epoch(quotas, epoch_batches)
    assert binding is (sum(quotas.values()) > epoch_batches)
    assert sum(capped.values()) == (max(epoch_batches, len(quotas)) if binding else sum(quotas.values()))
    assert min(capped.values()) >= 1
