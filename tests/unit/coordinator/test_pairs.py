"""Ranks that do not reach each other: the pair is named, with the direction, the fault and what to do."""

import pytest

from fdl_api import wire
from fdl_api.checks.pairs import PAIRS
from fdl_api.wire import BrokenPair, Outcome, PairFault, PairsTested, Reach
from fdl_coordinator import pairs
from fdl_coordinator.forming import TELL_AFTER
from fdl_coordinator.pairs import Pair, Place
from fdl_coordinator.report import snapshot
from tests.unit.coordinator.cohort import Cohort, SimulatedRank

TIMEOUT = PairFault.TIMEOUT


def report(epoch: int, *peers: str, fault: PairFault = TIMEOUT, count: int | None = None) -> PairsTested:
    broken = [BrokenPair(peer=peer, fault=fault) for peer in peers]
    return PairsTested(epoch=epoch, broken=broken, count=len(broken) if count is None else count)


def place(uid: str) -> Place:
    return Place(f"rank {uid}", f"node-{uid[0]}", f"10.0.0.{ord(uid[0]) - 96} port 7000")


def uid(ordinal: int) -> str:
    return f"m{ordinal}.1/0"


# --- pure rules -----------------------------------------------------------------------------------------


def test_every_fault_has_words_and_a_finding_in_the_catalogue() -> None:
    assert {entry.reason for entry in PAIRS.findings} == set(PairFault) == set(pairs.WORDS)


def test_a_pair_is_said_once_and_one_way_is_told_from_both() -> None:
    found = pairs.of({"a": report(3, "b", "c"), "b": report(3, "a"), "c": report(3)})
    assert found == [Pair("a", "b", TIMEOUT, back=TIMEOUT), Pair("a", "c", TIMEOUT)]


def test_of_a_rank_that_has_not_tested_in_that_epoch_or_told_not_all_nothing_is_said_of_the_way_back() -> None:
    assert pairs.of({"a": report(3, "b")}) == [Pair("a", "b", TIMEOUT, known=False)]
    assert pairs.of({"a": report(3, "b"), "b": report(2)}) == [Pair("a", "b", TIMEOUT, known=False)]
    assert pairs.of({"a": report(3, "b"), "b": report(3, "x", count=90)})[0].known is False


def test_two_ranks_are_apart_when_both_say_so_of_one_epoch() -> None:
    assert pairs.apart({"a": report(3, "b"), "b": report(3, "a")}, "a")
    assert not pairs.apart({"a": report(3, "b"), "b": report(2, "a")}, "a"), "that was another epoch"
    assert not pairs.apart({"a": report(3, "b"), "b": report(3, "c")}, "a")
    assert not pairs.apart({"a": report(3, "b")}, "a")


def test_a_sentence_names_both_ends_the_address_the_fault_and_the_direction() -> None:
    one_way = Pair("a", "b", PairFault.NO_ROUTE, "Network is unreachable")
    assert pairs.sentences([one_way], place) == (
        "Rank a does not reach rank b at 10.0.0.2 port 7000: there is no way to it, or it is forbidden (Network is "
        "unreachable); the other way works."
    )
    both = Pair("a", "b", TIMEOUT, back=PairFault.NO_ROUTE)
    assert pairs.sentences([both], place).endswith(
        "the connection timed out, nor the other way (there is no way to it, or it is forbidden)."
    )
    assert pairs.sentences([Pair("a", "b", TIMEOUT, back=TIMEOUT)], place).endswith("timed out, nor the other way.")
    assert pairs.sentences([Pair("a", "b", TIMEOUT, known=False)], place).endswith("the connection timed out.")


def test_of_many_pairs_some_are_named_and_what_they_have_in_common() -> None:
    text = pairs.sentences([Pair(each, "z", TIMEOUT) for each in "abcde"], place)
    assert text.count("does not reach") == pairs.NAMED and "So it is with 2 more pairs." in text
    assert text.endswith("All 5 broken pairs are with an end on node node-z.")
    between = pairs.sentences([Pair("a0", "b0", TIMEOUT), Pair("b1", "a1", TIMEOUT)], place)
    assert between.endswith("All 2 broken pairs are between nodes node-a and node-b.")
    assert "All" not in pairs.sentences([Pair("a", "b", TIMEOUT), Pair("c", "d", TIMEOUT)], place)


