"""Starting, suspending, giving seats back, clearing up."""

import pytest

from fdl_api.termination import Cause
from fdl_api.wire import Outcome
from fdl_operator.model import (
    ApplyObject,
    CreateCoordinator,
    CreateMember,
    DeletePod,
    DeleteRun,
    EnsureSecret,
    SendHint,
    WriteStatus,
)

from .builders import World, is_wake, member_name, node, only, said

CREATING = (CreateMember, CreateCoordinator, ApplyObject, EnsureSecret)
DONE = said(Cause.COMPLETE, "Completed", "done")


def test_a_suspended_run_saves_first_and_is_then_freed() -> None:
    world = World().training()
    actions = world.edit(run_policy__suspend=True).step()
    assert only(actions, SendHint)[0].hint.suspend and not only(actions, DeletePod)
    assert world.status.phase == "Running" and world.condition("Suspended").status == "Unknown"
    for ordinal in (0, 1):
        world.ended(member_name(ordinal, 1), 75, said(Cause.PREEMPTION, "LeftOnRequest"))
    world.says(Outcome.SUSPENDED, checkpoint=12).settle()
    assert world.status.phase == "Suspended" and "window 12" in world.condition("Suspended").message
    assert world.status.counters.preemption == 0, "nobody pays for a suspension"
    assert world.status.training is not None and world.status.training.checkpoint is not None


def test_a_suspension_that_cannot_save_ends_by_time_out() -> None:
    world = World().training()
    world.edit(run_policy__suspend=True).settle()
    world.step(world.limits.suspend_timeout)
    assert world.status.phase == "Suspended" and all(pod.deleted_at for pod in world.pods.values())


def test_a_run_created_suspended_creates_nothing() -> None:
    world = World(runPolicy={"suspend": True})
    assert not only(world.step(), CreateMember) and world.status.phase == "Suspended" and world.status.attempt == 0


def test_resuming_is_a_new_attempt_that_must_use_the_checkpoint() -> None:
    world = World().training()
    world.edit(run_policy__suspend=True).says(Outcome.SUSPENDED, checkpoint=12).settle()
    actions = world.edit(run_policy__suspend=False).step()
    assert world.status.attempt == 2 and world.status.coordinator.pod_name == "run-coordinator-2"
    assert [action.attempt for action in only(actions, CreateMember)] == [2, 2]
    assert [action.name for action in only(actions, CreateMember)] == [member_name(0, 2), member_name(1, 2)]
    assert "ConfigMap" in {action.kind for action in only(actions, ApplyObject)}
    assert world.condition("Suspended").reason == "Resumed"


def test_a_pod_of_an_earlier_attempt_is_deleted_and_never_counted() -> None:
    world = World().training()
    world.edit(run_policy__suspend=True).says(Outcome.SUSPENDED, checkpoint=1).settle()
    world.change(member_name(0, 1), deleted_at=None)
    world.edit(run_policy__suspend=False).settle()
    assert world.pods[member_name(0, 1)].deleted_at
    world.gone(member_name(0, 1)).settle()
    assert world.status.counters.preemption == 0


def test_going_on_while_the_coordinator_already_stopped_begins_a_new_attempt() -> None:
    world = World().training()
    world.edit(run_policy__suspend=True).step()
    world.says(Outcome.SUSPENDED, checkpoint=3)
    world.edit(run_policy__suspend=False).settle()
    assert world.status.attempt == 2 and world.status.phase == "Starting"


def test_a_half_placed_run_gives_its_seats_back_and_tries_again_later() -> None:
    world = World(join={"minMembers": 2}, runPolicy={"startupDeadlineSeconds": 100})
    world.settle()
    world.running("run-coordinator-1").running(member_name(0, 1))
    world.change(member_name(1, 1), unschedulable="no room", unschedulable_since=world.now).settle()
    actions = world.step(100)
    assert {action.name for action in only(actions, DeletePod)} == {
        "run-coordinator-1",
        member_name(0, 1),
        member_name(1, 1),
    }
    assert world.status.phase == "Pending" and world.condition("Formed").reason == "StartupDeadlineExceeded"
    for name in list(world.pods):
        world.gone(name)
    world.settle()
    wake = next(action for action in world.plan() if is_wake(action))
    wait = wake.at - world.now  # type: ignore[union-attr]
    assert 0.5 * world.limits.restart_backoff <= wait <= 1.5 * world.limits.restart_backoff
    world.step(wait + 1)
    assert world.status.attempt == 2 and world.status.phase == "Starting"
    assert world.status.counters.preemption == 0


