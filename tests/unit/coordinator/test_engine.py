"""The coordinator's rules, as stories of a cohort in virtual time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdl_api import wire
from fdl_api.exitcodes import PodExit
from fdl_api.reasons import Ended, Refusal
from fdl_api.run import CheckpointSpec
from fdl_api.spec_policy import JoinSpec
from fdl_coordinator.report import snapshot

from .cohort import Cohort, SimulatedRank, agent_hello, rank_hello, run_config


def three() -> Cohort:
    cohort = Cohort()
    for ordinal in range(3):
        cohort.dial(ordinal)
    cohort.pass_time(0.2)
    return cohort


def members_of(epoch: wire.Epoch) -> list[str]:
    return [member.uid for member in epoch.members]


class TestStart:
    def test_all_wanted_members_start_at_once(self) -> None:
        cohort = three()
        assert [members_of(epoch) for epoch in cohort.epochs] == [["m0.1/0", "m1.1/0", "m2.1/0"]]
        assert cohort.epochs[0].cause is wire.EpochCause.START
        assert cohort.engine.outcome is wire.Outcome.TRAINING

    def test_a_quorum_waits_for_the_window_to_close(self) -> None:
        cohort = Cohort()
        cohort.dial(0)
        cohort.dial(1)
        cohort.pass_time(25)
        assert cohort.epochs == []
        cohort.pass_time(6)
        assert [members_of(epoch) for epoch in cohort.epochs] == [["m0.1/0", "m1.1/0"]]

    def test_no_quorum_at_the_cap_is_a_failure_with_figures(self) -> None:
        cohort = Cohort()
        rank = cohort.dial(0)
        cohort.pass_time(61)
        assert cohort.engine.outcome is wire.Outcome.FAILED
        assert "1 of at least 2 members" in cohort.engine.message
        assert rank.done is not None and rank.done.exit_code == PodExit.BELOW_MINIMUM

    def test_the_operators_wish_limits_the_target(self) -> None:
        cohort = Cohort()
        cohort.deliver(cohort.engine.hinted(wire.Hint(wanted_members=2), cohort.now))
        cohort.dial(0)
        cohort.dial(1)
        assert len(cohort.epochs) == 1

    def test_the_newest_checkpoint_is_that_of_the_highest_attempt_and_epoch(self) -> None:
        cohort = Cohort()
        cohort.dial(0, committed=wire.Position(attempt=1, epoch=3, window=90))
        cohort.dial(1, committed=wire.Position(attempt=1, epoch=4, window=70))
        cohort.dial(2, committed=wire.Position(attempt=1, epoch=4, window=70))
        assert cohort.engine.progress.window == 70
        for uid in ("m1.1/0", "m2.1/0"):
            report = wire.WindowCommitted(epoch=1, window=71, samples=710, data_epoch=0)
            cohort.deliver(cohort.engine.committed(uid, report, cohort.now))
        assert cohort.engine.settled == 70, "the first member has not committed 71: it only held 90 of another part"

    def test_a_joiners_checkpoint_settles_nothing(self) -> None:
        cohort = three()
        cohort.window()
        cohort.dial(3, committed=wire.Position(attempt=1, epoch=1, window=90))
        seat = cohort.engine.seats.by_uid["m3.1"]
        assert seat.ranks[0].window == 1

    def test_a_member_that_vanishes_before_the_start_frees_its_seat_and_may_come_back(self) -> None:
        cohort = Cohort()
        rank = cohort.dial(0)
        cohort.kill(rank)
        cohort.deliver(cohort.engine.agent_lost("m0.1", cohort.now))
        assert list(cohort.engine.seats.living()) == []
        assert cohort.dial(0).refused is None


class TestGate:
    @pytest.mark.parametrize(
        ("changes", "reason"),
        [
            ({"wire_version": 999}, Refusal.WIRE_VERSION_MISMATCH),
            ({"run_uid": "other"}, Refusal.RUN_IDENTITY_MISMATCH),
            ({"attempt": 7}, Refusal.STALE_ATTEMPT),
            ({"cohort": "nobody"}, Refusal.UNKNOWN_COHORT),
            ({"devices": []}, Refusal.BAD_REQUEST),
            ({"devices": [wire.Device(index=0, vendor="amd", arch="gfx942")]}, Refusal.VENDOR_MISMATCH),
        ],
    )
    def test_refusals_name_both_sides(self, changes: dict[str, object], reason: Refusal) -> None:
        cohort = Cohort()
        cohort.deliver(cohort.engine.agent_hello(agent_hello(0, **changes), cohort.now))
        (refusal,) = cohort.to_agents["m0.1"]
        assert isinstance(refusal, wire.Refuse) and refusal.reason is reason
        assert "digits-cpu-0-1" in refusal.message

    def test_a_member_with_another_dtype_is_told_the_parameter_both_types_and_what_to_do(self) -> None:
        cohort = Cohort()
        cohort.dial(0)
        cohort.dial(1)
        odd = cohort.dial(2, model_digest="bb", model=[wire.ParameterSpec(name="w", dtype="bfloat16", shape=[2])])
        cohort.pass_time(0.4)
        assert odd.refused is not None and odd.refused.permanent
        assert odd.refused.message.startswith("rank 0 of digits-cpu-2-1 built a different model")
        assert "entry 0 is w bfloat16[2] here and w float32[2] in the run" in odd.refused.message
        assert "The model factory must not depend on the device" in odd.refused.message

    def test_a_refused_first_arrival_leaves_no_expectation_behind(self) -> None:
        cohort = Cohort()
        cohort.deliver(cohort.engine.agent_hello(agent_hello(0, run_uid="other"), cohort.now))
        for ordinal in range(3):
            assert cohort.dial(ordinal).refused is None
        assert len(cohort.epochs) == 1

    def test_the_odd_model_out_is_refused_whichever_comes_first(self) -> None:
        cohort = Cohort()
        odd = cohort.dial(0, model_digest="bb", model=[wire.ParameterSpec(name="w", dtype="float32", shape=[3])])
        cohort.dial(1)
        cohort.dial(2)
        cohort.pass_time(0.4)
        assert odd.refused is not None and odd.refused.reason is Refusal.MODEL_MISMATCH
        assert "w float32[3] here and w float32[2] in the run" in odd.refused.message
        assert members_of(cohort.epochs[0]) == ["m1.1/0", "m2.1/0"]

    def test_a_joiner_with_other_data_is_refused_and_the_run_goes_on(self) -> None:
        cohort = three()
        odd = cohort.dial(3, dataset_digest="ee")
        cohort.window()
        assert odd.refused is not None and odd.refused.reason is Refusal.DATASET_MISMATCH
        assert len(cohort.training()) == 3

    def test_an_older_incarnation_is_fenced_by_a_newer_one(self) -> None:
        cohort = three()
        cohort.dial(2, incarnation=2)
        assert [members_of(epoch) for epoch in cohort.epochs if epoch.cause is wire.EpochCause.DEATH] == [
            ["m0.1/0", "m1.1/0"]
        ]
        cohort.deliver(cohort.engine.agent_hello(agent_hello(2, incarnation=1), cohort.now))
        last = cohort.to_agents["m2.1"][-1]
        assert isinstance(last, wire.Refuse) and last.reason is Refusal.FENCED


class TestDeath:
    def test_survivors_get_a_new_epoch_at_once(self) -> None:
        cohort = three()
        cohort.window()
        cohort.kill(cohort.ranks["m1.1/0"])
        death = cohort.epochs[-1]
        assert death.cause is wire.EpochCause.DEATH and not death.planned
        assert members_of(death) == ["m0.1/0", "m2.1/0"] and death.gone == ["m1.1/0"]

    def test_silence_kills_after_two_seconds_and_lateness_never(self) -> None:
        cohort = three()
        frozen = cohort.ranks["m2.1/0"]
        cohort.pass_time(1.8, silent=[frozen])
        assert len(cohort.epochs) == 1
        cohort.pass_time(0.6, silent=[frozen])
        assert members_of(cohort.epochs[-1]) == ["m0.1/0", "m1.1/0"]
        assert frozen.refused is not None and frozen.refused.reason is Refusal.FENCED
        cohort.pass_time(120)
        assert len(cohort.epochs) == 2

    def test_silence_while_the_coordinator_itself_was_away_kills_nobody(self) -> None:
        cohort = three()
        cohort.pass_time(0.4)
        cohort.now += 5  # it was frozen: the heartbeats of that time wait in its sockets
        cohort.deliver(cohort.engine.tick(cohort.now))
        cohort.pass_time(10)
        assert len(cohort.epochs) == 1

    def test_when_everybody_is_silent_at_once_the_coordinator_doubts_its_own_line(self) -> None:
        cohort = three()
        cohort.pass_time(30, silent=list(cohort.ranks.values()))
        cohort.pass_time(10)
        assert len(cohort.epochs) == 1

    def test_all_that_stop_at_one_moment_are_spared_though_their_last_heartbeats_were_not_at_one(self) -> None:
        cohort = three()
        first, second, third = cohort.ranks.values()
        cohort.pass_time(0.2, silent=[first])
        cohort.pass_time(0.2, silent=[first, second])
        cohort.pass_time(30, silent=[first, second, third])
        assert len(cohort.epochs) == 1 and cohort.engine.progress.deaths == 0
        cohort.pass_time(1)
        assert len(cohort.epochs) == 1 and cohort.engine.outcome is wire.Outcome.TRAINING

    def test_once_one_is_heard_again_those_who_are_not_are_dead(self) -> None:
        cohort = three()
        cohort.pass_time(30, silent=list(cohort.ranks.values()))
        cohort.pass_time(0.4, silent=[cohort.ranks["m2.1/0"]])
        assert members_of(cohort.epochs[-1]) == ["m0.1/0", "m1.1/0"]

    def test_everybody_silent_for_a_minute_is_dead(self) -> None:
        cohort = three()
        cohort.pass_time(61, silent=list(cohort.ranks.values()))
        assert cohort.engine.outcome is wire.Outcome.RECOVERING
        assert all(rank.refused is not None for rank in cohort.ranks.values())

    def test_who_is_still_silent_after_the_coordinator_was_away_is_dead(self) -> None:
        cohort = three()
        cohort.pass_time(0.4)
        cohort.now += 5
        cohort.deliver(cohort.engine.tick(cohort.now))
        cohort.pass_time(2.4, silent=[cohort.ranks["m2.1/0"]])
        assert members_of(cohort.epochs[-1]) == ["m0.1/0", "m1.1/0"]

    def test_a_thawed_zombie_is_fenced(self) -> None:
        cohort = three()
        frozen = cohort.ranks["m2.1/0"]
        cohort.pass_time(3, silent=[frozen])
        hello = rank_hello(agent_hello(2))
        answer = cohort.engine.rank_hello(hello, cohort.now)
        assert [message.reason for _, message in answer if isinstance(message, wire.Refuse)] == [Refusal.FENCED]

    def test_all_dead_waits_for_successors_with_a_checkpoint(self) -> None:
        cohort = three()
        cohort.window()
        for rank in list(cohort.ranks.values()):
            cohort.kill(rank)
        assert cohort.engine.outcome is wire.Outcome.RECOVERING
        for ordinal in range(3):
            cohort.dial(ordinal, incarnation=2, committed=wire.Position(epoch=0, window=1))
        assert cohort.engine.outcome is wire.Outcome.TRAINING
        assert len(cohort.epochs[-1].members) == 3

    def test_all_dead_without_any_checkpoint_is_refused_not_restarted(self) -> None:
        cohort = three()
        cohort.window()
        for rank in list(cohort.ranks.values()):
            cohort.kill(rank)
        for ordinal in range(3):
            cohort.dial(ordinal, incarnation=2, checkpoint_error="ckpt-00000001 is truncated")
        assert cohort.engine.outcome is wire.Outcome.FAILED
        assert cohort.engine.reason == Ended.NO_CHECKPOINT
        assert "truncated" in cohort.engine.message
        assert "digits-cpu-2-1, ended so: its connection closed" in cohort.engine.message, "nobody knows why they died"

    def test_a_failed_reduce_without_a_death_re_forms_the_same_members(self) -> None:
        cohort = three()
        cohort.deliver(
            cohort.engine.reduce_failed("m0.1/0", wire.ReduceFailed(epoch=1, window=1, message="reset"), cohort.now)
        )
        cohort.pass_time(2)
        assert len(cohort.epochs) == 1
        cohort.pass_time(1)
        assert cohort.epochs[-1].cause is wire.EpochCause.REFORM
        assert members_of(cohort.epochs[-1]) == members_of(cohort.epochs[0])

    def test_a_death_explains_a_failed_reduce(self) -> None:
        cohort = three()
        cohort.deliver(
            cohort.engine.reduce_failed("m0.1/0", wire.ReduceFailed(epoch=1, window=1, message="reset"), cohort.now)
        )
        cohort.kill(cohort.ranks["m1.1/0"])
        cohort.pass_time(10)
        assert [epoch.cause for epoch in cohort.epochs] == [wire.EpochCause.START, wire.EpochCause.DEATH]

    def test_the_operators_word_that_a_pod_is_gone_kills(self) -> None:
        cohort = three()
        cohort.deliver(cohort.engine.hinted(wire.Hint(wanted_members=3, gone=["m1.1"]), cohort.now))
        assert members_of(cohort.epochs[-1]) == ["m0.1/0", "m2.1/0"]

    def test_recovery_time_is_measured_to_the_next_commit(self) -> None:
        cohort = three()
        cohort.window()
        cohort.kill(cohort.ranks["m1.1/0"])
        cohort.now += 0.25
        cohort.window()
        assert list(cohort.engine.progress.recoveries) == [0.25]


class TestJoinAndLeave:
    def test_a_joiner_takes_part_after_all_formed_and_switched(self) -> None:
        cohort = three()
        cohort.window()
        joiner = cohort.dial(3)
        assert joiner.epoch is None
        cohort.window()
        assert [rank.uid for rank in cohort.training()][-1] == "m3.1/0"
        assert cohort.engine.epochs.planned is None

    def test_a_joiner_dying_before_it_formed_cancels_the_plan(self) -> None:
        cohort = three()
        agent = agent_hello(3)
        cohort.deliver(cohort.engine.agent_hello(agent, cohort.now))
        cohort.deliver(cohort.engine.rank_hello(rank_hello(agent), cohort.now))
        planned = cohort.engine.epochs.planned
        assert planned is not None
        cohort.deliver(cohort.engine.rank_lost("m3.1/0", cohort.now))
        assert any(isinstance(m, wire.EpochCancelled) for m in cohort.ranks["m0.1/0"].heard)
        cohort.window()
        assert len(cohort.training()) == 3
        cohort.dial(4)
        assert cohort.epochs[-1].epoch > planned.epoch.epoch

    def test_a_plan_that_nobody_finishes_is_dropped(self) -> None:
        cohort = three()
        agent = agent_hello(3)
        cohort.deliver(cohort.engine.agent_hello(agent, cohort.now))
        cohort.deliver(cohort.engine.rank_hello(rank_hello(agent), cohort.now))
        for _ in range(160):
            cohort.deliver(
                cohort.engine.heartbeat(
                    "m3.1/0", wire.Heartbeat(phase=wire.Phase.WAIT, epoch=0, window=0, progress=0), cohort.now
                )
            )
            cohort.pass_time(0.2)
        assert any(isinstance(m, wire.EpochCancelled) for m in cohort.ranks["m0.1/0"].heard)

    def test_a_leaver_goes_once_everybody_has_its_last_window(self) -> None:
        cohort = three()
        cohort.window()
        leaver = cohort.ranks["m2.1/0"]
        cohort.leave(leaver)
        assert leaver.done is None
        cohort.window()
        cohort.pass_time(0.4)
        assert leaver.done is not None and leaver.done.exit_code == PodExit.LEFT
        assert leaver.settled == 2
        assert [rank.uid for rank in cohort.training()] == ["m0.1/0", "m1.1/0"]
        assert cohort.engine.progress.deaths == 0

    def test_when_all_leave_they_save_and_their_successors_resume(self) -> None:
        cohort = three()
        cohort.window()
        for rank in list(cohort.ranks.values()):
            cohort.leave(rank)
        cohort.pass_time(0.4)
        cohort.window()
        last_two = cohort.training()
        assert [rank.uid for rank in last_two] == ["m1.1/0", "m2.1/0"]
        assert all(any(isinstance(m, wire.Stop) and m.save for m in rank.heard) for rank in last_two)
        cohort.window()
        cohort.finish()
        assert all(rank.done is not None and rank.done.exit_code == PodExit.LEFT for rank in cohort.ranks.values())
        assert cohort.engine.outcome is wire.Outcome.RECOVERING
        for ordinal in range(3):
            cohort.dial(ordinal, incarnation=2, committed=wire.Position(epoch=0, window=3))
        assert len(cohort.training()) == 3 and cohort.engine.outcome is wire.Outcome.TRAINING


class TestEnd:
    def test_success_needs_everybody_finished(self) -> None:
        cohort = three()
        cohort.window(final=True)
        assert all(rank.settled == 1 for rank in cohort.ranks.values())
        first, *others = cohort.training()
        for rank in others:
            cohort.deliver(
                cohort.engine.finished(rank.uid, wire.Finished(epoch=1, window=1, saved="saved"), cohort.now)
            )
        assert cohort.engine.outcome is wire.Outcome.TRAINING
        cohort.deliver(cohort.engine.finished(first.uid, wire.Finished(epoch=1, window=1, saved="saved"), cohort.now))
        assert cohort.engine.outcome is wire.Outcome.SUCCEEDED
        assert all(rank.done is not None and rank.done.exit_code == 0 for rank in cohort.ranks.values())

    def test_nobody_joins_a_run_that_is_ending(self) -> None:
        cohort = three()
        cohort.window(final=True)
        cohort.dial(5)
        assert cohort.engine.epochs.planned is None

    def test_the_writers_death_after_the_final_commit_makes_the_next_one_the_writer(self) -> None:
        cohort = three()
        cohort.window(final=True)
        first, *others = cohort.training()
        said = wire.Finished(epoch=1, window=1, saved="saved")
        for rank in others:
            cohort.deliver(cohort.engine.finished(rank.uid, said, cohort.now))
        cohort.kill(first)
        assert members_of(cohort.epochs[-1])[0] == "m1.1/0"
        assert cohort.engine.outcome is not wire.Outcome.SUCCEEDED, "nobody has written the last checkpoint"
        for rank in others:
            cohort.deliver(cohort.engine.finished(rank.uid, said, cohort.now))
        assert cohort.engine.outcome is not wire.Outcome.SUCCEEDED, "that was said in the epoch before"
        cohort.finish()
        assert cohort.engine.outcome is wire.Outcome.SUCCEEDED

    def test_a_volume_that_could_never_be_written_to_is_no_success_either(self) -> None:
        """The rank says so at the start, and has nobody who would say it again at the end."""
        refused = wire.CheckpointFailed(window=0, reason=Ended.CHECKPOINT_UNREADABLE, message="read-only file system")
        for claim, outcome in (("work", wire.Outcome.FAILED), (None, wire.Outcome.SUCCEEDED)):
            checkpoint = CheckpointSpec(claim=claim) if claim is not None else None
            cohort = Cohort(run_config(checkpoint=checkpoint))
            for ordinal in range(3):
                cohort.dial(ordinal)
            cohort.pass_time(0.2)
            cohort.deliver(cohort.engine.save_failed("m0.1/0", refused, cohort.now))
            cohort.window(final=True)
            cohort.finish()
            assert cohort.engine.outcome is outcome
        assert cohort.engine.reason == Ended.COMPLETED

    def test_a_final_checkpoint_makes_an_earlier_fault_good(self) -> None:
        cohort = Cohort(run_config(checkpoint=CheckpointSpec(claim="work")))
        for ordinal in range(3):
            cohort.dial(ordinal)
        cohort.pass_time(0.2)
        full = wire.CheckpointFailed(window=1, reason=Ended.CHECKPOINT_FULL, message="no space left")
        cohort.deliver(cohort.engine.save_failed("m0.1/0", full, cohort.now))
        cohort.window(final=True)
        saved = wire.CheckpointSaved(
            window=2, samples=20, path="ckpt-2", size_bytes=1, stall_ms=0.0, write_ms=0.0, final=True
        )
        cohort.deliver(cohort.engine.saved("m0.1/0", saved, cohort.now))
        cohort.finish()
        assert cohort.engine.outcome is wire.Outcome.SUCCEEDED

    def test_a_final_checkpoint_that_cannot_be_written_is_no_success(self) -> None:
        cohort = three()
        cohort.window(final=True)
        failed = wire.CheckpointFailed(window=1, reason=Ended.CHECKPOINT_FULL, message="no space left", final=True)
        cohort.deliver(cohort.engine.save_failed("m0.1/0", failed, cohort.now))
        cohort.finish()
        assert cohort.engine.outcome is wire.Outcome.FAILED and cohort.engine.reason == Ended.CHECKPOINT_FULL

    def test_a_later_writer_that_can_write_it_mends_that(self) -> None:
        cohort = three()
        cohort.window(final=True)
        failed = wire.CheckpointFailed(window=1, reason=Ended.CHECKPOINT_FULL, message="no space left", final=True)
        cohort.deliver(cohort.engine.save_failed("m0.1/0", failed, cohort.now))
        cohort.kill(cohort.ranks["m0.1/0"])
        saved = wire.CheckpointSaved(window=1, samples=10, path="ckpt-1", size_bytes=1, stall_ms=0.0, write_ms=0.0)
        cohort.deliver(cohort.engine.saved("m1.1/0", saved, cohort.now))
        assert cohort.engine.reason == Ended.CHECKPOINT_FULL, "that was not the last one"
        final = saved.model_copy(update={"final": True})
        cohort.deliver(cohort.engine.saved("m1.1/0", final, cohort.now))
        cohort.finish()
        assert cohort.engine.outcome is wire.Outcome.SUCCEEDED and cohort.engine.reason == Ended.COMPLETED

    def test_suspend_saves_and_lets_all_go_without_fault(self) -> None:
        cohort = three()
        cohort.window()
        cohort.deliver(cohort.engine.hinted(wire.Hint(wanted_members=3, suspend=True), cohort.now))
        assert all(any(isinstance(m, wire.Stop) and m.save for m in rank.heard) for rank in cohort.ranks.values())
        cohort.window()
        cohort.finish()
        assert cohort.engine.outcome is wire.Outcome.SUSPENDED
        assert all(rank.done is not None and rank.done.exit_code == PodExit.LEFT for rank in cohort.ranks.values())

    def test_giving_up_saves_and_fails_with_the_operators_reason(self) -> None:
        cohort = three()
        cohort.deliver(cohort.engine.hinted(wire.Hint(wanted_members=3, give_up=Ended.MAX_FAILURES), cohort.now))
        cohort.window()
        cohort.finish()
        assert cohort.engine.outcome is wire.Outcome.FAILED and cohort.engine.reason == Ended.MAX_FAILURES


class TestRestart:
    def echo(self, epoch: wire.Epoch, window: int) -> wire.Echo:
        return wire.Echo(
            generation=1,
            epoch=epoch.epoch,
            members=list(epoch.members),
            committed=wire.Position(epoch=epoch.epoch, window=window),
            samples=window * 10,
            skipped=window * 2,
            data_epoch=1,
            max_epoch=epoch.epoch + 3,
        )

    def suspended(self, cohort: Cohort, old: Cohort, ordinal: int, epoch: wire.Epoch) -> SimulatedRank:
        """A rank that an earlier coordinator suspended dials: it is still in the epoch before that."""
        agent = agent_hello(ordinal)
        cohort.deliver(cohort.engine.agent_hello(agent, cohort.now))
        rank = cohort.ranks[f"m{ordinal}.1/0"] = old.ranks[f"m{ordinal}.1/0"]
        rank.stuck = True
        echo = self.echo(epoch, 5).model_copy(update={"suspended": True})
        cohort.deliver(cohort.engine.rank_hello(rank_hello(agent, echo=echo), cohort.now))
        return rank

    @pytest.mark.parametrize("first", [True, False])
    def test_who_was_suspended_is_not_planned_in_before_it_goes_on(self, first: bool) -> None:
        old = three()
        new = Cohort(generation=2)
        whole = old.epochs[0]
        without = whole.model_copy(update={"epoch": 2, "previous": 1, "members": whole.members[:2]})
        if first:
            stuck = self.suspended(new, old, 2, whole)
        for ordinal in (0, 1):
            agent = agent_hello(ordinal)
            new.deliver(new.engine.agent_hello(agent, new.now))
            rank = new.ranks[f"m{ordinal}.1/0"] = old.ranks[f"m{ordinal}.1/0"]
            rank.epoch = without
            new.deliver(new.engine.rank_hello(rank_hello(agent, echo=self.echo(without, 5)), new.now))
        if not first:
            stuck = self.suspended(new, old, 2, whole)
        new.pass_time(10)
        (member,) = [member for member in snapshot(new.engine).members if member.uid == "m2.1"]
        assert (member.state, member.reason) == ("suspended", "Stalled") and "earlier coordinator" in member.message
        assert new.epochs == [], "the others train on and wait for nobody"
        stuck.stuck, stuck.suspended = False, True
        new.pass_time(1)
        assert members_of(new.epochs[-1]) == ["m0.1/0", "m1.1/0", "m2.1/0"] and new.engine.progress.deaths == 0

    def reconnect(self, cohort: Cohort, old: Cohort, ordinals: list[int]) -> None:
        for ordinal in ordinals:
            agent = agent_hello(ordinal)
            cohort.deliver(cohort.engine.agent_hello(agent, cohort.now))
            uid = f"m{ordinal}.1/0"
            cohort.ranks[uid] = old.ranks[uid]
            hello = rank_hello(agent, committed=wire.Position(epoch=1, window=5), echo=self.echo(old.epochs[0], 5))
            cohort.deliver(cohort.engine.rank_hello(hello, cohort.now))

    def test_a_new_coordinator_takes_over_without_a_new_epoch(self) -> None:
        old = three()
        new = Cohort(generation=2)
        self.reconnect(new, old, [0, 1, 2])
        new.pass_time(10)
        assert new.epochs == [] and new.engine.outcome is wire.Outcome.TRAINING
        told = snapshot(new.engine)
        assert (told.window, told.samples, told.skipped, told.data_epoch) == (5, 50, 10, 1), "before the next commit"
        new.window()
        assert new.engine.progress.window >= 5

    def test_a_member_that_died_meanwhile_is_dead_after_the_grace(self) -> None:
        old = three()
        new = Cohort(generation=2)
        self.reconnect(new, old, [0, 2])
        new.pass_time(wire.RECONNECT_GRACE_SECONDS - 1)
        assert new.epochs == []
        new.pass_time(2)
        assert members_of(new.epochs[-1]) == ["m0.1/0", "m2.1/0"]
        assert new.epochs[-1].epoch > old.epochs[0].epoch + 3

    def test_its_epochs_never_have_a_number_that_a_replaced_coordinator_still_gives_out(self) -> None:
        old = three()
        new = Cohort(generation=2)
        self.reconnect(new, old, [0, 1])
        new.pass_time(wire.RECONNECT_GRACE_SECONDS + 0.5)
        old.kill(old.ranks["m0.1/0"])
        for _ in range(50):
            old.pass_time(0.2)
            old.dial(0, incarnation=len(old.epochs) + 2)
            old.window()
        assert not {epoch.epoch for epoch in old.epochs[1:]} & {epoch.epoch for epoch in new.epochs}
        assert new.epochs[-1].epoch > old.epochs[-1].epoch

    def test_who_went_on_with_a_replaced_coordinator_is_fenced(self) -> None:
        old = three()
        new = Cohort(generation=2)
        self.reconnect(new, old, [0, 1])
        new.pass_time(wire.RECONNECT_GRACE_SECONDS + 0.5)
        old.kill(old.ranks["m0.1/0"])
        agent = agent_hello(2)
        new.deliver(new.engine.agent_hello(agent, new.now))
        hello = rank_hello(agent, echo=self.echo(old.epochs[-1], 90))
        answer = new.engine.rank_hello(hello, new.now)
        assert [message.reason for _, message in answer if isinstance(message, wire.Refuse)] == [Refusal.FENCED]
        new.pass_time(5)
        assert members_of(new.epochs[-1]) == ["m0.1/0", "m1.1/0"]

    def test_who_only_comes_late_from_the_same_epoch_may_join(self) -> None:
        old = three()
        new = Cohort(generation=2)
        self.reconnect(new, old, [0, 1])
        new.pass_time(wire.RECONNECT_GRACE_SECONDS + 0.5)
        self.reconnect(new, old, [2])
        assert members_of(new.epochs[-1]) == ["m0.1/0", "m1.1/0", "m2.1/0"]

    def test_who_is_alive_to_the_operator_has_longer_to_come_back(self) -> None:
        old = three()
        new = Cohort(generation=2)
        new.engine.hinted(wire.Hint(wanted_members=3, expected=["m0.1", "m1.1", "m2.1"]), new.now)
        self.reconnect(new, old, [0, 2])
        new.pass_time(wire.RECONNECT_GRACE_SECONDS + 3)
        assert new.epochs == []
        self.reconnect(new, old, [1])
        new.pass_time(10)
        assert new.epochs == [] and new.engine.outcome is wire.Outcome.TRAINING

    def test_nobody_waits_for_who_is_gone_to_the_operator(self) -> None:
        old = three()
        new = Cohort(generation=2)
        new.engine.hinted(wire.Hint(wanted_members=3, expected=["m0.1", "m2.1"], gone=["m1.1"]), new.now)
        self.reconnect(new, old, [0, 2])
        new.pass_time(wire.RECONNECT_GRACE_SECONDS + 0.5)
        assert members_of(new.epochs[-1]) == ["m0.1/0", "m2.1/0"]

    def test_the_grace_of_a_new_coordinator_does_not_run_while_it_is_away(self) -> None:
        old = three()
        new = Cohort(generation=2)
        self.reconnect(new, old, [0, 1])
        new.pass_time(0.4)
        new.now += 30
        new.deliver(new.engine.tick(new.now))
        self.reconnect(new, old, [2])
        new.pass_time(10)
        assert new.epochs == []

    def test_it_does_not_start_afresh_before_the_ranks_had_time_to_come_back(self) -> None:
        new = Cohort(generation=2)
        for ordinal in range(3):
            new.dial(ordinal)
        assert new.epochs == []
        new.pass_time(wire.RECONNECT_GRACE_SECONDS + 0.5)
        assert len(new.epochs) == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["kill", "leave", "join", "window", "silence"]), st.integers(0, 5))))
def test_whatever_happens_epochs_grow_and_the_dead_stay_out(story: list[tuple[str, int]]) -> None:
    config = run_config(join=JoinSpec(min_members=1, target_members=3, window_seconds=5, cap_seconds=1000))
    cohort = Cohort(config)
    incarnations = dict.fromkeys(range(6), 1)
    for ordinal in range(3):
        cohort.dial(ordinal, committed=wire.Position(epoch=0, window=1))
    for what, number in story:
        training = cohort.training()
        if what == "join":
            incarnations[number] += 1
            cohort.dial(number, incarnations[number], committed=wire.Position(epoch=0, window=1))
        elif what == "window" and training:
            cohort.window()
        elif training and what in ("kill", "leave", "silence"):
            rank = training[number % len(training)]
            {"kill": cohort.kill, "leave": cohort.leave}.get(what, lambda r: cohort.pass_time(3, silent=[r]))(rank)
        cohort.pass_time(0.4)
        dead = {f"{seat.uid}/0" for seat in cohort.engine.seats.by_uid.values() if seat.state.value == "dead"}
        assert not dead & set(cohort.engine.epochs.uids())
    numbers = [epoch.epoch for epoch in cohort.epochs if epoch.planned or epoch.cause not in ("join", "leave")]
    assert numbers == sorted(set(numbers))
    for epoch in cohort.epochs:
        assert len(set(members_of(epoch))) == len(epoch.members) > 0


class TestSaveNow:
    def test_each_new_wish_asks_every_rank_once(self) -> None:
        cohort = three()
        saves: list[str] = []
        for wish in ("", "10:00", "10:00", "10:05", ""):
            assert cohort.engine.hinted(wire.Hint(wanted_members=3, save=wish), cohort.now) == []
            for _ in range(2):
                sends = cohort.engine.tick(cohort.now)
                saves += [f"{wish} {uid}" for uid, message in sends if isinstance(message, wire.Save)]
        ranks = ["m0.1/0", "m1.1/0", "m2.1/0"]
        assert saves == [f"{wish} {uid}" for wish in ("10:00", "10:05") for uid in ranks]

    def test_a_wish_before_the_start_is_kept(self) -> None:
        cohort = Cohort()
        cohort.engine.hinted(wire.Hint(wanted_members=2, save="now"), cohort.now)
        assert cohort.engine.tick(cohort.now) == []
        cohort.dial(0)
        cohort.dial(1)
        sends = cohort.engine.tick(cohort.now)
        assert [uid for uid, message in sends if isinstance(message, wire.Save)] == ["m0.1/0", "m1.1/0"]
