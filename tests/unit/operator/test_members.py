"""Who a run's members are, who died, and who comes next."""

import dataclasses

import pytest

from fdl_api.placement import Variant
from fdl_api.termination import Cause
from fdl_operator.model import ChildFailure, CreateCoordinator, CreateMember, DeletePod, WriteStatus
from fdl_operator.plan import plan
from fdl_operator.plan.members import wanted

from .builders import T0, World, is_wake, member_name, node, only, said, spec

KILLED = 137


@pytest.mark.parametrize(
    ("replicas", "cohorts", "expected"),
    [
        (None, [(3, 0, 8), (1, 0, 1)], [3, 1]),
        (5, [(3, 0, 8), (1, 0, 4)], [5, 0]),
        (10, [(3, 1, 4), (1, 2, 4)], [4, 4]),
        (6, [(3, 1, 4), (2, 2, 4)], [4, 2]),
        (0, [(3, 1, 4), (2, 2, 4)], [1, 2]),
        (4, [(3, 0, None), (1, 0, 8)], [3, 1]),
    ],
)
def test_replicas_are_shared_in_listed_order_within_the_bounds(
    replicas: int | None, cohorts: list[tuple[int, int, int | None]], expected: list[int]
) -> None:
    rows = [
        {"name": f"c{n}", "vendor": "cpu", "replicas": now, "minReplicas": low}
        | ({"maxReplicas": high} if high is not None else {})
        for n, (now, low, high) in enumerate(cohorts)
    ]
    assert list(wanted(spec(replicas=replicas, cohorts=rows)).values()) == expected


def test_the_first_pass_records_names_before_it_creates_pods() -> None:
    actions = World().plan()
    write = next(index for index, action in enumerate(actions) if isinstance(action, WriteStatus))
    creates = [i for i, action in enumerate(actions) if isinstance(action, CreateMember | CreateCoordinator)]
    assert write < min(creates) and len(creates) == 3
    status = only(actions, WriteStatus)[0].status
    assert status.next_incarnations == {"a-0": 1, "a-1": 1}
    assert status.coordinator.pod_name == "run-coordinator-1"


def test_a_run_at_rest_plans_nothing() -> None:
    assert World().training().plan() == []


def test_a_crash_between_record_and_creation_creates_the_recorded_pod() -> None:
    world = World()
    world.step()
    world.pods.clear()
    names = [action.name for action in only(world.plan(), CreateMember)]
    assert names == [member_name(0, 1), member_name(1, 1)]


def test_a_pod_that_the_watch_has_not_shown_yet_is_not_created_again() -> None:
    world = World()
    world.step()
    names = frozenset(world.pods)
    world.pods.clear()
    seen = dataclasses.replace(world.snapshot(), created=names)
    assert not only(plan(seen, world.now), CreateMember) and not only(plan(seen, world.now), CreateCoordinator)


def test_a_killed_member_is_replaced_at_once_under_a_new_name_and_billed_once() -> None:
    world = World().training()
    world.ended(member_name(0, 1), KILLED).settle()
    assert member_name(0, 2) in world.pods
    assert world.status.counters.infrastructure == 1
    assert world.events.count("Killed") == 1
    world.says().settle()
    assert world.status.counters.infrastructure == 1
    assert world.status.phase == "Running"


def test_all_dead_members_are_replaced_in_one_pass() -> None:
    world = World(cohorts=[{"name": "a", "vendor": "cpu", "replicas": 5}]).training()
    for ordinal in range(5):
        world.ended(member_name(ordinal, 1), KILLED)
    created = only(world.step(), CreateMember)
    assert [action.incarnation for action in created] == [2] * 5


def test_a_deleted_pod_is_a_preemption() -> None:
    world = World().training()
    world.gone(member_name(1, 1)).settle()
    assert member_name(1, 2) in world.pods
    counters = world.status.counters
    assert (counters.app, counters.infrastructure, counters.preemption) == (0, 0, 1)


