"""Ranks that plan for themselves come to the same plan; test_exactly_once.py has what follows for the samples."""

import json
from dataclasses import replace

import pytest

from fdl_api.run import ElcheSpec, Mode
from fdl_trainer import agreed, ledger, plan
from fdl_trainer.agreed import Control
from fdl_trainer.elche import Hardware, Policy, Seated, Seating
from fdl_trainer.plan import PlanSpec
from fdl_trainer.tail import Flag, RankTail, Tail, decode, encode

SPEC = PlanSpec(ElcheSpec(anchor=4, max_anchor=16), Policy.CADENCE)
OVERLAP = replace(SPEC, overlap=True)


def start(
    samples: int = 1000, batch_size: int = 10, data_epochs: int = 2, members: tuple[str, ...] = ("a", "b")
) -> Control:
    return plan.enter_epoch(plan.create(ledger.create(samples, batch_size, data_epochs, 0), SPEC), members, SPEC)


def tail_of(control: Control, done: dict[str, int] | None = None, *, divergence: float = 0.0, **flags: Flag) -> Tail:
    """The reduced tail when each rank did its quota (or ``done``) at a speed of its own."""
    tails = []
    for i, uid in enumerate(control.members):
        pieces = control.batches(uid)[: (done or {}).get(uid, 10**6)]
        own = RankTail(
            uid,
            batches=len(pieces),
            samples=sum(piece.size for piece in pieces),
            compute_ms=(4.0 + i) * len(pieces),
            reduce_ms=3.0,
            loss_sum=1.5,
            divergence=divergence,
            flags=flags.get(uid, Flag(0)),
            digest=agreed.digest(control),
        )
        tails.append(encode(own, i, len(control.members)))
    return decode([sum(column) for column in zip(*tails, strict=True)], control.members)


def test_the_first_window_is_two_batches_each() -> None:
    control = start()
    assert {uid: control.quota(uid) for uid in control.members} == {"a": 2, "b": 2}
    assert control.planned_samples() == 40
    assert (control.window, control.samples, control.data_epoch, control.finished) == (0, 0, 0, False)


def test_a_committed_window_books_samples_and_plans_the_next() -> None:
    control = plan.advance(start(), tail_of(start()), SPEC)
    assert (control.window, control.samples) == (1, 40)
    control = plan.advance(control, tail_of(control), SPEC)
    assert {uid: control.quota(uid) for uid in control.members} == {"a": 5, "b": 4}


def test_the_state_survives_json_bit_for_bit() -> None:
    control = start()
    for _ in range(6):
        control = plan.advance(control, tail_of(control), SPEC)
        again = agreed.from_json(json.loads(json.dumps(agreed.to_json(control))))
        assert again == control
        assert agreed.digest(again) == agreed.digest(control) < 2**24


def test_a_state_of_another_format_is_refused() -> None:
    with pytest.raises(ValueError, match="format 99"):
        agreed.from_json({**agreed.to_json(start()), "format": 99})


def test_the_digest_sees_every_difference() -> None:
    control = start()
    others = [
        replace(control, window=1),
        replace(control, samples=1),
        replace(control, members=("b", "a")),
        replace(control, checkpoint_window=3),
        replace(control, elche=replace(control.elche, anchor=5)),
        replace(control, ledger=replace(control.ledger, cursor=50)),
    ]
    assert len({agreed.digest(other) for other in [control, *others]}) == 7


def test_a_window_without_samples_changes_nothing_and_is_not_counted() -> None:
    control = start()
    assert plan.advance(control, tail_of(control, {"a": 0, "b": 0}), SPEC) is control


def test_a_tail_that_contradicts_the_books_is_refused() -> None:
    control = start()
    tail = tail_of(control)
    wrong = replace(tail, ranks=(replace(tail.ranks[0], samples=19), *tail.ranks[1:]))
    with pytest.raises(ValueError, match=r"rank a reports 2 batches with 19 samples in window 1, but .* 2 with 20"):
        plan.advance(control, wrong, SPEC)
    with pytest.raises(ValueError, match="the tail is of ranks"):
        plan.advance(replace(control, members=("a", "b", "c")), tail, SPEC)