def test_remedies_are_the_catalogues_once_each() -> None:
    text = pairs.remedies([Pair("a", "b", TIMEOUT), Pair("c", "d", TIMEOUT, back=PairFault.LARGE_OUT)])
    assert text == f"{PAIRS.finding('timeout').remedy} {PAIRS.finding('large-out').remedy}"


# --- with the coordinator -------------------------------------------------------------------------------


def cohort_of(members: int = 3, blocked: str = "silent") -> Cohort:
    """Members that never form a group, and say nothing by themselves."""
    cohort = Cohort()
    cohort.pass_time(0.2)
    for ordinal in range(members):
        cohort.ranks[uid(ordinal)] = SimulatedRank(uid(ordinal), blocked=blocked)
    for ordinal in range(members):
        dial(cohort, ordinal)
    return cohort


def dial(cohort: Cohort, ordinal: int) -> None:
    cohort.dial(ordinal, reach=Reach(address=f"10.1.0.{ordinal}", port=7000 + ordinal))


def tell(cohort: Cohort, epoch: int, source: int, *targets: int, fault: PairFault = TIMEOUT) -> None:
    said = report(epoch, *map(uid, targets), fault=fault)
    cohort.deliver(cohort.engine.pairs_tested(uid(source), said, cohort.now))


def newest(cohort: Cohort) -> int:
    return cohort.epochs[-1].epoch


def test_an_epochs_members_tell_where_each_one_answers() -> None:
    cohort = cohort_of()
    assert [member.reach for member in cohort.epochs[0].members] == [
        Reach(address=f"10.1.0.{ordinal}", port=7000 + ordinal) for ordinal in range(3)
    ]


def test_two_ranks_that_do_not_reach_each_other_end_the_try_at_once_and_are_named_after_three() -> None:
    cohort = cohort_of()
    for number in range(1, TELL_AFTER + 1):
        assert newest(cohort) == number and snapshot(cohort.engine).problem == ""
        tell(cohort, number, 0, 1)
        tell(cohort, number, 1, 0)
        tell(cohort, number, 2)
        cohort.pass_time(2.9)
    state = snapshot(cohort.engine)
    assert state.outcome is Outcome.RECOVERING
    assert "The group of all ranks failed 3 times in a row, last as epoch 3" in state.problem
    assert (
        "Rank 0 of digits-cpu-0-1 on node node0 does not reach rank 0 of digits-cpu-1-1 on node node1 at 10.1.0.1 port "
        "7001: the connection timed out, nor the other way." in state.problem
    )
    assert "says:" not in state.problem and PAIRS.finding("timeout").remedy in state.problem


def test_the_pair_stays_named_while_the_next_try_runs_and_goes_when_the_group_stands() -> None:
    cohort = cohort_of()
    for number in range(1, TELL_AFTER + 1):
        tell(cohort, number, 0, 1)
        tell(cohort, number, 1, 0)
        cohort.pass_time(2.9)
    cohort.pass_time(6.0)
    assert newest(cohort) == TELL_AFTER + 1
    tell(cohort, TELL_AFTER + 1, 1, 0)
    assert "nor the other way" in snapshot(cohort.engine).problem
    for ordinal in range(3):
        tell(cohort, TELL_AFTER + 1, ordinal)
    for ordinal in range(3):
        cohort.deliver(cohort.engine.formed(uid(ordinal), wire.EpochFormed(epoch=TELL_AFTER + 1), cohort.now))
    state = snapshot(cohort.engine)
    assert state.problem == "" and state.notes == []