def test_a_terminating_member_may_finish_its_batch_before_its_successor_comes() -> None:
    world = World().training()
    name = member_name(0, 1)
    world.deleting(name).settle()
    assert world.status.members[0].phase == "Leaving" and member_name(0, 2) not in world.pods
    world.ended(name, 75, said(Cause.PREEMPTION, "LeftOnRequest")).settle()
    assert member_name(0, 2) in world.pods and world.status.counters.preemption == 1


def test_a_pod_stuck_in_terminating_is_replaced_after_the_time_out() -> None:
    world = World().training()
    world.nodes["n1"] = node("n1", ready=False)
    world.deleting(member_name(0, 1), grace=60).settle()
    wake = [action for action in world.plan() if is_wake(action)]
    assert wake and wake[0].at <= T0 + 60 + world.limits.termination_timeout  # type: ignore[union-attr]
    world.step(60 + world.limits.termination_timeout)
    assert member_name(0, 2) in world.pods
    assert world.status.counters.infrastructure == 1
    assert world.status.members[0].incarnation == 2


def test_a_node_that_is_not_ready_is_only_suspect() -> None:
    world = World().training()
    world.nodes["n1"] = node("n1", ready=False)
    world.settle()
    assert member_name(0, 2) not in world.pods


def test_a_node_not_ready_and_the_coordinators_word_replace_a_member_at_once_elsewhere() -> None:
    world = World().training()
    world.nodes["n1"] = node("n1", ready=False)
    world.says(states={member_name(0, 1): "dead"})
    actions = world.step()
    assert [action.name for action in only(actions, CreateMember)] == [member_name(0, 2)]
    assert world.status.counters.infrastructure == 1
    assert [action.name for action in only(actions, DeletePod)] == [member_name(0, 1)]


def test_a_member_on_a_lost_node_whom_the_new_coordinator_does_not_know_is_replaced() -> None:
    world = World().training()
    cut = member_name(1, 1)
    world.nodes["n2"] = node("n2", ready=False)
    world.change("run-coordinator-1", node="n2").silent()
    world.step(60)
    world.settle()
    world.running("run-coordinator-2")
    lost = world.pods.pop(cut)
    world.says(epoch=4097)
    world.pods[cut] = lost
    world.settle()
    assert member_name(1, 2) in world.created


def test_an_end_that_a_cut_off_member_saw_is_not_the_runs() -> None:
    world = World().training()
    cut = member_name(1, 1)
    lost = world.pods.pop(cut)
    world.says(epoch=4097)
    world.pods[cut] = lost
    world.ended(cut, 0, said(Cause.COMPLETE, "Completed"))
    world.settle()
    assert world.status.phase == "Running"
    assert member_name(1, 2) in world.created
    assert world.status.counters.app == 0


def test_a_member_that_hangs_is_deleted_after_a_while_and_replaced() -> None:
    world = World().training()
    world.says(states={member_name(0, 1): "dead"}).settle()
    assert member_name(0, 2) not in world.pods
    actions = world.step(world.limits.member_hang)
    assert [action.name for action in only(actions, DeletePod)] == [member_name(0, 1)]
    assert world.status.counters.infrastructure == 1 and member_name(0, 2) in world.pods


FENCED = said(Cause.FENCED, "Fenced", "no heartbeat for 2 s", permanent=True)


def test_a_fenced_member_is_replaced_and_nobody_pays() -> None:
    world = World().training()
    world.ended(member_name(0, 1), 76, FENCED).settle()
    counters = world.status.counters
    assert member_name(0, 2) in world.pods
    assert (counters.app, counters.infrastructure, counters.preemption) == (0, 0, 0)


def test_many_that_one_hiccup_of_the_network_gives_up_do_not_end_the_run() -> None:
    world = World(cohorts=[{"name": "a", "vendor": "cpu", "replicas": 60}]).training()
    for ordinal in range(60):
        world.ended(member_name(ordinal, 1), 76, FENCED)
    assert len(only(world.step(), CreateMember)) == 60
    assert world.status.phase != "Failed" and world.status.counters.infrastructure == 0


