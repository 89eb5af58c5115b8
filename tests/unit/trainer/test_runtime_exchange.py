"""Who gives what to whom at the start of an epoch."""

from hypothesis import given
from hypothesis import strategies as st

from fdl_trainer.exchange import Held, decide

HELD = st.builds(
    Held,
    st.booleans(),
    st.integers(0, 5),
    st.integers(0, 3),
    st.integers(0, 2),
    st.booleans(),
    st.booleans(),
    st.integers(0, 3),
    st.integers(0, 3),
)


def test_a_row_survives_the_wire() -> None:
    held = Held(True, 2**40, 7, 0xFFFFFF, True, False, 12, 4097, 2**48 - 1)
    assert Held.of(held.row()) == held


def test_at_a_start_the_lowest_rank_gives_its_model_to_all() -> None:
    decision = decide([Held(False, 0, 0)] * 3)
    assert decision.donor == 0 and decision.model and decision.optimizer
    assert all(decision.lacks_model(rank) for rank in range(3))


def test_at_a_resume_the_newest_checkpoint_wins() -> None:
    assert decide([Held(False, 0, 0), Held(False, 12, 0), Held(False, 7, 0)]).donor == 1


def test_a_checkpoint_of_a_part_that_was_cut_off_does_not_win_by_its_window() -> None:
    cut_off = Held(False, 99, 0, attempt=2, epoch=3)
    assert decide([cut_off, Held(False, 7, 0, attempt=2, epoch=4)]).donor == 1
    assert decide([cut_off, Held(False, 7, 0, attempt=3, epoch=1)]).donor == 1
    assert decide([cut_off, Held(False, 99, 0, attempt=2), Held(False, 98, 0, attempt=2, epoch=3)]).donor == 0
    assert decide([Held(False, 0, 0), Held(False, 1, 0)]).donor == 1, "manifests of old say nothing of it"


def test_within_a_running_training_the_window_decides() -> None:
    behind = Held(True, 8, 4, attempt=1, epoch=4)
    assert decide([behind, Held(True, 9, 3, attempt=1, epoch=3)]).donor == 1


def test_a_live_state_outweighs_a_stale_checkpoint_with_a_higher_window() -> None:
    decision = decide([Held(False, 99, 0), Held(True, 7, 3)])
    assert decision.donor == 1 and decision.lacks_model(0) and not decision.lacks_model(1)


def test_the_only_holder_of_a_commit_gives_it_to_the_others() -> None:
    decision = decide([Held(True, 8, 2), Held(True, 9, 2), Held(True, 8, 2)])
    assert decision.donor == 1 and decision.model and not decision.optimizer
    assert [decision.lacks_model(rank) for rank in range(3)] == [True, False, True]


def test_equal_ranks_exchange_nothing() -> None:
    decision = decide([Held(True, 8, 2, 5), Held(True, 8, 2, 5)])
    assert not (decision.model or decision.control or decision.optimizer)


def test_a_rank_that_missed_an_epoch_keeps_its_model_and_takes_the_plan() -> None:
    decision = decide([Held(True, 8, 2, 5), Held(True, 8, 3, 6)])
    assert decision.donor == 1 and decision.control and not decision.model
    assert decision.lacks_control(0) and not decision.lacks_model(0)


def test_a_stop_is_told_to_those_who_missed_it() -> None:
    assert decide([Held(True, 8, 2), Held(True, 8, 2, stopped=True)]).stopped
    assert not decide([Held(True, 9, 2), Held(True, 8, 2, stopped=True)]).stopped


def test_the_writer_is_the_lowest_rank_that_can_write() -> None:
    assert decide([Held(True, 1, 1), Held(True, 1, 1, writable=True)]).writer == 1
    assert decide([Held(True, 1, 1)]).writer is None


@given(st.lists(HELD, min_size=1, max_size=6))
def test_the_donor_lacks_nothing_that_a_live_rank_has(held: list[Held]) -> None:
    decision = decide(held)
    source = decision.source
    live = [row for row in held if row.live]
    assert source.live == bool(live)
    if live:
        assert source.window == max(row.window for row in live)
    else:
        order = (source.attempt, source.epoch, source.window)
        assert order == max((row.attempt, row.epoch, row.window) for row in held)
    assert not source.live or not decision.lacks_control(decision.donor)