def test_who_asks_to_leave_is_counted_and_gets_nothing_more() -> None:
    control = start()
    control = plan.advance(control, tail_of(control, {"a": 1}, a=Flag.LEAVING), SPEC)
    assert control.samples == 30
    assert (control.quota("a"), control.leaving) == (0, ("a",))
    assert control.ledger.holes == ()
    control = plan.advance(control, tail_of(control), SPEC)
    assert (control.quota("a"), control.leaving) == (0, ("a",)), "once said is enough"
    assert plan.enter_epoch(control, ("a", "b"), SPEC).quota("a") == 0
    control = plan.enter_epoch(control, ("b",), SPEC)
    assert (control.leaving, control.members) == ((), ("b",))


@pytest.mark.parametrize("flag", [Flag.CHECKPOINT, Flag.SAVE])
def test_a_checkpoint_that_one_wants_is_decided_by_all(flag: Flag) -> None:
    control = plan.advance(start(), tail_of(start(), b=flag), SPEC)
    assert control.checkpoint_window == 1
    assert plan.advance(control, tail_of(control), SPEC).checkpoint_window == 1


def test_survivors_keep_their_leases_and_the_window_is_repeated_without_the_dead() -> None:
    control = start(members=("a", "dead", "b"))
    kept = {uid: control.batches(uid) for uid in ("a", "b")}
    lost = control.batches("dead")
    control = plan.enter_epoch(control, ("a", "b"), SPEC)
    assert {uid: control.batches(uid) for uid in ("a", "b")} == kept
    assert control.window == 0
    control = plan.advance(control, tail_of(control), SPEC)
    assert (control.window, control.samples) == (1, 40)
    assert control.batches("a") == lost


def test_a_joiner_gets_two_batches_and_the_others_keep_theirs() -> None:
    control = start()
    for _ in range(4):
        control = plan.advance(control, tail_of(control), SPEC)
    before = {uid: control.batches(uid) for uid in ("a", "b")}
    control = plan.enter_epoch(control, ("a", "b", "new"), SPEC)
    assert control.quota("new") == 2
    assert {uid: control.batches(uid) for uid in ("a", "b")} == before


def test_a_survivor_that_was_left_without_data_takes_over_what_the_dead_held() -> None:
    """Otherwise the last window would be one of no samples, for ever."""
    control = start(samples=30, data_epochs=1, members=("dead", "a"))
    control = plan.advance(control, tail_of(control, {"dead": 2, "a": 0}), SPEC)
    control = replace(control, ledger=ledger.lease(ledger.drop(control.ledger, ("dead", "a")), {"dead": 5}))
    assert control.quota("a") == 0
    control = plan.enter_epoch(control, ("a",), SPEC)
    assert control.quota("a") == 1
    assert plan.advance(control, tail_of(control), SPEC).finished


def test_an_epoch_that_some_never_entered_leaves_no_trace() -> None:
    """A joiner and a survivor die while the epoch that brings the joiner is entered by one rank only."""
    control = start(members=("a", "b", "c"))
    for _ in range(3):
        control = plan.advance(control, tail_of(control), SPEC)
    entered = plan.enter_epoch(plan.enter_epoch(control, ("a", "b", "new"), SPEC), ("a", "b"), SPEC)
    missed = plan.enter_epoch(control, ("a", "b"), SPEC)
    assert entered.ledger.leases == missed.ledger.leases and entered.elche == missed.elche
    assert ledger.free(entered.ledger) == ledger.free(missed.ledger), "but what the joiner held counts as lost once"


def test_resume_with_other_ranks_keeps_progress_and_anchor() -> None:
    control = start()
    for _ in range(5):
        control = plan.advance(control, tail_of(control), SPEC)
    resumed = plan.enter_epoch(agreed.from_json(agreed.to_json(control)), ("x", "y", "z"), SPEC)
    assert (resumed.window, resumed.samples) == (control.window, control.samples)
    assert resumed.elche.anchor == control.elche.anchor
    assert [resumed.quota(uid) for uid in resumed.members] == [2, 2, 2]
    assert ledger.remaining(resumed.ledger) == ledger.remaining(control.ledger)


