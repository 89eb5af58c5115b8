import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdl_trainer.elche.hints import GOOD_ENOUGH, LEAST_SHARE_BATCHES, RATIO_CAP, fixed_shares, usable, whole_batches


@pytest.mark.parametrize(
    ("ratios", "batches"),
    [
        ((0.5, 0.5), [1, 1]),
        ((0.7, 0.3), [7, 3]),
        ((0.8, 0.2), [4, 1]),
        ((0.25, 0.25, 0.5), [1, 1, 2]),
        ((1.0,), [1]),
        ((0.999, 0.001), [64, 1]),
    ],
)
def test_fixed_shares_are_the_shortest_window_that_is_right(ratios: tuple[float, ...], batches: list[int]) -> None:
    assert fixed_shares(ratios) == batches


@pytest.mark.parametrize("ratios", [None, (), (0.5, 0.5), (0.5, 0.5, 0.0)])
def test_ratios_that_do_not_fit_the_ranks_are_left_out(ratios: tuple[float, ...] | None) -> None:
    assert usable(ratios, 3) is None
    assert usable((0.2, 0.3, 0.5), 3) == (0.2, 0.3, 0.5)


def test_first_quotas_follow_the_ratios_from_the_smallest_on() -> None:
    assert whole_batches((0.2, 0.3, 0.5), 2) == [2, 3, 5]


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=12))
def test_whole_batches_can_never_be_better_than_the_smallest_share_allows(ratios: list[float]) -> None:
    batches = fixed_shares(ratios)
    assert 1 <= min(batches) <= LEAST_SHARE_BATCHES
    assert max(batches) <= LEAST_SHARE_BATCHES * RATIO_CAP
    if max(ratios) / min(ratios) <= RATIO_CAP:
        shares = [count / sum(batches) for count in batches]
        error = max(abs(s - r / sum(ratios)) / (r / sum(ratios)) for s, r in zip(shares, ratios, strict=True))
        assert error <= max(GOOD_ENOUGH, 1.0 / LEAST_SHARE_BATCHES) + 1e-9