def test_a_seat_whose_holders_are_given_up_again_and_again_waits_pays_and_is_named() -> None:
    world = World().training()
    waits = []
    for incarnation in range(1, 6):
        name = member_name(0, incarnation)
        world.running(name).says().settle()
        world.ended(name, 76, FENCED).settle()
        wake = [action for action in world.plan() if is_wake(action)]
        waits.append(wake[0].at - world.now if wake else 0)  # type: ignore[union-attr]
        assert world.status.counters.infrastructure == incarnation - 1
        if waits[-1]:
            message = world.condition("Progressing").message
            assert "seat a-0 is filled again at 2027" in message and "on node n1" in message
            assert f"its last {incarnation} holders did not last" in message and "no heartbeat for 2 s" in message
            assert not [action for action in world.plan() if not is_wake(action)], "a seat that waits writes nothing"
        world.step(waits[-1])
        assert member_name(0, incarnation + 1) in world.pods
    assert waits == [0, 5, 10, 20, 40]


def test_a_flapping_node_does_not_make_replacements_for_ever() -> None:
    world = World(failurePolicy={"budgets": {"infrastructure": 5}, "onExceeded": "Fail"}).training()
    for incarnation in range(1, 8):
        name = member_name(0, incarnation)
        assert name in world.pods
        world.running(name).says().settle()
        world.ended(name, 76, FENCED).settle()
        world.step(400)
        if world.status.phase == "Failed":
            break
    failed = world.condition("Failed")
    assert (incarnation, failed.reason) == (7, "MaxFailuresExceeded")
    assert "6 deaths by cause infrastructure" in failed.message and "no heartbeat" in failed.message


def test_a_holder_that_lasted_starts_the_counting_anew() -> None:
    world = World().training()
    world.ended(member_name(0, 1), 76, FENCED).settle()
    world.running(member_name(0, 2)).says().settle()
    world.step(601)
    world.ended(member_name(0, 2), 76, FENCED).settle()
    assert member_name(0, 3) in world.pods
    assert [entry.in_a_row for entry in world.status.seat_counters] == [0]
    assert world.status.counters.infrastructure == 0


def test_a_seat_goes_on_waiting_when_the_dead_pod_is_deleted_meanwhile() -> None:
    world = World().training()
    for incarnation in (1, 2):
        world.running(member_name(0, incarnation)).says().settle()
        world.ended(member_name(0, incarnation), 76, FENCED).settle()
    world.gone(member_name(0, 2)).step(4)
    assert member_name(0, 3) not in world.pods
    world.step(1)
    assert member_name(0, 3) in world.pods


def test_program_failures_wait_longer_each_time() -> None:
    world = World().training()
    waits = []
    for incarnation in (1, 2, 3):
        name = member_name(0, incarnation)
        world.running(name).says().settle()
        world.ended(name, 64, said(Cause.APP, "ScriptRaised")).settle()
        wake = [action for action in world.plan() if is_wake(action)]
        waits.append(wake[0].at - world.now)  # type: ignore[union-attr]
        assert member_name(0, incarnation + 1) not in world.pods
        world.step(waits[-1])
        assert member_name(0, incarnation + 1) in world.pods
    assert waits == [10, 20, 40]


def test_a_member_that_trained_is_replaced_at_once_however_often_it_is_killed() -> None:
    world = World().training()
    for incarnation in range(1, 21):
        name = member_name(0, incarnation)
        world.running(name).says().settle()
        world.ended(name, KILLED).step()
        assert member_name(0, incarnation + 1) in world.pods
    assert world.status.counters.infrastructure == 20


def test_a_seat_that_never_comes_to_train_is_filled_more_and_more_slowly() -> None:
    world = World().training()
    waits = []
    for incarnation in (1, 2, 3, 4):
        world.ended(member_name(0, incarnation), 70).settle()
        wake = [action for action in world.plan() if is_wake(action)]
        waits.append(wake[0].at - world.now if wake else 0)  # type: ignore[union-attr]
        world.step(waits[-1])
        assert member_name(0, incarnation + 1) in world.pods
    assert waits == [0, 0, 5, 10], "the first one had trained"