def test_an_epoch_that_names_a_rank_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="twice"):
        plan.enter_epoch(start(), ("a", "a"), SPEC)


def test_sync_modes_plan_one_batch_each() -> None:
    spec = PlanSpec.of(Mode.CPU_SYNC, ElcheSpec())
    control = plan.enter_epoch(plan.create(ledger.create(100, 10, 1, 0), spec), ("a", "b"), spec)
    while not control.finished:
        assert {control.quota(uid) for uid in control.members} == {1}
        control = plan.advance(control, tail_of(control), spec)
    assert control.window == 5
    assert PlanSpec.of(Mode.CPU_CADENCE, ElcheSpec()).policy is Policy.CADENCE


def overlapping(samples: int = 1000, members: tuple[str, ...] = ("a", "b")) -> Control:
    return plan.enter_epoch(plan.create(ledger.create(samples, 10, 1, 0), OVERLAP), members, OVERLAP)


def test_with_overlap_the_window_after_the_one_in_work_is_leased_too() -> None:
    control = overlapping()
    assert [control.quota(uid, ahead=True) for uid in ("a", "b")] == [2, 2]
    for _ in range(3):
        ahead = {uid: control.batches(uid, ahead=True) for uid in ("a", "b")}
        control = plan.advance(control, tail_of(control), OVERLAP)
        assert {uid: control.batches(uid) for uid in ("a", "b")} == ahead
        assert plan.upcoming(control, "a", OVERLAP) == control.batches("a", ahead=True) != []
        assert agreed.from_json(json.loads(json.dumps(agreed.to_json(control)))) == control


def test_without_overlap_only_the_order_of_the_next_window_is_known() -> None:
    control = start()
    for _ in range(6):
        expected = plan.upcoming(control, "b", SPEC)
        before = control.elche
        control = plan.advance(control, tail_of(control), SPEC)
        if {uid: speed.quota for uid, speed in before.ranks.items()} == {
            uid: speed.quota for uid, speed in control.elche.ranks.items()
        }:
            assert control.batches("b") == expected


def test_a_window_of_nothing_counts_when_the_next_one_is_being_trained() -> None:
    control = overlapping(members=("a", "b"))
    ahead = control.batches("a", ahead=True)
    nothing = plan.advance(control, tail_of(control, {"a": 0, "b": 0}), OVERLAP)
    assert (nothing.window, nothing.samples) == (1, 0)
    assert nothing.batches("a") == ahead
    control = plan.advance(overlapping(40), tail_of(overlapping(40)), OVERLAP)
    assert control.finished or control.quota("a") or control.quota("b")


def test_with_overlap_who_leaves_holds_nothing_for_either_window() -> None:
    control = overlapping()
    control = plan.advance(control, tail_of(control, a=Flag.LEAVING), OVERLAP)
    assert control.quota("a") == control.quota("a", ahead=True) == 0
    assert control.ledger.holes == (), "its lease is given to the others at once"


def test_what_comes_back_when_all_else_is_leased_is_leased_for_the_window_in_work() -> None:
    control = overlapping(40, members=("a", "b"))
    control = plan.advance(control, tail_of(control, {"a": 1, "b": 1}), OVERLAP)
    seen = 20
    while not control.finished:
        assert control.quota("a") + control.quota("b") > 0
        seen += control.planned_samples()
        control = plan.advance(control, tail_of(control), OVERLAP)
    assert control.samples == seen == 40


def test_a_joiner_and_a_survivor_without_a_lease_are_given_one_for_either_window() -> None:
    control = overlapping()
    control = plan.advance(control, tail_of(control), OVERLAP)
    kept = {uid: (control.batches(uid), control.batches(uid, ahead=True)) for uid in ("a", "b")}
    control = plan.enter_epoch(control, ("a", "b", "new"), OVERLAP)
    assert {uid: (control.batches(uid), control.batches(uid, ahead=True)) for uid in ("a", "b")} == kept
    assert (control.quota("new"), control.quota("new", ahead=True)) == (2, 2)


