import math
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdl_trainer.tail import MAX_COUNTER, TAIL_SLOTS, Flag, RankTail, decode, encode

counters = st.integers(0, MAX_COUNTER - 1)
fp32 = st.floats(0, 1e6, width=32)
tails = st.builds(
    RankTail,
    uid=st.just("x"),
    batches=counters,
    samples=counters,
    skipped=counters,
    compute_ms=fp32,
    wait_ms=fp32,
    fill_ms=fp32,
    reduce_ms=fp32,
    loss_sum=st.floats(-1e6, 1e6, width=32),
    divergence=fp32,
    formed_epoch=counters,
    flags=st.integers(0, 15).map(Flag),
    digest=counters,
    lr=fp32,
    slots=counters,
)


def as_fp32(value: float) -> float:
    return float(struct.unpack("f", struct.pack("f", value))[0])


def test_the_learning_rate_is_the_largest_that_anybody_trains_with() -> None:
    ranks = [RankTail("a", lr=0.5), RankTail("b", lr=math.nan), RankTail("c", lr=0.75)]
    assert decode(reduced(*ranks), ["a", "b", "c"]).lr == 0.75
    assert decode(reduced(RankTail("a")), ["a"]).lr == 0.0


@given(ranks=st.lists(tails, min_size=1, max_size=6))
def test_the_sum_of_all_tails_gives_everybody_everybodys_figures_exactly(ranks: list[RankTail]) -> None:
    uids = [f"r{i}" for i in range(len(ranks))]
    sums = [0.0] * (TAIL_SLOTS * len(ranks))
    for i, own in enumerate(ranks):
        sums = [as_fp32(a + as_fp32(b)) for a, b in zip(sums, encode(own, i, len(ranks)), strict=True)]
    for uid, sent, got in zip(uids, ranks, decode(sums, uids).ranks, strict=True):
        assert got == RankTail(**{**vars(sent), "uid": uid})


def reduced(*ranks: RankTail) -> list[float]:
    tails = [encode(own, i, len(ranks)) for i, own in enumerate(ranks)]
    return [sum(column) for column in zip(*tails, strict=True)]


def test_a_loss_that_is_not_finite_spoils_only_its_owners_slot() -> None:
    tail = decode(reduced(RankTail("a", 1, 4, loss_sum=math.nan), RankTail("b", 2, 8, loss_sum=4.0)), ["a", "b"])
    assert math.isnan(tail.ranks[0].loss_sum)
    assert tail.ranks[1].loss_sum == 4.0
    assert tail.loss is None
    assert tail.samples == 12


def test_the_loss_is_a_mean_over_samples_whatever_the_number_of_ranks() -> None:
    ranks = [RankTail("a", 1, 4, loss_sum=8.0), RankTail("b", 2, 8, loss_sum=4.0), RankTail("c")]
    assert decode(reduced(*ranks), ["a", "b", "c"]).loss == 1.0
    assert decode(reduced(RankTail("c")), ["c"]).loss is None


def test_ranks_that_know_no_loss_do_not_make_that_of_others_smaller() -> None:
    silent = RankTail("b", 2, 8, flags=Flag.NO_LOSS)
    assert decode(reduced(RankTail("a", 1, 4, loss_sum=8.0), silent), ["a", "b"]).loss == 2.0
    tail = decode(reduced(silent), ["b"])
    assert tail.loss is None and not (tail.stop or tail.save or tail.checkpoint)


def test_wishes_of_one_are_valid_for_all() -> None:
    tail = decode(reduced(RankTail("a", flags=Flag.STOP | Flag.SAVE), RankTail("b", flags=Flag.LEAVING)), ["a", "b"])
    assert (tail.stop, tail.save, tail.checkpoint) == (True, True, False)
    assert [rank.leaving for rank in tail.ranks] == [False, True]


def test_a_new_epoch_counts_when_the_last_rank_has_formed_it() -> None:
    tail = decode(reduced(RankTail("a", formed_epoch=7), RankTail("b", formed_epoch=6)), ["a", "b"])
    assert tail.formed_epoch == 6


def test_the_reduce_costs_what_the_last_to_arrive_spent_in_it() -> None:
    """The others' time contains their waiting, and a rank that was in no reduce says nothing."""
    tail = decode(
        reduced(RankTail("early", reduce_ms=80.0), RankTail("late", reduce_ms=5.0), RankTail("joiner")),
        ["early", "late", "joiner"],
    )
    assert tail.reduce_ms == 5.0
    assert decode(reduced(RankTail("a")), ["a"]).reduce_ms == 0.0


def test_plans_that_differ_are_seen() -> None:
    assert decode(reduced(RankTail("a", digest=5), RankTail("b", digest=5)), ["a", "b"]).agreed
    assert not decode(reduced(RankTail("a", digest=5), RankTail("b", digest=6)), ["a", "b"]).agreed


def test_a_counter_that_fp32_cannot_carry_is_refused() -> None:
    with pytest.raises(ValueError, match="samples of rank a is 16777216"):
        encode(RankTail("a", samples=MAX_COUNTER), 0, 1)


def test_a_tail_of_another_cohort_is_refused() -> None:
    with pytest.raises(ValueError, match="14 floats"):
        decode(reduced(RankTail("a")), ["a", "b"])
    with pytest.raises(ValueError, match="no whole numbers"):
        decode([0.5, *[0.0] * 13], ["a"])


@given(tails)
def test_a_model_that_is_not_finite_counts_for_nothing_and_says_so(own: RankTail) -> None:
    void = own.not_finite()
    assert (void.batches, void.samples, void.skipped, void.loss_sum) == (0, 0, 0, 0.0)
    assert Flag.NONFINITE in void.flags and void.flags & own.flags == own.flags
    assert (void.compute_ms, void.digest, void.formed_epoch) == (own.compute_ms, own.digest, own.formed_epoch)
