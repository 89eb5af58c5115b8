"""Groups that never come to stand: people hear which rank said what, and the tries become rarer."""

import pytest

from fdl_api import wire
from fdl_api.reasons import Ended
from fdl_api.run import Mode
from fdl_api.spec_policy import BudgetsSpec, FailurePolicySpec
from fdl_api.wire import Outcome
from fdl_coordinator import forming
from fdl_coordinator.forming import LONGEST_PAUSE_SECONDS, TELL_AFTER, Failures, pause, remedy
from fdl_coordinator.report import snapshot
from tests.unit.coordinator.cohort import Cohort, SimulatedRank, run_config

NO_WAY = "NCCL error in ncclCommInitRank: connect to 10.0.0.1<41234> failed: no route to host."


def formed(*blocked: int, mode: Mode = Mode.CPU_CADENCE, infrastructure: int = 50) -> Cohort:
    policy = FailurePolicySpec(budgets=BudgetsSpec(infrastructure=infrastructure))
    cohort = Cohort(run_config(mode=mode, failure_policy=policy))
    for ordinal in range(3):
        cohort.ranks[f"m{ordinal}.1/0"] = SimulatedRank(f"m{ordinal}.1/0", blocked=NO_WAY if ordinal in blocked else "")
    for ordinal in range(3):
        cohort.dial(ordinal)
    return cohort


def join(cohort: Cohort, ordinal: int, blocked: str = "") -> SimulatedRank:
    cohort.ranks[f"m{ordinal}.1/0"] = SimulatedRank(f"m{ordinal}.1/0", blocked=blocked)
    return cohort.dial(ordinal)


def train(cohort: Cohort, seconds: float) -> None:
    """Windows of 2 s."""
    end = cohort.now + seconds
    while cohort.now < end:
        cohort.window()
        cohort.pass_time(1.8)


def in_epoch(cohort: Cohort) -> list[str]:
    return cohort.engine.epochs.uids()


def test_a_cohort_whose_ranks_do_not_reach_each_other_says_whose_report_and_what_to_do() -> None:
    cohort = formed(1)
    cohort.pass_time(5.0)
    assert cohort.engine.group_failures.count == TELL_AFTER - 1
    assert snapshot(cohort.engine).problem == "" and cohort.engine.outcome is Outcome.TRAINING, "it may still pass"
    cohort.pass_time(5.0)
    state = snapshot(cohort.engine)
    assert state.outcome is Outcome.RECOVERING, "nobody trains"
    assert "The group of all ranks failed 3 times in a row, last as epoch 3" in state.problem
    assert f"rank 0 of digits-cpu-1-1 on node node1 says: {NO_WAY}" in state.problem
    assert "GLOO_SOCKET_IFNAME" in state.problem and "firewall" in state.problem


def test_the_tries_become_rarer() -> None:
    cohort = formed(0, 1, 2)
    cohort.pass_time(600.0)
    first = len(cohort.epochs)
    assert first <= TELL_AFTER + 5 + 600 / LONGEST_PAUSE_SECONDS
    assert "(2 more ranks reported it)" in snapshot(cohort.engine).problem
    cohort.pass_time(2 * LONGEST_PAUSE_SECONDS + 10.0)
    assert first + 1 <= len(cohort.epochs) <= first + 3


@pytest.mark.parametrize(("budget", "tries", "limit"), [(5, 6, "of 5."), (0, 4, "of 0 (of 3 at least).")])
def test_more_tries_than_the_budget_of_infrastructure_end_the_run_with_the_sentence(
    budget: int, tries: int, limit: str
) -> None:
    cohort = formed(1, infrastructure=budget)
    cohort.pass_time(600.0)
    state = snapshot(cohort.engine)
    assert (state.outcome, state.reason, len(cohort.epochs)) == (Outcome.FAILED, Ended.MAX_FAILURES, tries)
    assert f"exceed spec.failurePolicy.budgets.infrastructure {limit}" in state.message
    assert f"rank 0 of digits-cpu-1-1 on node node1 says: {NO_WAY}" in state.message and "firewall" in state.message
    assert all(rank.done is not None for rank in cohort.ranks.values()), "and all are let go"


def test_tries_with_a_commit_in_between_are_not_in_a_row() -> None:
    cohort = formed(infrastructure=0)
    for _ in range(4 * TELL_AFTER):
        rank = cohort.training()[0]
        assert rank.epoch is not None
        report = wire.ReduceFailed(epoch=rank.epoch.epoch, window=1, message="connection reset")
        cohort.deliver(cohort.engine.reduce_failed(rank.uid, report, cohort.now))
        cohort.pass_time(3.0)
        cohort.window()
    assert cohort.engine.outcome is Outcome.TRAINING and len(cohort.epochs) > 3 * TELL_AFTER


def test_a_run_that_stops_already_is_not_failed_for_its_group() -> None:
    cohort = formed(1, infrastructure=0)
    cohort.deliver(cohort.engine.hinted(wire.Hint(wanted_members=3, suspend=True), cohort.now))
    cohort.pass_time(300.0)
    assert cohort.engine.outcome is Outcome.STOPPING


def test_the_word_is_taken_back_when_the_group_stands() -> None:
    cohort = formed(1)
    cohort.pass_time(10.0)
    assert snapshot(cohort.engine).problem
    cohort.ranks["m1.1/0"].blocked = ""
    cohort.pass_time(20.0)
    assert snapshot(cohort.engine).problem == ""
    cohort.window()
    assert cohort.engine.outcome is Outcome.TRAINING