def test_who_may_have_begun_its_lease_ahead_gets_none_for_the_window_before() -> None:
    """It has sent that window already, and cannot train for it any more."""
    control = overlapping(members=("dead", "a"))
    books = replace(control.ledger, leases=control.ledger.leases[:1])
    control = plan.enter_epoch(replace(control, ledger=books), ("a",), OVERLAP)
    assert control.quota("a") == 0 and control.quota("a", ahead=True) == 2
    control = plan.advance(control, tail_of(control), OVERLAP)
    assert (control.window, control.quota("a")) == (1, 2)


def test_a_stop_with_overlap_finishes_what_is_begun() -> None:
    control = plan.advance(overlapping(), tail_of(overlapping(), b=Flag.STOP), OVERLAP)
    assert control.draining
    assert not plan.advance(control, tail_of(control, b=Flag.STOP), OVERLAP).draining, "the stop itself"
    assert plan.enter_epoch(control, ("a",), OVERLAP).draining
    assert not plan.enter_epoch(control, ("x", "y"), OVERLAP).draining, "a start from a checkpoint made at that time"
    assert not plan.advance(start(), tail_of(start(), b=Flag.STOP), SPEC).draining


def test_ranks_may_run_ahead_by_as_much_as_their_speed_allows_and_more_when_all_is_well() -> None:
    control = overlapping(100_000)
    allowed = [plan.overshoot(control, uid, OVERLAP) for uid in ("a", "b")]
    assert allowed == [3, 3]
    for _ in range(20):
        control = plan.advance(control, tail_of(control), OVERLAP)
    quotas = [control.elche.ranks[uid].quota for uid in ("a", "b")]
    assert quotas[0] > quotas[1] and control.overshoot == plan.MAX_OVERSHOOT
    assert plan.overshoot(control, "b", OVERLAP) == 15
    assert plan.overshoot(control, "a", OVERLAP) == -(-15 * quotas[0] // quotas[1])
    assert plan.overshoot(control, "a", replace(OVERLAP, max_overshoot=0)) == 0
    assert plan.overshoot(control, "a", SPEC) == 0
    assert PlanSpec.of(Mode.CPU_ASYNC, ElcheSpec(max_overshoot=7)) == PlanSpec(
        ElcheSpec(max_overshoot=7), Policy.CADENCE, overlap=True, max_overshoot=7, deadlines=True
    )


def test_skipped_samples_are_behind_the_run_and_weigh_nothing() -> None:
    control = start()
    tail = tail_of(control)
    first, second = tail.ranks
    tail = replace(tail, ranks=(replace(first, samples=12, skipped=8), replace(second, samples=0, skipped=20)))
    control = plan.advance(control, tail, SPEC)
    assert (control.window, control.samples, control.ledger.skipped, control.consumed) == (1, 12, 28, 40)
    with pytest.raises(ValueError, match="with 21 samples"):
        plan.advance(start(), replace(tail, ranks=(replace(first, samples=13, skipped=8), second)), SPEC)


def test_what_a_rank_broke_on_is_leased_again_and_remembered() -> None:
    control = plan.advance(start(), tail_of(start(), {"a": 0}, a=Flag.NONFINITE), SPEC)
    assert control.ledger.leases[0].spans[0].losses == 1


def test_no_checkpoint_by_the_clock_while_copies_are_far_apart_but_always_on_request() -> None:
    control = start()
    due, asked = Flag.CHECKPOINT, Flag.SAVE
    taken = []
    for divergence, flag in [(0.1, due), (0.1, due), (0.1, due), (0.9, due), (0.9, asked), (0.9, due), (0.1, due)]:
        control = plan.advance(control, tail_of(control, divergence=divergence, a=flag), SPEC)
        taken.append(control.checkpoint_window == control.window)
    assert taken == [True, True, True, False, True, False, True]
    assert control.elche.guard.journal.counts["rollback"] == 1


def test_ranks_that_all_start_from_a_checkpoint_are_together_and_survivors_are_as_they_were() -> None:
    control = start()
    for divergence in [0.1, 0.1, 0.1, 0.9]:
        control = plan.advance(control, tail_of(control, divergence=divergence), SPEC)
    assert control.elche.guard.hot == 1
    assert plan.enter_epoch(control, ("a", "c"), SPEC).elche.guard.hot == 1
    assert plan.enter_epoch(control, ("c", "d"), SPEC).elche.guard.hot == 0


def seating(**seats: int) -> Seating:
    return Seating(3, {uid: Seated(seat, Hardware("cpu", "x", 1, 1000)) for uid, seat in seats.items()})


def test_a_successor_gets_the_fixed_share_of_its_seat_wherever_it_stands() -> None:
    spec = PlanSpec(ElcheSpec(partition_ratios=(0.2, 0.3, 0.5)), Policy.SYNC)
    fresh = plan.create(ledger.create(1000, 10, 1, 0), spec)
    control = plan.enter_epoch(fresh, ("a", "b", "c"), spec, seating(a=0, b=1, c=2))
    assert [control.quota(uid) for uid in "abc"] == [2, 3, 5]
    control = plan.advance(control, tail_of(control), spec)
    control = plan.enter_epoch(control, ("b", "c"), spec, seating(b=1, c=2))
    control = plan.advance(control, tail_of(control), spec)
    assert [control.quota(uid) for uid in "bc"] == [3, 5], "0.3 and 0.5 of 0.8"
    control = plan.enter_epoch(control, ("b", "c", "a2"), spec, seating(b=1, c=2, a2=0))
    assert control.quota("a2") == 2
    control = plan.advance(control, tail_of(control), spec)
    assert [control.quota(uid) for uid in ("b", "c", "a2")] == [3, 5, 2]


def test_what_is_believed_of_devices_seeds_a_start_and_is_in_the_digest() -> None:
    known = {"a": Seated(0, Hardware("cpu", "x", 1, 4000)), "b": Seated(1, Hardware("cpu", "x", 1, 1000))}
    for spec in (SPEC, OVERLAP):
        fresh = plan.create(ledger.create(1000, 10, 1, 0), spec)
        control = plan.enter_epoch(fresh, ("a", "b"), spec, Seating(2, known))
        assert (control.quota("a"), control.quota("b")) == (4, 2)
        assert agreed.digest(control) != agreed.digest(plan.enter_epoch(fresh, ("a", "b"), spec))
        again = plan.enter_epoch(agreed.from_json(agreed.to_json(control)), ("b", "new"), spec, Seating(2, known))
        assert again.quota("new") == 2, "nothing is known of its device"


@pytest.mark.parametrize("overlap", [True, False])
def test_who_became_slow_after_its_lease_was_given_stops_by_time(overlap: bool) -> None:
    """With overlap a lease is of an older plan than the one that knows the speed of today."""
    spec = replace(SPEC, overlap=overlap, deadlines=True)
    control = plan.enter_epoch(plan.create(ledger.create(10**6, 10, 1, 0), spec), ("a", "b"), spec)
    for _ in range(5):
        control = plan.advance(control, tail_of(control), spec)
    quota = control.elche.ranks["a"].quota
    length = plan.deadline_ms(control, "a", 3 * quota, spec)
    assert length == (control.elche.window_ms if overlap else 0.0)
    assert plan.deadline_ms(control, "a", quota, spec) == 0.0
    assert plan.deadline_ms(control, "a", 3 * quota, replace(spec, deadlines=False)) == 0.0


def test_at_the_end_of_the_data_nobody_stops_by_time_for_a_long_lease() -> None:
    """The last window takes in what would be a crumb, so that its leases are longer than the quotas."""
    spec = replace(OVERLAP, deadlines=True)
    control = plan.enter_epoch(plan.create(ledger.create(400, 10, 1, 0), spec), ("a", "b"), spec)
    while ledger.free(control.ledger):
        control = plan.advance(control, tail_of(control), spec)
    lease = control.elche.ranks["a"].quota + 1
    assert not control.finished and plan.deadline_ms(control, "a", lease, spec) == 0.0
