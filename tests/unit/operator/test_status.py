"""What a status says, and how often it is written."""

import dataclasses
import math

import pytest

from fdl_api.termination import Cause
from fdl_api.wire import GuardRecord, GuardReport, Outcome, RankWindow
from fdl_operator import clock
from fdl_operator.model import (
    ApplyObject,
    ChildFailure,
    CreateCoordinator,
    CreateMember,
    DeleteObject,
    EnsureSecret,
    ObjectKind,
    WriteStatus,
)
from fdl_operator.plan import training

from .builders import World, is_wake, member_name, only, said


def test_training_alone_is_written_at_most_every_ten_seconds() -> None:
    world = World().training()
    world.now += 1
    world.says(window=2, samples=20)
    assert [action.at - world.now for action in world.plan() if is_wake(action)] == [9]  # type: ignore[union-attr]
    assert not only(world.plan(), WriteStatus)
    world.step(9)
    assert world.status.training is not None and world.status.training.window == 2


def test_training_waits_for_the_global_budget() -> None:
    world = World().training()
    world.says(window=2, samples=20)
    world.budget = False
    assert not only(world.step(11), WriteStatus)
    world.budget = True
    assert only(world.step(), WriteStatus)[0].training


def test_any_other_change_takes_the_training_along() -> None:
    world = World().training()
    world.says(window=5, samples=50).ended(member_name(0, 1), 137).step()
    assert world.status.training is not None and world.status.training.window == 5


def test_a_first_checkpoint_is_written_at_once() -> None:
    world = World().training()
    actions = world.says(window=5, checkpoint=5).step()
    assert only(actions, WriteStatus) and world.condition("CheckpointDurable").status == "True"
    assert world.step() == []


def test_a_checkpoint_that_a_new_coordinator_has_not_heard_of_is_not_forgotten() -> None:
    world = World().training()
    world.says(window=5, checkpoint=5).settle()
    world.silent().gone("run-coordinator-1").settle()
    world.running("run-coordinator-2").says(window=6, samples=60)
    world.step(20)
    world.settle()
    assert world.status.training is not None and world.status.training.checkpoint is not None
    assert world.status.training.checkpoint.last_durable_step == 5
    assert world.condition("CheckpointDurable").status == "True"


def test_a_failed_checkpoint_shows_with_its_reason() -> None:
    world = World().training()
    world.says(checkpoint_problem="No space left on device").settle()
    condition = world.condition("CheckpointDurable")
    assert (condition.reason, condition.message) == ("CheckpointFailed", "No space left on device")
    assert "CheckpointFailed" in world.events


def test_a_checkpoint_that_fails_after_a_good_one_is_told_until_the_next_good_one() -> None:
    world = World().training()
    world.says(checkpoint=5).settle()
    world.says(checkpoint=5, checkpoint_problem="No space left on device").settle()
    condition = world.condition("CheckpointDurable")
    assert (condition.status, condition.reason) == ("False", "CheckpointFailed")
    assert world.events.count("CheckpointFailed") == 1
    world.says(checkpoint=7).settle()
    assert world.condition("CheckpointDurable").status == "True"


def test_a_checkpoint_that_was_passed_over_is_an_event_and_stays_until_the_next_one_is_durable() -> None:
    why = "Checkpoint ckpt-00000040 in /checkpoints is skipped: model.safetensors is cut off."
    world = World().training()
    world.says(checkpoints_skipped=[why, "and another"]).settle()
    condition = world.condition("CheckpointDurable")
    assert (condition.reason, condition.message) == ("CheckpointSkipped", f"{why} | and another")
    assert world.events.count("CheckpointSkipped") == 1
    world.silent().gone("run-coordinator-1").settle()
    world.running("run-coordinator-2").says(window=6).settle()
    world.step(600)
    assert why in world.condition("CheckpointDurable").message, "the next coordinator has not heard of it"
    assert world.events.count("CheckpointSkipped") == 1
    world.says(window=7, checkpoint=7).settle()
    assert world.condition("CheckpointDurable").reason == "CheckpointVerified"