def test_two_runs_that_gave_back_their_seats_do_not_come_back_together() -> None:
    import dataclasses

    waits = set()
    for uid in ("a" * 36, "b" * 36):
        world = World(join={"minMembers": 2}, runPolicy={"startupDeadlineSeconds": 100})
        world.run = dataclasses.replace(world.run, uid=uid)
        world.settle()
        world.step(100)
        waits.add(next(action for action in world.plan() if is_wake(action)).at)  # type: ignore[union-attr]
    assert len(waits) == 2


def test_a_run_with_enough_places_is_not_taken_back() -> None:
    world = World(join={"minMembers": 1}, runPolicy={"startupDeadlineSeconds": 100}).started()
    world.step(5000)
    assert world.status.phase == "Starting" and world.status.attempt == 1


class TestTerminalIsTerminal:
    @pytest.fixture
    def world(self) -> World:
        return World(runPolicy={"cleanPodPolicy": "All"}).training().says(Outcome.SUCCEEDED)

    def test_nothing_is_ever_created_again(self, world: World) -> None:
        world.settle()
        for name in list(world.pods):
            world.gone(name)
        world.owned.clear()
        world.secret = False
        for seconds in (0, 100, 10_000):
            actions = world.step(seconds)
            assert not [action for action in actions if isinstance(action, CREATING)]
        assert world.status.phase == "Succeeded"

    def test_a_later_failure_changes_nothing(self, world: World) -> None:
        world.settle()
        world.says(Outcome.FAILED).ended(member_name(0, 1), 64).settle()
        assert world.status.phase == "Succeeded" and world.condition("Complete").status == "True"

    def test_suspending_or_scaling_it_changes_nothing(self, world: World) -> None:
        world.settle()
        world.edit(run_policy__suspend=True, replicas=7).settle()
        assert world.status.phase == "Succeeded"

    def test_members_come_to_their_end_in_the_table(self, world: World) -> None:
        world.settle()
        world.ended(member_name(0, 1), 0, DONE).gone(member_name(1, 1)).settle()
        assert [member.phase for member in world.status.members] == ["Succeeded", "Succeeded"]


@pytest.mark.parametrize(
    ("policy", "left"),
    [("Running", {member_name(0, 1)}), ("All", set()), ("None", {member_name(0, 1), member_name(1, 1)})],
)
def test_pods_are_cleaned_by_policy_and_the_coordinator_always(policy: str, left: set[str]) -> None:
    world = World(runPolicy={"cleanPodPolicy": policy}).training()
    world.says(Outcome.SUCCEEDED).ended(member_name(0, 1), 0, DONE).settle()
    world.step(world.limits.finish_timeout)
    world.settle()
    assert {name for name, pod in world.pods.items() if not pod.deleted_at} == left


def test_a_finished_run_is_deleted_after_its_time_to_live() -> None:
    world = World(runPolicy={"ttlSecondsAfterFinished": 60}).training()
    world.says(Outcome.SUCCEEDED).settle()
    assert not only(world.step(59), DeleteRun)
    assert only(world.step(1), DeleteRun)


def test_a_run_that_is_being_deleted_is_left_to_the_garbage_collector() -> None:
    import dataclasses

    world = World().training()
    world.run = dataclasses.replace(world.run, deleting=True)
    world.gone(member_name(0, 1))
    assert world.plan() == []


def test_a_spec_that_this_release_cannot_read_is_said_and_nothing_is_touched() -> None:
    import dataclasses

    world = World()
    world.run = dataclasses.replace(world.run, spec=None, problem="spec.mode: unknown")
    actions = world.step()
    assert [type(action) for action in actions] == [WriteStatus]
    assert world.condition("Progressing").message == "spec.mode: unknown" and world.plan() == []


def test_nothing_starts_while_no_node_fits_and_it_starts_once_one_does() -> None:
    world = World(cohorts=[{"name": "a", "vendor": "cpu", "replicas": 1, "nodeSelector": {"disk": "ssd"}}])
    assert not only(world.step(), CreateMember)
    assert world.status.phase == "Pending" and world.status.attempt == 0
    assert "disk=ssd" in world.condition("Placeable").message
    import dataclasses

    fit = node("n3")
    world.nodes["n3"] = dataclasses.replace(fit, labels=fit.labels | {"disk": "ssd"})
    assert only(world.step(), CreateMember)
