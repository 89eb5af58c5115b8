"""Every end of a rank becomes one code and one sentence."""

import signal

import pytest

from fdl_api.exitcodes import PodExit
from fdl_api.reasons import Ended
from fdl_api.termination import Cause, Saved, Termination
from fdl_api.wire import Done
from fdl_trainer.agent import leave_budget
from fdl_trainer.ending import kept
from fdl_trainer.verdict import RankEnd, member_end, rank_end

FINE = Termination(cause=Cause.COMPLETE, reason=Ended.COMPLETED, message="The run is complete.")


@pytest.mark.parametrize(
    ("end", "code", "cause", "reason"),
    [
        (RankEnd(0, 0, FINE), PodExit.DONE, Cause.COMPLETE, Ended.COMPLETED),
        (RankEnd(0, -signal.SIGKILL), PodExit.KILLED, Cause.INFRASTRUCTURE, Ended.KILLED),
        (RankEnd(0, -signal.SIGKILL, collateral=True), PodExit.KILLED, Cause.INFRASTRUCTURE, Ended.KILLED),
        (RankEnd(0, -9, collateral=True, given_up="No heartbeat."), PodExit.FENCED, Cause.FENCED, Ended.FENCED),
        (RankEnd(0, -signal.SIGKILL, out_of_memory=True), PodExit.KILLED, Cause.APP, Ended.OUT_OF_MEMORY),
        (RankEnd(0, -signal.SIGKILL, forced=True), PodExit.TERMINATED, Cause.PREEMPTION, Ended.LEFT),
        (RankEnd(0, -signal.SIGSEGV), PodExit.INTERNAL, Cause.INFRASTRUCTURE, Ended.KILLED),
        (RankEnd(0, -signal.SIGTERM), PodExit.TERMINATED, Cause.PREEMPTION, Ended.LEFT),
        (RankEnd(0, 3), PodExit.USER_CODE, Cause.APP, Ended.SCRIPT_EXITED),
        (RankEnd(0, 0), PodExit.USER_CODE, Cause.APP, Ended.SCRIPT_EXITED),
    ],
)
def test_each_end_has_its_code(end: RankEnd, code: PodExit, cause: Cause, reason: str) -> None:
    words, given = rank_end(end)
    assert (given, words.cause, words.reason) == (code, cause, reason)
    assert words.message.endswith(".") and (words.rank == 0)


def test_time_that_ran_out_is_said_to_be_incomplete() -> None:
    assert rank_end(RankEnd(0, -9, forced=True))[0].saved is Saved.INCOMPLETE


def test_a_script_that_does_not_end_after_a_complete_run_does_not_spoil_it() -> None:
    words, code = rank_end(RankEnd(0, -9, forced=True, done=Done(exit_code=0, reason="Completed", message="All done")))
    assert code is PodExit.DONE and words.cause is Cause.COMPLETE and "killed" in words.message


def test_the_rank_that_ended_first_speaks_for_the_member() -> None:
    failed = Termination(cause=Cause.APP, reason=Ended.SCRIPT_RAISED, message="It raised.")
    words, code = member_end([RankEnd(1, 64, failed), RankEnd(0, -9, collateral=True)])
    assert code is PodExit.USER_CODE and words.rank == 1 and words.reason == Ended.SCRIPT_RAISED


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (
            RankEnd(1, -9, collateral=True, given_up="member m was given up: no heartbeat for 2 s."),
            "no heartbeat for 2 s",
        ),
        (RankEnd(1, -9, collateral=True), "another rank of the member had ended"),
    ],
)
def test_a_rank_that_its_own_agent_killed_is_not_said_to_be_killed_from_outside(end: RankEnd, why: str) -> None:
    message = rank_end(end)[0].message
    assert message.startswith("Rank 1 was killed by this member's own agent") and why in message
    assert "outside" not in message


def test_one_failed_rank_outweighs_those_that_ended_well() -> None:
    assert member_end([RankEnd(0, 0, FINE), RankEnd(1, -9)])[1] is PodExit.KILLED


@pytest.mark.parametrize(
    ("said", "durable", "window", "saved"),
    [
        (Saved.SAVED, -1, 9, Saved.SAVED),  # the writer is another rank; the coordinator has heard of its success
        (Saved.COMMITTED, -1, 9, Saved.COMMITTED),
        (Saved.INCOMPLETE, 5, 9, Saved.INCOMPLETE),
        (Saved.INCOMPLETE, 9, 9, Saved.SAVED),  # the word was on its way while this rank's own checkpoint was published
        (None, -1, 9, Saved.INCOMPLETE),
        (None, 9, 9, Saved.SAVED),
        (Saved.SAVED, -1, 0, Saved.NOTHING),
    ],
)
def test_work_is_said_to_be_saved_only_by_who_knows(
    said: Saved | None, durable: int, window: int, saved: Saved
) -> None:
    assert kept(said, durable, window) is saved


@pytest.mark.parametrize(("grace", "budget"), [(30.0, 25.0), (600.0, 595.0), (10.0, 8.0), (0.0, 0.5)])
def test_ranks_get_the_pods_grace_minus_a_margin(grace: float, budget: float) -> None:
    assert leave_budget(grace) == budget