def test_a_checkpoint_on_record_that_was_passed_over_is_not_called_verified() -> None:
    world = World().training()
    world.says(checkpoint=40).settle()
    assert world.status.training is not None and world.status.training.checkpoint is not None
    name = world.status.training.checkpoint.path
    world.silent().gone("run-coordinator-1").settle()
    world.running("run-coordinator-2")
    other = "Checkpoint ckpt-00000099 in /checkpoints is skipped: it is empty."
    world.says(checkpoints_skipped=[other]).settle()
    assert world.status.training.checkpoint is not None and world.status.training.checkpoint.verified
    why = f"Checkpoint {name} in /checkpoints is skipped: model.safetensors is cut off."
    world.says(checkpoints_skipped=[f"{other} {why}"]).settle()
    world.step(600)
    found = world.status.training.checkpoint
    assert found is not None and (found.path, found.verified) == (name, False)
    world.says(checkpoint=41).settle()
    world.step(600)
    assert world.status.training.checkpoint is not None and world.status.training.checkpoint.verified


def test_when_no_rank_is_heard_the_status_says_since_when_and_judges_nobody() -> None:
    world = World().training()
    since = clock.render(world.now)
    world.now += 3
    world.says(unheard_since=since)
    world.step()
    condition = world.condition("Progressing")
    assert (condition.status, condition.reason) == ("Unknown", "NoRankHeard")
    assert f"no rank has been heard since {since}, for more than 2 s" in condition.message
    assert world.events.count("NoRankHeard") == 1 and world.status.phase == "Running"
    assert [action.at - world.now for action in world.plan() if is_wake(action)] == [7]  # type: ignore[union-attr]
    assert not only(world.plan(), WriteStatus), "silence that goes on is no news"
    world.step(7)
    assert "for more than 10 s" in world.condition("Progressing").message
    assert not world.status.counters.infrastructure and len(only(world.plan(), CreateMember)) == 0
    world.says().settle()
    assert world.condition("Progressing").reason == "Training"


def test_the_last_word_of_the_training_is_written_when_the_run_has_ended() -> None:
    world = World().training()
    world.says(Outcome.SUCCEEDED, samples=90).settle()
    world.says(Outcome.SUCCEEDED, samples=100, metrics={"accuracy": 0.9}).step()
    assert world.status.training is not None and world.status.training.metrics == {"accuracy": 0.9}


def test_a_member_that_the_coordinator_gave_up_does_not_count_while_its_pod_still_runs() -> None:
    world = World().training()
    world.says(states={member_name(1, 1): "dead"}).settle()
    assert world.status.summary.members == "1/2"
    assert world.status.cohorts[0].ready == 1
    condition = world.condition("Progressing")
    assert (condition.reason, "a-1" in condition.message) == ("ReplacingMember", True)


@pytest.mark.parametrize(
    ("outcome", "phase", "holds"), [(Outcome.RECOVERING, "Recovering", "False"), (Outcome.TRAINING, "Running", "True")]
)
def test_groups_that_fail_again_and_again_are_told_in_the_coordinators_words(
    outcome: Outcome, phase: str, holds: str
) -> None:
    world = World().training()
    world.says(outcome, problem="Rank 0 says: no route to host. To mend it, look.").settle()
    condition = world.condition("Progressing")
    assert (world.status.phase, condition.status, condition.reason) == (phase, holds, "GroupFails")
    assert condition.message == "Rank 0 says: no route to host. To mend it, look."
    world.says().settle()
    assert world.condition("Progressing").reason == "Training"


def test_notes_are_in_the_status() -> None:
    world = World().training()
    world.says(notes=["spec.elche.partitionRatios is not used."]).step(20)
    assert world.status.training is not None
    assert world.status.training.notes == ("spec.elche.partitionRatios is not used.",)


