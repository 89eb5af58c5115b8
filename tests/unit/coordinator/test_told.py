"""What members and people are told: whether work is saved, and who is stuck."""

from datetime import UTC, datetime
from typing import Any

import pytest

from fdl_api import wire
from fdl_api.reasons import Ended
from fdl_api.termination import Saved
from fdl_coordinator.report import snapshot
from tests.unit.coordinator.cohort import Cohort, SimulatedRank


def three() -> Cohort:
    cohort = Cohort()
    for ordinal in range(3):
        cohort.dial(ordinal)
    return cohort


def saved(cohort: Cohort, window: int) -> None:
    report = wire.CheckpointSaved(
        window=window, samples=1, path="ckpt", size_bytes=1, stall_ms=0.0, write_ms=0.0, final=False
    )
    cohort.deliver(cohort.engine.saved("m0.1/0", report, cohort.now))


def told(rank: SimulatedRank) -> Saved | None:
    assert rank.done is not None
    return rank.done.saved


@pytest.mark.parametrize(("checkpoint", "word"), [(None, Saved.COMMITTED), (1, Saved.COMMITTED), (2, Saved.SAVED)])
def test_a_leaver_is_told_whether_a_checkpoint_has_its_work(checkpoint: int | None, word: Saved) -> None:
    cohort = three()
    cohort.window()
    leaver = cohort.ranks["m2.1/0"]
    cohort.leave(leaver)
    if checkpoint is not None:
        saved(cohort, checkpoint)
    cohort.window()
    cohort.pass_time(0.4)
    assert leaver.window == 2 and told(leaver) is word


@pytest.mark.parametrize(("checkpoint", "word"), [(None, Saved.INCOMPLETE), (2, Saved.SAVED)])
def test_when_all_stop_only_a_checkpoint_keeps_their_work(checkpoint: int | None, word: Saved) -> None:
    cohort = three()
    cohort.window()
    cohort.deliver(cohort.engine.hinted(wire.Hint(wanted_members=3, suspend=True), cohort.now))
    cohort.window()
    if checkpoint is not None:
        saved(cohort, checkpoint)
    cohort.finish()
    assert {told(rank) for rank in cohort.ranks.values()} == {word}


def test_a_checkpoint_that_failed_is_not_taken_for_a_saved_one() -> None:
    cohort = three()
    cohort.window()
    saved(cohort, 1)
    cohort.window(final=True)
    failed = wire.CheckpointFailed(window=2, reason=Ended.CHECKPOINT_FULL, message="no space left", final=True)
    cohort.deliver(cohort.engine.save_failed("m0.1/0", failed, cohort.now))
    cohort.finish()
    assert {told(rank) for rank in cohort.ranks.values()} == {Saved.INCOMPLETE}


def test_what_was_resumed_from_is_saved() -> None:
    cohort = Cohort()
    for ordinal in range(3):
        cohort.dial(ordinal, committed=wire.Position(epoch=0, window=5))
    cohort.deliver(cohort.engine.hinted(wire.Hint(wanted_members=3, suspend=True), cohort.now))
    cohort.finish()
    assert {told(rank) for rank in cohort.ranks.values()} == {Saved.SAVED}


def messages(cohort: Cohort) -> dict[str, str]:
    return {item.uid: item.message for item in snapshot(cohort.engine).members}


def test_a_rank_that_is_alive_and_finishes_no_batch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cohort = three()
    cohort.window()

    def beat(rank: SimulatedRank) -> wire.Heartbeat:
        # The one hangs in its script; the others stand in the reduce, without progress too.
        phase = wire.Phase.TRAIN if rank.uid == "m1.1/0" else wire.Phase.REDUCE
        values: dict[str, Any] = {"phase": phase, "epoch": 1, "window": 2, "progress": 7}
        return wire.Heartbeat(**values)

    monkeypatch.setattr(cohort, "beat", beat)
    cohort.pass_time(30)
    assert set(messages(cohort).values()) == {""}
    cohort.pass_time(100)
    words = messages(cohort)
    assert "no batch for more than 2 min" in words["m1.1"] and "delete its pod" in words["m1.1"]
    assert words["m0.1"] == words["m2.1"] == ""
    assert cohort.engine.progress.deaths == 0, "late is not dead"
    monkeypatch.undo()
    cohort.pass_time(1)
    assert messages(cohort)["m1.1"] == ""


def test_when_nobody_is_heard_it_is_told_since_when_long_before_anybody_is_given_up() -> None:
    cohort = three()
    cohort.window()
    assert snapshot(cohort.engine).unheard_since == ""
    cohort.pass_time(3, silent=list(cohort.ranks.values()))
    told = snapshot(cohort.engine)
    since = datetime.fromisoformat(told.unheard_since)
    assert 2.0 <= (datetime.now(UTC) - since).total_seconds() < 600.0, "when they were last heard, by the wall clock"
    assert (told.outcome, told.deaths, told.samples_per_second) == (wire.Outcome.TRAINING, 0, 0.0)
    cohort.pass_time(20, silent=list(cohort.ranks.values()))
    assert snapshot(cohort.engine).unheard_since == told.unheard_since, "what goes on is no news"
    cohort.pass_time(0.4)
    assert snapshot(cohort.engine).unheard_since == ""


def test_one_that_is_silent_among_others_is_dead_and_not_told_as_silence() -> None:
    cohort = three()
    cohort.pass_time(3, silent=[cohort.ranks["m2.1/0"]])
    assert (snapshot(cohort.engine).unheard_since, cohort.engine.progress.deaths) == ("", 1)


def test_checkpoints_that_were_passed_over_are_told_until_the_next_one_is_durable() -> None:
    cohort = Cohort()
    for ordinal, why in enumerate(["Checkpoint 4 is skipped: cut off.", "", "Checkpoint 4 is skipped: cut off."]):
        cohort.dial(ordinal, committed=wire.Position(epoch=0, window=3), checkpoint_error=why)
    cohort.window()
    assert snapshot(cohort.engine).checkpoints_skipped == ["Checkpoint 4 is skipped: cut off."]
    saved(cohort, 4)
    assert snapshot(cohort.engine).checkpoints_skipped == []


def test_a_member_that_committed_with_work_of_its_own_is_told() -> None:
    cohort = three()
    cohort.pass_time(0.4)
    assert {member.committed for member in snapshot(cohort.engine).members} == {False}
    cohort.window()
    assert {member.committed for member in snapshot(cohort.engine).members} == {True}
