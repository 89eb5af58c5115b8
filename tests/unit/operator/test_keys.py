"""The run's Secret: looked at before pods need it, put back as it was, and never changed under live members."""

import pytest

from fdl_operator.model import ChildFailure, CreateMember, DeletePod, EnsureSecret
from fdl_operator.plan.keys import CREATE_SECONDS, STUCK_SECONDS
from fdl_operator.settings import Limits

from .builders import World, member_name, only


def test_keys_are_made_only_before_the_first_pod() -> None:
    world = World()
    world.secret = False
    assert only(world.step(), EnsureSecret) == [EnsureSecret(fresh_keys=True)]
    assert only(world.step(), EnsureSecret) == [EnsureSecret(fresh_keys=False)]


def test_a_run_at_rest_costs_a_look_now_and_then_only() -> None:
    world = World().training()
    world.limits = Limits()
    world.secret_age = world.limits.secret_check - 1
    assert not only(world.step(), EnsureSecret)
    world.secret_age = world.limits.secret_check
    assert only(world.step(), EnsureSecret) == [EnsureSecret(fresh_keys=False)]


@pytest.mark.parametrize(("age", "looks"), [(CREATE_SECONDS - 1, 0), (CREATE_SECONDS, 1)])
def test_it_is_looked_at_before_a_successor_is_created(age: float, looks: int) -> None:
    world = World().training()
    world.secret_age = age
    actions = world.ended(member_name(0, 1), 137).step()
    assert len(only(actions, EnsureSecret)) == looks and only(actions, CreateMember)
    order = [type(action).__name__ for action in actions]
    assert not looks or order.index("EnsureSecret") < order.index("CreateMember")


def test_a_pod_that_does_not_start_may_lack_it() -> None:
    world = World().training()
    world.ended(member_name(0, 1), 137).settle()
    world.change(member_name(0, 2), node="n1")
    world.secret_age = STUCK_SECONDS
    assert not only(world.step(), EnsureSecret)
    assert only(world.step(STUCK_SECONDS), EnsureSecret)


def test_while_it_is_refused_no_pod_is_created() -> None:
    world = World().training()
    world.failures["Secret"] = ChildFailure("Secret", 409, "belongs to something else", 1, world.now + 5)
    assert not only(world.ended(member_name(0, 1), 137).step(), CreateMember)


class TestLostKeys:
    def lost(self) -> World:
        world = World().training()
        world.says(checkpoint=3).settle()
        world.secret, world.secret_lost = False, True
        return world

    def test_a_new_attempt_starts_and_says_why(self) -> None:
        world = self.lost()
        old = set(world.pods)
        actions = world.step()
        assert only(actions, EnsureSecret) == [EnsureSecret(fresh_keys=True)]
        assert {action.name for action in only(actions, DeletePod)} == old
        assert {action.name for action in only(actions, CreateMember)} == {member_name(0, 2), member_name(1, 2)}
        assert world.status.attempt == 2 and "KeysLost" in world.events
        formed = world.condition("Formed")
        assert (formed.status, formed.reason) == ("False", "KeysLost")
        assert "Secret run-run was deleted" in (formed.message or "")
        counters = world.status.counters
        assert (counters.app, counters.infrastructure, counters.preemption, counters.coordinator) == (0, 0, 0, 0)
        world.secret, world.secret_lost = True, False
        for name in old:
            world.gone(name)
        world.started().says().settle()
        assert world.condition("Formed").reason == "Formed" and world.status.phase == "Running"

    def test_it_happens_once(self) -> None:
        world = self.lost()
        world.step()
        world.secret, world.secret_lost = True, False
        world.settle()
        assert world.status.attempt == 2

    def test_without_live_pods_new_keys_are_no_loss(self) -> None:
        world = World().training()
        for name in list(world.pods):
            world.ended(name, 137)
        world.secret = False
        assert only(world.step(), EnsureSecret) == [EnsureSecret(fresh_keys=True)]
        assert world.status.attempt == 1

    def test_a_run_that_stops_anyway_is_left_alone(self) -> None:
        world = self.lost()
        world.edit(run_policy__suspend=True)
        assert not only(world.step(), DeletePod) and world.status.attempt == 1