def test_a_suspended_member_is_named_with_the_coordinators_words_and_keeps_its_pod() -> None:
    world = World().training()
    world.says(states={member_name(1, 1): "suspended"}).settle()
    assert world.status.summary.members == "1/2"
    condition = world.condition("Progressing")
    assert condition.reason == "Stalled"
    assert "a-1" in condition.message and "it was alive" in condition.message
    assert (
        member_name(1, 1) in world.pods and not world.status.counters.app and not world.status.counters.infrastructure
    )
    world.says().settle()
    assert world.status.summary.members == "2/2" and world.condition("Progressing").reason == "Training"


def test_progress_without_a_checkpoint_must_be_resumed_too_and_the_config_map_says_it() -> None:
    world = World().started()
    world.says(window=0, samples=0).settle()
    world.says(window=7, samples=70, checkpoint_problem="No space left on device")
    maps = [action for action in only(world.settle(), ApplyObject) if action.kind is ObjectKind.CONFIG_MAP]
    assert [action.must_resume for action in maps] == [True]


def test_a_fresh_start_that_is_allowed_need_not_resume() -> None:
    world = World(runPolicy={"allowFreshStart": True}).started()
    world.says(window=0, samples=0).settle()
    world.says(window=7, samples=70)
    assert not [action for action in only(world.settle(), ApplyObject) if action.kind is ObjectKind.CONFIG_MAP]


def test_a_new_coordinator_that_knows_nothing_yet_does_not_take_back_the_progress() -> None:
    world = World().training()
    world.says(window=50, samples=60)
    world.step(20)
    world.says(Outcome.WAITING, epoch=0, window=0, samples=0, total_samples=0)
    world.step(20)
    told = world.status.training
    assert told is not None and (told.window, told.samples, told.total_samples) == (50, 60, 100)
    assert world.status.summary.progress == "60%"
    world.says(epoch=2, window=40, samples=48)
    world.step(20)
    told = world.status.training
    assert told is not None and (told.window, told.samples) == (40, 48)


def test_ranks_are_named_by_their_members() -> None:
    world = World().training()
    pod = world.pods[member_name(1, 1)]
    rank = RankWindow(
        uid=f"{pod.uid}/1",
        quota=3,
        batches=3,
        samples=30,
        compute_ms=9,
        data_wait_ms=0,
        ms_per_batch=math.inf,
        share=0.25,
        data="streamed: 7 shards",
    )
    world.says(ranks=[rank])
    assert world.stream.state is not None
    row = training.render(world.stream.state, world.now).ranks[0]
    assert (row.member, row.local_rank, row.share, row.ms_per_batch) == (member_name(1, 1), 1, 0.25, 0.0)
    assert row.data == "streamed: 7 shards"


def test_what_the_guards_did_is_in_the_status() -> None:
    world = World().training()
    record = GuardRecord(window=7, guard="level", action="suppressGrowth", why="Divergence rose.")
    world.says(guard=GuardReport(divergence=math.inf, latched=True, counts={"suppressGrowth": 3}, last=[record]))
    world.step(20)
    assert world.status.training is not None and world.status.training.guard is not None
    guard = world.status.training.guard
    assert (guard.divergence, guard.latched, guard.counts) == (0.0, True, {"suppressGrowth": 3})
    (action,) = guard.last
    assert (action.window, action.guard, action.action, action.message) == (
        7,
        "level",
        "suppressGrowth",
        "Divergence rose.",
    )


def test_prepared_strings_for_columns() -> None:
    world = World().training()
    world.says(samples=42, goodput=0.934)
    world.step(20)
    summary = world.status.summary
    assert (summary.members, summary.progress, summary.goodput) == ("2/2", "42%", "0.93")
    assert (summary.reason, summary.message) == ("Training", "")


def test_a_failed_run_says_why_on_one_line() -> None:
    world = World().started()
    words = "no /app/train.py\n  in the image; " + "x" * 900
    world.ended(member_name(0, 1), 64, said(Cause.APP, "ScriptMissing", words, permanent=True)).settle()
    summary = world.status.summary
    assert (world.status.phase, summary.reason) == ("Failed", "ScriptMissing")
    assert "run-a-0-1: no /app/train.py in the image; xx" in summary.message
    assert len(summary.message) == 200 and summary.message.endswith("\u2026")


