"""Ranks that plan for themselves, with deaths, joins and leaves, end with every sample exactly once."""

import json
from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdl_api.run import ElcheSpec, Mode
from fdl_trainer import ledger, plan
from fdl_trainer.elche import Policy
from fdl_trainer.plan import Control, PlanSpec
from fdl_trainer.tail import TAIL_SLOTS, Flag, RankTail, Tail, decode, encode

SPEC = PlanSpec(ElcheSpec(anchor=4, max_anchor=16), Policy.CADENCE)


def start(
    samples: int = 1000, batch_size: int = 10, data_epochs: int = 2, members: tuple[str, ...] = ("a", "b")
) -> Control:
    return plan.enter_epoch(plan.create(ledger.create(samples, batch_size, data_epochs, 0), SPEC), members, SPEC)


def tail_of(control: Control, done: dict[str, int] | None = None, **flags: Flag) -> Tail:
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
            flags=flags.get(uid, Flag(0)),
            digest=plan.digest(control),
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
        again = plan.from_json(json.loads(json.dumps(plan.to_json(control))))
        assert again == control
        assert plan.digest(again) == plan.digest(control) < 2**24


def test_a_state_of_another_format_is_refused() -> None:
    with pytest.raises(ValueError, match="format 99"):
        plan.from_json({**plan.to_json(start()), "format": 99})


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
    assert len({plan.digest(other) for other in [control, *others]}) == 7


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
    assert plan.digest(entered) == plan.digest(missed)


def test_resume_with_other_ranks_keeps_progress_and_anchor() -> None:
    control = start()
    for _ in range(5):
        control = plan.advance(control, tail_of(control), SPEC)
    resumed = plan.enter_epoch(plan.from_json(plan.to_json(control)), ("x", "y", "z"), SPEC)
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


@dataclass
class Rank:
    """One process: its own copy of the state, and what its replica of the model has been trained on."""

    uid: str
    control: Control
    model: Counter[int] = field(default_factory=Counter)
    done: int = 0


@dataclass
class World:
    """A cohort whose ranks share nothing but reduced tails and the exchange at the start of an epoch."""

    ranks: list[Rank]
    born: int = 0

    def train(self, data: st.DataObject) -> None:
        for rank in self.ranks:
            quota = rank.control.quota(rank.uid)
            rank.done = data.draw(st.integers(min(quota, max(rank.done, 1)), quota), label=f"{rank.uid} does")

    def reduce(self, reached: list[Rank], leaving: str = "") -> None:
        """All contribute; those of ``reached`` get the result (the others fail or die in it)."""
        slots = [0.0] * (TAIL_SLOTS * len(self.ranks))
        contribution: Counter[int] = Counter()
        for i, rank in enumerate(self.ranks):
            pieces = rank.control.batches(rank.uid)[: rank.done]
            for piece in pieces:
                contribution.update(range(piece.start, piece.stop))
            own = RankTail(
                rank.uid,
                batches=len(pieces),
                samples=sum(piece.size for piece in pieces),
                compute_ms=float(1 + len(pieces) * (1 + i)),
                reduce_ms=2.0,
                flags=Flag.LEAVING if rank.uid == leaving else Flag(0),
                digest=plan.digest(rank.control),
            )
            slots = [a + b for a, b in zip(slots, encode(own, i, len(self.ranks)), strict=True)]
        tail = decode(slots, [rank.uid for rank in self.ranks])
        assert tail.agreed, "ranks planned differently"
        for rank in reached:
            after = plan.advance(rank.control, tail, SPEC)
            if after is not rank.control:
                rank.control, rank.model, rank.done = after, rank.model + contribution, 0

    def enter(self, survivors: list[Rank], joiners: int) -> None:
        """The exchange: the highest commit wins; joiners and those that lack it get it from the lowest holder."""
        donor = max(survivors, key=lambda rank: rank.control.window)
        for rank in survivors:
            if rank.control.window < donor.control.window:
                rank.control, rank.model, rank.done = donor.control, donor.model.copy(), 0
        fresh = [Rank(f"r{self.born + i}", donor.control, donor.model.copy()) for i in range(joiners)]
        self.born += joiners
        self.ranks = [*survivors, *fresh]
        members = tuple(rank.uid for rank in self.ranks)
        for rank in self.ranks:
            rank.control = plan.enter_epoch(rank.control, members, SPEC)
        assert len({plan.digest(rank.control) for rank in self.ranks}) == 1


@settings(max_examples=60, deadline=None)
@given(samples=st.integers(1, 150), batch_size=st.integers(1, 12), data_epochs=st.integers(1, 3), data=st.data())
def test_whatever_happens_every_sample_is_in_the_model_exactly_once_per_pass(
    samples: int, batch_size: int, data_epochs: int, data: st.DataObject
) -> None:
    fresh = plan.create(ledger.create(samples, batch_size, data_epochs, 0), SPEC)
    world = World([])
    world.enter([Rank(f"s{i}", fresh) for i in range(3)], joiners=0)
    for _ in range(1500):
        if world.ranks[0].control.finished:
            break
        world.train(data)
        event = data.draw(st.sampled_from(["none", "none", "death", "reduce-death", "join", "leave"]), label="event")
        if event == "death" and len(world.ranks) > 1:
            dead = data.draw(st.sampled_from(world.ranks), label="dead")
            world.enter([rank for rank in world.ranks if rank is not dead], joiners=0)
        elif event == "reduce-death" and len(world.ranks) > 1:
            dead = data.draw(st.sampled_from(world.ranks), label="dead")
            reached = [rank for rank in world.ranks if data.draw(st.booleans(), label=f"{rank.uid} got it")]
            world.reduce(reached)
            world.enter([rank for rank in world.ranks if rank is not dead], joiners=0)
        elif event == "join" and len(world.ranks) < 6:
            world.reduce(world.ranks)
            world.enter(world.ranks, joiners=data.draw(st.integers(1, 2), label="joiners"))
        elif event == "leave" and len(world.ranks) > 1:
            leaver = data.draw(st.sampled_from(world.ranks), label="leaver")
            world.reduce(world.ranks, leaving=leaver.uid)
            world.enter([rank for rank in world.ranks if rank is not leaver], joiners=0)
        else:
            world.reduce(world.ranks)
    everything = Counter(range(samples * data_epochs))
    assert all(rank.control.finished for rank in world.ranks)
    assert all(rank.model == everything for rank in world.ranks)
    assert all(rank.control.samples == samples * data_epochs for rank in world.ranks)
