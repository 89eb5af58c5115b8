import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdl_api.run import ElcheSpec
from fdl_api.spec_policy import RATIO_CAP
from fdl_trainer.elche import Policy
from fdl_trainer.elche.hints import (
    GOOD_ENOUGH,
    LEAST_SHARE_BATCHES,
    NOWHERE,
    Seated,
    Seating,
    fixed_shares,
    shares,
    whole_batches,
)
from fdl_trainer.elche.prior import Hardware

FAST, SLOW = Hardware("cpu", "x86_64", 1, 4000), Hardware("cpu", "x86_64", 1, 1000)


def seated(**seats: int) -> Seating:
    """A run of three seats."""
    return Seating(3, {uid: Seated(seat, FAST if uid == "fast" else SLOW) for uid, seat in seats.items()})


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


RATIOS = ElcheSpec(partition_ratios=(0.2, 0.3, 0.5))


@pytest.mark.parametrize("policy", Policy)
def test_a_share_belongs_to_a_seat_and_not_to_the_order_of_arrival(policy: Policy) -> None:
    assert shares(["a", "b", "c"], seated(a=0, b=1, c=2), RATIOS, policy) == {"a": 0.2, "b": 0.3, "c": 0.5}
    # a died and its successor comes last.
    assert shares(["b", "c", "a2"], seated(b=1, c=2, a2=0), RATIOS, policy) == {"b": 0.3, "c": 0.5, "a2": 0.2}
    # While nobody sits on seat 0, the others keep theirs.
    assert shares(["b", "c"], seated(b=1, c=2), RATIOS, policy) == {"b": 0.3, "c": 0.5}


@pytest.mark.parametrize(
    ("ratios", "seating"),
    [
        ((0.5, 0.5), seated(a=0, b=1)),  # two shares for three seats, though two ranks are there
        ((0.25, 0.25, 0.25, 0.25), seated(a=0, b=1, c=2)),
        ((0.2, 0.3, 0.5), seated(a=0, b=1, extra=-1)),
    ],
)
def test_ratios_that_do_not_fit_the_seats_are_left_out(ratios: tuple[float, ...], seating: Seating) -> None:
    spec = ElcheSpec(partition_ratios=ratios)
    assert shares(list(seating.ranks), seating, spec, Policy.SYNC) == {}
    assert shares(list(seating.ranks), seating, spec, Policy.CADENCE) == {}


def test_where_nobody_says_who_sits_where_ranks_sit_in_their_order() -> None:
    assert shares(["x", "y", "z"], NOWHERE, RATIOS, Policy.SYNC) == {"x": 0.2, "y": 0.3, "z": 0.5}
    assert shares(["x", "y"], NOWHERE, RATIOS, Policy.SYNC) == {}


def test_devices_decide_in_a_cadence_where_no_ratios_fit() -> None:
    seating = seated(slow=0, fast=1)
    assert shares(["slow", "fast"], seating, ElcheSpec(), Policy.CADENCE) == {"slow": 1.0, "fast": 2.0}
    assert shares(["slow", "fast"], seating, ElcheSpec(), Policy.SYNC) == {}, "there all do the same"
    assert shares(["slow", "fast"], seating, RATIOS, Policy.CADENCE) == {"slow": 0.2, "fast": 0.3}, "the user is right"
    near = ElcheSpec(max_batch_diff=1)
    assert shares(["slow", "fast"], seating, near, Policy.CADENCE) == {"slow": 1.0, "fast": 1.5}
    assert shares(["slow", "fast"], seating, ElcheSpec(max_batch_diff=0), Policy.CADENCE) == {}
    assert shares(["slow", "unheard"], seating, ElcheSpec(), Policy.CADENCE) == {}


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