def test_reduces_that_fail_again_and_again_are_told_too_until_one_succeeds() -> None:
    cohort = formed()
    for _ in range(TELL_AFTER):
        epoch = cohort.training()[0].epoch
        assert epoch is not None
        for rank in cohort.training()[:2]:
            report = wire.ReduceFailed(epoch=epoch.epoch, window=1, message="Ranks planned window 1 differently")
            cohort.deliver(cohort.engine.reduce_failed(rank.uid, report, cohort.now))
        cohort.pass_time(3.0)
    assert "says: Ranks planned window 1 differently." in snapshot(cohort.engine).problem
    cohort.pass_time(10.0)
    cohort.window()
    assert snapshot(cohort.engine).problem == ""


def test_a_joiner_that_can_never_form_a_group_is_named_while_the_run_goes_on() -> None:
    cohort = formed()
    join(cohort, 3, NO_WAY)
    train(cohort, 120.0)
    state = snapshot(cohort.engine)
    assert state.outcome is Outcome.TRAINING and state.window > 50
    assert "The change of membership for digits-cpu-3-1 failed" in state.problem
    assert NO_WAY in state.problem and "The run goes on as it is" in state.problem
    assert len(cohort.epochs) < 12, "no new try in each tick"
    # It keeps neither others out nor leavers in.
    join(cohort, 4)
    cohort.leave(cohort.ranks["m2.1/0"])
    train(cohort, 4.0)
    assert in_epoch(cohort) == ["m0.1/0", "m1.1/0", "m4.1/0"] and cohort.ranks["m2.1/0"].done is not None
    assert "digits-cpu-3-1" in snapshot(cohort.engine).problem
    # And it comes in once it can.
    cohort.ranks["m3.1/0"].blocked = ""
    train(cohort, LONGEST_PAUSE_SECONDS + 10.0)
    assert in_epoch(cohort) == ["m0.1/0", "m1.1/0", "m4.1/0", "m3.1/0"]
    assert snapshot(cohort.engine).problem == ""


def test_of_two_joiners_the_one_that_can_comes_in() -> None:
    cohort = formed()
    join(cohort, 3, NO_WAY)
    join(cohort, 4)
    train(cohort, 60.0)
    assert in_epoch(cohort) == ["m0.1/0", "m1.1/0", "m2.1/0", "m4.1/0"]
    assert "for digits-cpu-3-1 failed" in snapshot(cohort.engine).problem


def test_a_joiner_that_says_nothing_at_all_is_named_after_some_tries() -> None:
    cohort = formed()
    join(cohort, 3, blocked="silent")
    train(cohort, 100.0)
    problem = snapshot(cohort.engine).problem
    assert "rank 0 of digits-cpu-0-1 on node node0 says: (nothing: its group did not stand within 30 s)" in problem
    assert "for digits-cpu-3-1 failed 3 times" in problem


def test_a_group_of_which_nothing_is_heard_is_told_by_its_missing_ranks() -> None:
    cohort = formed()
    cohort.window()
    for rank in cohort.ranks.values():
        rank.blocked = "silent"
    cohort.kill(cohort.ranks["m0.1/0"])
    cohort.pass_time(110.0)
    assert snapshot(cohort.engine).problem == ""
    cohort.pass_time(20.0)
    state = snapshot(cohort.engine)
    assert "The group of epoch 2 has not come to stand for more than 2 min" in state.problem
    assert "rank 0 of digits-cpu-1-1 on node node1, rank 0 of digits-cpu-2-1 on node node2" in state.problem
    assert state.outcome is Outcome.RECOVERING


def test_another_change_counts_anew() -> None:
    known = Failures()
    for epoch in (1, 2):
        known.report("abc", epoch, "a/0", "one", 10.0)
        known.report("abc", epoch, "b/0", "two", 11.0)
    assert (known.count, known.rank, known.text, known.ranks, known.telling) == (2, "a/0", "one", 2, False)
    known.report("ab", 3, "b/0", "three", 12.0)
    assert (known.count, known.text, known.again_at) == (1, "three", 12.0)
    known.clear()
    assert known == Failures()


def test_the_pause_doubles_up_to_a_minute() -> None:
    assert [pause(count) for count in (0, 1, 2, 3, 4, 5, 6, 7, 1000)] == [0, 0, 0, 5, 10, 20, 40, 60, 60]


@pytest.mark.parametrize(("mode", "name", "other"), [(Mode.NCCL_SYNC, "NCCL", True), (Mode.CPU_ASYNC, "GLOO", False)])
def test_the_remedy_is_of_the_mode(mode: Mode, name: str, other: bool) -> None:
    text = remedy(mode)
    assert f"{name}_SOCKET_IFNAME in spec.trainer.env" in text
    assert ("spec.mode to 'cpu-cadence'" in text) is other


def test_a_long_report_is_quoted_in_part_and_the_remedy_stays() -> None:
    known = Failures()
    known.report("x", 1, "a/0", "word\n" * 1000, 0.0)
    said = forming.failed(known, "rank 0 of m", "", Mode.NCCL_CADENCE)
    assert len(said) < 2048 and "\n" not in said and said.endswith("in a new run.")
