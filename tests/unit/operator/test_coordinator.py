"""The coordinator is replaced at once, and trainers are not touched for it."""

import dataclasses
from typing import Any

import pytest

from fdl_api.wire import Outcome
from fdl_operator.model import OFF_DEVICES, ApplyObject, CreateCoordinator, DeletePod, ObjectKind
from tests.unit.nodes import T0

from .builders import World, is_wake, member_name, node, only


def test_a_deleted_coordinator_is_replaced_and_no_member_is_touched() -> None:
    world = World().training()
    actions = world.silent().gone("run-coordinator-1").step()
    assert [action.name for action in only(actions, CreateCoordinator)] == ["run-coordinator-2"]
    assert not only(actions, DeletePod)
    assert world.status.phase == "Recovering" and world.status.counters.coordinator == 1
    assert {action.kind for action in only(actions, ApplyObject)} == {ObjectKind.SERVICE}, "its Service moves along"
    world.running("run-coordinator-2").says().settle()
    assert world.status.phase == "Running"


def test_one_that_is_being_deleted_is_replaced_before_it_is_gone() -> None:
    world = World().training()
    assert only(world.deleting("run-coordinator-1", grace=5).step(), CreateCoordinator)


def test_on_a_lost_node_it_is_replaced_after_a_short_silence() -> None:
    world = World().training()
    world.nodes["n1"] = node("n1", ready=False)
    world.silent().settle()
    assert "run-coordinator-2" not in world.pods
    actions = world.step(world.limits.coordinator_lost)
    assert only(actions, CreateCoordinator)


def test_on_a_node_that_is_only_not_ready_it_stays_while_it_answers() -> None:
    world = World().training()
    world.nodes["n1"] = node("n1", ready=False)
    world.step(1000)
    assert "run-coordinator-2" not in world.pods


def test_one_that_crashes_quickly_waits_longer_each_time() -> None:
    world = World().training()
    waits = []
    for incarnation in (1, 2, 3):
        world.ended(f"run-coordinator-{incarnation}", 1).settle()
        wake = [action for action in world.plan() if is_wake(action)]
        waits.append(round(wake[0].at - world.now) if wake else 0)  # type: ignore[union-attr]
        world.step(waits[-1])
        assert f"run-coordinator-{incarnation + 1}" in world.pods
    assert waits[0] == 0 and 0 < waits[1] < waits[2]


def test_the_log_of_the_last_dead_one_is_kept() -> None:
    world = World().training()
    for incarnation in (1, 2):
        world.ended(f"run-coordinator-{incarnation}", 1)
        world.step(100)
        world.settle()
    kept = {name for name in world.pods if "coordinator" in name}
    assert kept == {"run-coordinator-2", "run-coordinator-3"}


def test_a_short_silence_of_a_healthy_coordinator_changes_no_phase() -> None:
    world = World().training()
    world.silent().settle()
    assert world.status.phase == "Running"
    world.step(15)
    assert world.status.phase == "Recovering"
    assert world.condition("CoordinatorReady").reason == "CoordinatorUnreachable"


def test_an_operator_that_has_just_started_changes_no_phase() -> None:
    from fdl_operator.model import StreamView

    world = World().training()
    world.stream = StreamView()
    world.step(3600)
    assert world.status.phase == "Running"


def test_a_stalled_cohort_shows_as_recovering() -> None:
    world = World().training()
    world.says(Outcome.RECOVERING).settle()
    assert world.status.phase == "Recovering"
    world.says().settle()
    assert world.status.phase == "Running"


def test_hints_tell_who_is_expected_and_who_is_gone() -> None:
    world = World().training()
    dead = world.pods[member_name(0, 1)].uid
    world.ended(member_name(0, 1), 137).settle()
    sent = world.stream.sent
    assert sent is not None and sent.gone == [dead] and sent.wanted_members == 2
    assert sorted(sent.expected) == sorted(
        pod.uid for pod in world.pods.values() if pod.role == "member" and not pod.ended
    )


@pytest.mark.parametrize(
    ("second", "comes_up"),
    [
        ({"node": "n2"}, True),
        ({"node": "n2", "waiting_reason": "ContainerCreating"}, True),
        ({}, False),
        ({"node": "n2", "waiting_reason": "ImagePullBackOff"}, False),
        ({"node": "n2", "waiting_reason": "CreateContainerConfigError"}, False),
        ({"node": "n2", "deleted_at": T0}, False),
    ],
)
def test_hints_tell_who_is_on_a_node_and_may_be_ready_soon(second: dict[str, Any], comes_up: bool) -> None:
    world = World()
    world.settle()
    first, other = member_name(0, 1), member_name(1, 1)
    world.running("run-coordinator-1").running(first).change(other, **second).settle()
    sent = world.stream.sent
    assert sent is not None and set(sent.placed) <= set(sent.expected)
    assert sent.placed == sorted(world.pods[name].uid for name in ([first, other] if comes_up else [first]))


def test_a_death_is_told_before_anything_is_written() -> None:
    world = World().training()
    actions = world.ended(member_name(0, 1), 137).plan()
    assert type(actions[0]).__name__ == "SendHint"


class TestNodesWithDevices:
    def made(self, world: World) -> CreateCoordinator:
        (action,) = only(world.step(), CreateCoordinator)
        return action

    def test_it_is_kept_off_them_while_another_node_could_take_it(self) -> None:
        world = World()
        world.nodes["n2"] = node("n2", vendor__nvidia="true")
        assert self.made(world).off_devices

    def test_where_all_nodes_have_devices_it_takes_one(self) -> None:
        world = World()
        world.nodes = {name: node(name, vendor__amd="true") for name in ("n1", "n2")}
        world.nodes["control"] = dataclasses.replace(node("control"), taints=(("role", "", "NoSchedule"),))
        assert not self.made(world).off_devices

    def test_one_that_finds_no_room_there_moves_and_nobody_pays(self) -> None:
        world = World()
        world.settle()
        name = "run-coordinator-1"
        world.change(name, placement=OFF_DEVICES, unschedulable="no cpu", unschedulable_since=world.now).settle()
        assert not only(world.step(world.limits.unschedulable - 1), CreateCoordinator)
        (action,) = only(world.step(1), CreateCoordinator)
        assert (action.name, action.off_devices) == ("run-coordinator-2", False)
        assert world.status.counters.coordinator == 0
        world.settle()
        assert world.pods[name].deleted_at is not None
