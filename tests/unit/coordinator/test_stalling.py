"""When a member that is alive is suspended: the rule, and stories of a cohort in virtual time."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdl_api import wire
from fdl_api.exitcodes import PodExit
from fdl_api.reasons import Progress, Refusal
from fdl_api.spec_policy import JoinSpec
from fdl_coordinator.report import snapshot
from fdl_coordinator.seats import SeatState
from fdl_coordinator.stalling import PATIENCE, Sight, WindowTimes, limits, penance, stalled

from .cohort import Cohort, SimulatedRank, agent_hello, rank_hello, run_config

FLOOR = 20.0
SLOW_WINDOW = 60.0


def sights(*late: float, waiting: float = 1000.0, others: int = 2, slow: bool = False) -> list[Sight]:
    stuck = [Sight(f"late{i}", False, seconds, slow) for i, seconds in enumerate(late)]
    return [*stuck, *(Sight(f"m{i}", True, waiting) for i in range(others))]


class TestRule:
    def test_who_keeps_all_others_waiting_stalls(self) -> None:
        assert stalled(sights(121.0), 0.1, 120.0, 1) == {"late0"}

    def test_not_before_the_floor_nor_before_ten_usual_windows(self) -> None:
        assert not stalled(sights(119.0), 0.1, 120.0, 1)
        assert not stalled(sights(599.0), SLOW_WINDOW, 120.0, 1)
        assert stalled(sights(601.0), SLOW_WINDOW, 120.0, 1)

    def test_the_others_must_have_waited_as_long(self) -> None:
        assert not stalled(sights(500.0, waiting=119.0), 0.1, 120.0, 1)

    def test_nobody_is_blamed_while_anybody_else_is_busy(self) -> None:
        assert not stalled([*sights(500.0), Sight("busy", False, 1.0)], 0.1, 120.0, 1)

    def test_where_long_pauses_are_to_be_expected_the_limit_is_longer(self) -> None:
        assert not stalled(sights(500.0, slow=True), 0.1, 120.0, 1)
        assert not stalled(sights(500.0), None, 120.0, 1)
        assert stalled(sights(1201.0, waiting=1201.0, slow=True), 0.1, 120.0, 1)

    def test_enough_members_must_remain(self) -> None:
        assert not stalled(sights(500.0), 0.1, 120.0, 3)
        assert not stalled(sights(500.0, 500.0, others=0), 0.1, 120.0, 0)

    def test_one_stuck_rank_makes_its_member_late_and_a_waiting_one_does_not_excuse_it(self) -> None:
        assert stalled([*sights(500.0), Sight("late0", True, 3.0)], 0.1, 120.0, 1) == {"late0"}

    @given(
        st.lists(
            st.builds(Sight, st.sampled_from("abcd"), st.booleans(), st.floats(0, 5000), st.booleans()), max_size=8
        ),
        st.none() | st.floats(0.0, 1000.0),
        st.integers(0, 4),
    )
    def test_whatever_is_seen_enough_remain_and_nobody_who_only_waits_is_blamed(
        self, seen: list[Sight], usual: float | None, least: int
    ) -> None:
        blamed = stalled(seen, usual, FLOOR, least)
        left = {sight.member for sight in seen} - blamed
        if blamed:
            assert len(left) >= max(1, least)
            assert all(sight.waiting and sight.seconds > FLOOR for sight in seen if sight.member in left)
        for member in blamed:
            assert any(not s.waiting and s.seconds > FLOOR for s in seen if s.member == member)

    def test_limits(self) -> None:
        assert limits(None, 120.0) == (1200.0, 1200.0)
        assert limits(1.0, 120.0) == (120.0, 1200.0)
        assert limits(600.0, 120.0) == (6000.0, 6000.0)

    def test_the_penance_grows_and_ends(self) -> None:
        assert [penance(stalls, 10.0) for stalls in (1, 2, 3, 4, 5, 6, 60)] == [0, 10, 20, 40, 80, 160, 160]

    def test_the_usual_window_is_the_median_and_counts_each_once(self) -> None:
        times = WindowTimes()
        assert times.usual is None
        for window, now in ((1, 0.0), (1, 0.5), (2, 1.0), (3, 2.0), (4, 500.0), (6, 502.0)):
            times.committed(window, now)
        assert times.usual == 1.0
        times.restarted()
        times.committed(1, 900.0)
        assert times.usual == 1.0


def trained(windows: int = 5, **config: Any) -> Cohort:
    """Three members that have trained for a while."""
    cohort = Cohort(run_config(stall_seconds=FLOOR, **config))
    for ordinal in range(3):
        cohort.dial(ordinal)
    cohort.pass_time(0.2)
    for _ in range(windows):
        cohort.window()
    return cohort


def uids(cohort: Cohort) -> list[str]:
    return cohort.engine.epochs.uids()


def member(cohort: Cohort, uid: str) -> wire.MemberState:
    return next(item for item in snapshot(cohort.engine).members if item.uid == uid)


def stall(cohort: Cohort, seconds: float = FLOOR + 1) -> SimulatedRank:
    """The second member hangs in a batch for so long."""
    late = cohort.ranks["m1.1/0"]
    late.stuck = True
    cohort.pass_time(seconds)
    return late


class TestStories:
    def test_a_stalled_member_is_suspended_and_comes_back_as_a_joiner(self) -> None:
        cohort = trained()
        late = stall(cohort, FLOOR - 2)
        assert len(uids(cohort)) == 3
        cohort.pass_time(4)
        assert uids(cohort) == ["m0.1/0", "m2.1/0"]
        assert cohort.epochs[-1].cause is wire.EpochCause.SUSPEND
        assert late.suspended and late.refused is None, "it is told, and not fenced"
        told = member(cohort, "m1.1")
        assert (told.state, told.reason) == ("suspended", Progress.STALLED)
        assert (
            "Its rank 0 was alive and finished no batch for 20 s" in told.message and "delete its pod" in told.message
        )
        for _ in range(20):
            cohort.window()
        assert snapshot(cohort.engine).window == 25 and uids(cohort) == ["m0.1/0", "m2.1/0"]
        late.stuck = False
        cohort.pass_time(0.4)
        cohort.window()
        assert uids(cohort) == ["m0.1/0", "m2.1/0", "m1.1/0"]
        assert cohort.epochs[-1].cause is wire.EpochCause.JOIN
        cohort.window()
        assert late.window == 27 and snapshot(cohort.engine).window == 27
        state = snapshot(cohort.engine)
        assert (state.deaths, state.suspensions) == (0, 1)
        assert (member(cohort, "m1.1").state, member(cohort, "m1.1").message) == ("active", "")

    def test_a_slow_member_that_makes_progress_is_never_suspended(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cohort = trained()
        slow = cohort.ranks["m1.1/0"]

        def beat(rank: SimulatedRank) -> wire.Heartbeat:
            # The others do a batch in 0.1 s and stand in the reduce; this one takes 100 times as long.
            phase = wire.Phase.TRAIN if rank is slow else wire.Phase.REDUCE
            progress = int(cohort.now / 10) if rank is slow else 7
            return wire.Heartbeat(phase=phase, epoch=1, window=6, progress=progress, batches=9)

        monkeypatch.setattr(cohort, "beat", beat)
        cohort.pass_time(50 * FLOOR)
        assert len(uids(cohort)) == 3 and snapshot(cohort.engine).suspensions == 0

    def test_when_all_stall_nobody_is_suspended(self) -> None:
        cohort = trained()
        for rank in cohort.ranks.values():
            rank.stuck = True
        cohort.pass_time(2 * PATIENCE * FLOOR)
        assert len(uids(cohort)) == 3

    def test_nor_when_too_few_would_remain(self) -> None:
        cohort = trained(join=JoinSpec(min_members=3, target_members=3, window_seconds=30, cap_seconds=60))
        stall(cohort, 2 * PATIENCE * FLOOR)
        assert len(uids(cohort)) == 3

    def test_the_first_batch_may_take_long(self) -> None:
        cohort = trained(windows=0)
        late = stall(cohort, PATIENCE * FLOOR - 10)
        assert len(uids(cohort)) == 3, "its script may be compiled"
        late.stuck = False
        cohort.window()
        assert len(uids(cohort)) == 3

    def test_a_joiners_first_batch_may_take_long_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cohort = trained()
        joiner = cohort.dial(3)
        cohort.window()
        assert joiner.uid in uids(cohort)
        joiner.stuck = True
        honest = cohort.beat
        monkeypatch.setattr(
            cohort, "beat", lambda rank: honest(rank).model_copy(update={"batches": 0 if rank is joiner else 1})
        )
        cohort.pass_time(PATIENCE * FLOOR - 10)
        assert joiner.uid in uids(cohort)
        cohort.pass_time(20)
        assert joiner.uid not in uids(cohort) and joiner.suspended

    def test_who_stalls_again_waits_longer_to_be_taken_back(self) -> None:
        cohort = trained()
        late = stall(cohort)
        for again in (0.0, FLOOR, 2 * FLOOR):
            assert late.suspended and late.uid not in uids(cohort)
            late.stuck = False
            if again:
                cohort.pass_time(again - 5)
                cohort.window()
                assert late.uid not in uids(cohort)
                cohort.pass_time(5)
            cohort.pass_time(0.4)
            cohort.window()
            assert late.uid in uids(cohort)
            for _ in range(3):
                cohort.window()
            stall(cohort)
        assert cohort.engine.progress.suspensions == 4

    def test_what_it_commits_before_it_hears_of_it_is_void(self) -> None:
        cohort = trained()
        late = stall(cohort)
        before = snapshot(cohort.engine)
        report = wire.WindowCommitted(epoch=1, window=6, samples=60, data_epoch=0, final=True)
        cohort.deliver(cohort.engine.committed(late.uid, report, cohort.now))
        after = snapshot(cohort.engine)
        assert (after.window, after.samples) == (before.window, before.samples)
        assert not cohort.engine.seats.by_uid["m1.1"].ranks[0].final

    def test_when_it_dials_again_it_hears_that_it_was_suspended(self) -> None:
        cohort = trained()
        late = stall(cohort)
        cohort.deliver(cohort.engine.rank_lost(late.uid, cohort.now))
        late.suspended = False
        cohort.pass_time(5, silent=[late])
        agent = agent_hello(1)
        cohort.deliver(cohort.engine.rank_hello(rank_hello(agent), cohort.now))
        assert late.suspended
        cohort.pass_time(5)
        assert late.uid not in uids(cohort), "to dial is no progress"
        late.stuck = False
        cohort.pass_time(0.4)
        cohort.window()
        assert late.uid in uids(cohort)

    def test_silence_does_not_cost_a_suspended_member_its_seat(self) -> None:
        cohort = trained()
        late = stall(cohort)
        cohort.pass_time(10, silent=[late])
        late.stuck = False
        cohort.pass_time(0.4)
        cohort.window()
        assert late.uid in uids(cohort)

    def test_its_successor_takes_its_place(self) -> None:
        cohort = trained()
        late = stall(cohort)
        cohort.dial(1, incarnation=2)
        assert late.refused is not None and late.refused.reason is Refusal.FENCED
        cohort.window()
        assert uids(cohort) == ["m0.1/0", "m2.1/0", "m1.2/0"]

    def test_when_all_others_die_it_goes_on_with_what_it_holds(self) -> None:
        cohort = trained()
        late = stall(cohort)
        cohort.window()
        for uid in ("m0.1/0", "m2.1/0"):
            cohort.kill(cohort.ranks[uid])
        assert uids(cohort) == [late.uid] and cohort.epochs[-1].cause is wire.EpochCause.DEATH
        assert cohort.engine.seats.by_uid["m1.1"].state is SeatState.ACTIVE
        late.stuck = False
        cohort.window()
        assert snapshot(cohort.engine).window == 6

    def test_unless_a_checkpoint_has_more(self) -> None:
        cohort = trained()
        late = stall(cohort)
        cohort.window()
        saved = wire.CheckpointSaved(window=6, samples=60, path="ckpt-6", size_bytes=1, stall_ms=0.0, write_ms=0.0)
        cohort.deliver(cohort.engine.saved("m0.1/0", saved, cohort.now))
        for uid in ("m0.1/0", "m2.1/0"):
            cohort.kill(cohort.ranks[uid])
        assert late.refused is not None and cohort.engine.outcome is wire.Outcome.RECOVERING
        for ordinal in range(3):
            cohort.dial(ordinal, incarnation=2, committed=wire.Position(epoch=2, window=6, attempt=1))
        assert len(uids(cohort)) == 3

    def test_a_suspended_member_ends_with_the_run(self) -> None:
        cohort = trained()
        late = stall(cohort)
        cohort.window(final=True)
        cohort.finish()
        assert cohort.engine.outcome is wire.Outcome.SUCCEEDED
        assert late.done is not None and late.done.exit_code == PodExit.DONE

    def test_a_leaver_that_hangs_is_let_go(self) -> None:
        cohort = trained()
        late = cohort.ranks["m1.1/0"]
        cohort.leave(late)
        stall(cohort)
        assert uids(cohort) == ["m0.1/0", "m2.1/0"]
        assert late.done is not None and late.done.exit_code == PodExit.LEFT

    def test_time_in_which_the_coordinator_was_away_does_not_count(self) -> None:
        cohort = trained()
        late = cohort.ranks["m1.1/0"]
        late.stuck = True
        cohort.pass_time(10)
        cohort.now += 2 * FLOOR
        cohort.pass_time(10)
        assert late.uid in uids(cohort)