def test_a_group_that_stands_by_small_packets_alone_is_a_failed_try_too() -> None:
    """Forming takes small packets; where large ones are lost, no window is ever committed."""
    cohort = cohort_of()
    for number in range(1, TELL_AFTER + 1):
        assert newest(cohort) == number and snapshot(cohort.engine).problem == ""
        tell(cohort, number, 0, 1, fault=PairFault.LARGE_OUT)
        tell(cohort, number, 1, 0, fault=PairFault.LARGE_BACK)
        for ordinal in range(3):
            cohort.deliver(cohort.engine.formed(uid(ordinal), wire.EpochFormed(epoch=number), cohort.now))
        cohort.pass_time(2.9)
    state = snapshot(cohort.engine)
    assert state.outcome is Outcome.RECOVERING
    assert "large ones on the way there do not (MTU)" in state.problem
    assert PAIRS.finding("large-out").remedy in state.problem
    cohort.pass_time(1.5)
    assert newest(cohort) == TELL_AFTER, "tries become rarer"
    done = wire.WindowCommitted(epoch=TELL_AFTER, window=1, samples=10, data_epoch=0)
    for ordinal in range(3):
        cohort.deliver(cohort.engine.committed(uid(ordinal), done, cohort.now))
    state = snapshot(cohort.engine)
    assert (state.problem, state.outcome) == ("", Outcome.TRAINING), "the packets arrive again"


def test_one_direction_ends_no_try_and_is_told_when_the_group_does_not_stand() -> None:
    cohort = cohort_of()
    tell(cohort, 1, 0, 1, fault=PairFault.LARGE_BACK)
    tell(cohort, 1, 1)
    cohort.pass_time(5.0)
    assert snapshot(cohort.engine).problem == "" and newest(cohort) == 1
    cohort.pass_time(6.0)
    state = snapshot(cohort.engine)
    assert newest(cohort) == 1 and state.outcome is Outcome.RECOVERING
    assert state.problem.startswith("The group of epoch 1 does not come to stand. Rank 0 of digits-cpu-0-1 on node")
    assert "the other way works" in state.problem and PAIRS.finding("large-back").remedy in state.problem


def test_one_direction_that_the_group_can_do_without_is_a_note() -> None:
    cohort = cohort_of(blocked="")
    tell(cohort, 1, 0, 2)
    state = snapshot(cohort.engine)
    assert state.problem == "" and state.outcome is Outcome.TRAINING
    assert len(state.notes) == 1 and "The group stands all the same" in state.notes[0]
    assert "does not reach rank 0 of digits-cpu-2-1 on node node2" in state.notes[0]
    cohort.kill(cohort.ranks[uid(2)])
    assert snapshot(cohort.engine).notes == []


def test_what_is_said_of_a_group_that_stands_does_not_break_it() -> None:
    cohort = cohort_of(blocked="")
    tell(cohort, 1, 0, 1)
    tell(cohort, 1, 1, 0)
    cohort.pass_time(30.0)
    assert len(cohort.epochs) == 1 and cohort.engine.outcome is Outcome.TRAINING


def test_a_joiner_that_some_do_not_reach_stays_out_and_its_pairs_are_named_while_the_run_goes_on() -> None:
    cohort = cohort_of(blocked="")
    cohort.ranks[uid(3)] = SimulatedRank(uid(3), blocked="silent")
    dial(cohort, 3)
    for _ in range(TELL_AFTER):
        cohort.pass_time(0.4)
        number = newest(cohort)
        tell(cohort, number, 0, 3)
        tell(cohort, number, 1, 3)
        tell(cohort, number, 3, 0, 1)
        assert cohort.engine.epochs.planned is None, "nobody waits for this group"
        cohort.window()
    state = snapshot(cohort.engine)
    assert state.outcome is Outcome.TRAINING and state.window > 0
    assert "The change of membership for digits-cpu-3-1 failed 3 times in a row" in state.problem
    assert "on node node0 does not reach rank 0 of digits-cpu-3-1 on node node3 at 10.1.0.3" in state.problem
    assert "All 2 broken pairs are with an end on node node3." in state.problem
    assert "The run goes on as it is" in state.problem


@pytest.mark.parametrize("who", ["m9.1/0", "m1.1/7"])
def test_a_rank_that_nobody_knows_says_nothing(who: str) -> None:
    cohort = cohort_of()
    assert cohort.engine.pairs_tested(who, report(1, uid(0)), cohort.now) == []