def test_a_run_that_finds_no_place_says_it_in_the_column_until_it_has_one() -> None:
    world = World(cohorts=[{"name": "a", "vendor": "amd", "replicas": 1}])
    world.settle()
    assert world.status.summary.reason == "NoFittingNode" and "fits no node" in world.status.summary.message


def test_a_spec_that_this_release_cannot_read_is_said_in_the_column_too() -> None:
    world = World().training()
    world.run = dataclasses.replace(world.run, spec=None, problem="spec.mode: not known; upgrade the operator")
    world.settle()
    summary = world.status.summary
    assert (summary.members, summary.reason) == ("2/2", "SpecUnreadable") and "upgrade the operator" in summary.message


def test_the_end_of_a_run_is_one_event() -> None:
    world = World().started()
    for ordinal in (0, 1):
        words = said(Cause.APP, "ScriptMissing", "no /app/train.py", permanent=True)
        world.ended(member_name(ordinal, 1), 64, words)
    world.settle()
    assert world.status.phase == "Failed" and world.events.count("ScriptMissing") == 1


def test_transitions_are_told_once() -> None:
    world = World().training()
    world.settle()
    assert world.events == ["AttemptStarted", "Starting", "Running"]


def test_conditions_carry_the_generation_that_they_were_decided_from() -> None:
    world = World().training()
    world.edit(run_policy__ttl_seconds_after_finished=5).settle()
    assert {condition.observed_generation for condition in world.status.conditions} == {2}
    assert world.status.observed_generation == 2


def test_a_transition_time_moves_only_with_the_status() -> None:
    world = World().training()
    before = world.condition("Progressing").last_transition_time
    world.step(50)
    world.ended(member_name(0, 1), 137).settle()
    assert world.condition("Progressing").reason == "ReplacingMember"
    assert world.condition("Progressing").last_transition_time == before


def test_a_disruption_budget_exists_only_while_there_is_something_to_spare() -> None:
    world = World(join={"minMembers": 1})
    kinds = {action.kind for action in only(world.step(), ApplyObject)}
    assert ObjectKind.DISRUPTION_BUDGET in kinds
    world.edit(replicas=1)
    assert [action.kind for action in only(world.step(), DeleteObject)] == [ObjectKind.DISRUPTION_BUDGET]


def test_without_a_network_policy_in_the_spec_none_is_made() -> None:
    kinds = {action.kind for action in only(World(network={"policy": "none"}).step(), ApplyObject)}
    assert ObjectKind.NETWORK_POLICY not in kinds and ObjectKind.SERVICE in kinds


def test_an_object_that_somebody_deleted_comes_back() -> None:
    world = World().training()
    del world.owned[ObjectKind.SERVICE, "run-coordinator"]
    assert [action.kind for action in only(world.step(), ApplyObject)] == [ObjectKind.SERVICE]


def test_no_pod_is_created_while_what_it_mounts_is_refused() -> None:
    """The Secret or the ConfigMap of an earlier run of this name: a pod would start with its keys and settings."""
    for child in ("Secret", "ConfigMap"):
        world = World()
        world.secret = child != "Secret"
        world.failures[child] = ChildFailure(child, 409, "belongs to something else", 1, world.now + 5)
        assert not only(world.step(), CreateMember) and not only(world.step(), CreateCoordinator)
        condition = world.condition("Progressing")
        assert (condition.reason, child in condition.message) == ("ChildCreateFailed", True)
        world.now += 6
        world.secret = True
        assert only(world.step(), CreateCoordinator)


def test_the_secret_is_asked_for_until_it_is_there() -> None:
    world = World()
    world.secret = False
    assert only(world.step(), EnsureSecret) and only(world.step(), EnsureSecret)
    world.secret = True
    assert not only(world.step(), EnsureSecret)