def test_scaling_down_lets_the_highest_seats_leave_and_nobody_pays() -> None:
    world = World(cohorts=[{"name": "a", "vendor": "cpu", "replicas": 3, "maxReplicas": 3}]).training()
    actions = world.edit(replicas=1).step()
    assert {action.name for action in only(actions, DeletePod)} == {member_name(1, 1), member_name(2, 1)}
    world.ended(member_name(1, 1), 75).gone(member_name(2, 1)).settle()
    assert [member.ordinal for member in world.status.members] == [0]
    assert world.status.counters.preemption == 0
    assert world.status.summary.members == "1/1"


def test_a_seat_that_comes_back_after_scaling_never_reuses_a_name() -> None:
    world = World().training()
    world.edit(replicas=1).settle()
    world.gone(member_name(1, 1)).settle()
    world.edit(replicas=2).settle()
    assert member_name(1, 2) in world.pods and member_name(1, 1) not in world.pods


def test_failures_of_members_that_were_scaled_away_drop_out() -> None:
    world = World().training()
    world.ended(member_name(1, 1), KILLED).settle()
    assert world.status.counters.infrastructure == 1
    world.edit(replicas=1).settle()
    world.gone(member_name(1, 2)).settle()
    assert world.status.counters.infrastructure == 0 and not world.status.seat_counters


def test_a_refused_child_is_tried_again_only_later_and_shows_in_a_condition() -> None:
    world = World()
    world.step()
    world.pods.pop(member_name(0, 1))
    world.failures = {member_name(0, 1): ChildFailure(member_name(0, 1), 403, "exceeded quota: q", 1, T0 + 5)}
    actions = world.step()
    assert not only(actions, CreateMember)
    assert [action.at for action in actions if is_wake(action)] == [T0 + 5]  # type: ignore[union-attr]
    condition = world.condition("Progressing")
    assert (condition.status, condition.reason) == ("False", "ChildCreateFailed")
    assert "exceeded quota: q" in condition.message
    assert [action.name for action in only(world.step(5), CreateMember)] == [member_name(0, 1)]
    world.failures = {}
    world.settle()
    assert world.condition("Progressing").reason == "WaitingForMembers"


def test_only_the_last_dead_pod_of_a_seat_is_kept_for_its_log() -> None:
    world = World().training()
    for incarnation in (1, 2, 3):
        world.running(member_name(0, incarnation)).ended(member_name(0, incarnation), KILLED)
        world.settle()
        world.step(60)
        world.settle()
    kept = [name for name in world.pods if name.startswith("run-a-0-")]
    assert kept == [member_name(0, 3), member_name(0, 4)]


def test_an_unschedulable_pod_is_planned_anew_when_its_placement_would_differ() -> None:
    world = World()
    world.settle()
    name = member_name(0, 1)
    world.change(name, unschedulable="0/2 nodes are available", unschedulable_since=world.now)
    world.settle()
    assert world.condition("Placeable").reason == "NotScheduled"
    world.step(world.limits.unschedulable)
    assert member_name(0, 2) not in world.pods, "the placement is still the same"
    world.variants = (Variant("cpu", "cpu", "reg/trainer-cpu:2"),)
    actions = world.step(world.limits.unschedulable)
    assert [action.name for action in only(actions, DeletePod)] == [name]
    assert [action.name for action in only(actions, CreateMember)] == [member_name(0, 2)]
    assert world.status.counters.preemption == 0


def test_a_template_is_tried_before_anything_is_created() -> None:
    cohort = {"name": "a", "vendor": "cpu", "replicas": 2, "podTemplate": {"spec": {"hostname": "h"}}}
    world = World(cohorts=[cohort])
    actions = world.step()
    assert [action.dry_run for action in only(actions, CreateMember)] == [True]
    assert not only(actions, CreateCoordinator)
    actions = world.step()
    assert [action.dry_run for action in only(actions, CreateMember)] == [False, False]
    assert only(actions, CreateCoordinator)
