"""When a run is over: success, broken scripts, budgets, refusals, deadlines."""

import pytest

from fdl_api.reasons import Ended, Refusal
from fdl_api.run import FailurePolicySpec
from fdl_api.termination import Cause
from fdl_api.wire import Outcome
from fdl_operator.model import CreateMember, DeletePod, EnsureSecret, SendHint, StreamView
from fdl_operator.plan.budgets import failure_limit

from .builders import World, member_name, only, said

KILLED = 137
DONE = said(Cause.COMPLETE, "Completed", "done")


def test_the_coordinators_success_counts_although_a_pod_will_not_end() -> None:
    world = World().training()
    world.ended(member_name(0, 1), 0, DONE).says(Outcome.SUCCEEDED, samples=100).settle()
    assert world.status.phase == "Succeeded" and world.status.completion_time
    assert not world.pods[member_name(1, 1)].deleted_at, "it may still end by itself"
    actions = world.step(world.limits.finish_timeout)
    assert {action.name for action in only(actions, DeletePod)} == {member_name(1, 1), "run-coordinator-1"}


def test_success_is_known_from_a_member_when_the_coordinator_is_lost() -> None:
    world = World().training()
    world.silent().gone("run-coordinator-1").ended(member_name(0, 1), 0, DONE).settle()
    assert world.status.phase == "Succeeded"


def test_an_operator_that_was_away_at_the_end_waits_for_the_coordinator_to_say_the_result() -> None:
    world = World().training()
    world.silent().ended(member_name(0, 1), 0, DONE).settle()
    assert world.status.phase == "Running", "the coordinator is there and has the result"
    assert "run-coordinator-1" not in {action.name for action in only(world.step(1), DeletePod)}
    world.says(Outcome.SUCCEEDED, metrics={"accuracy": 0.9}).settle()
    assert world.status.phase == "Succeeded"
    assert world.status.training and world.status.training.metrics == {"accuracy": 0.9}


def test_a_coordinator_that_does_not_say_the_result_is_not_waited_for_for_ever() -> None:
    world = World().training()
    world.silent().ended(member_name(0, 1), 0, DONE).settle()
    world.step(world.limits.finish_timeout)
    assert world.status.phase == "Succeeded"


def test_an_operator_that_comes_long_after_the_end_asks_before_it_decides() -> None:
    world = World().training()
    world.stream, world.secret = StreamView(), False
    world.ended(member_name(0, 1), 0, DONE).ended(member_name(1, 1), 0, DONE)
    actions = world.step(10 * world.limits.finish_timeout)
    assert only(actions, EnsureSecret) and not only(actions, DeletePod) and not only(actions, CreateMember)
    assert world.status.phase == "Running"
    world.says(Outcome.SUCCEEDED, samples=100, metrics={"accuracy": 0.97}).settle()
    assert world.status.phase == "Succeeded" and world.status.training is not None
    assert world.status.training.metrics == {"accuracy": 0.97}


def test_conditions_of_an_ended_run_agree() -> None:
    world = World().training()
    world.says(Outcome.SUCCEEDED).settle()
    states = {condition.type: condition.status for condition in world.status.conditions}
    assert states["Complete"] == "True"
    assert [states[kind] for kind in ("Failed", "Progressing", "Formed", "CoordinatorReady", "Suspended")] == [
        "False"
    ] * 5


@pytest.mark.parametrize("reason", [Ended.SCRIPT_MISSING, Ended.SCRIPT_SYNTAX_ERROR, Ended.SCRIPT_NEVER_TRAINED])
def test_a_script_that_cannot_work_fails_the_run_at_once(reason: str) -> None:
    world = World().started()
    world.ended(member_name(0, 1), 64, said(Cause.APP, reason, "no /app/train.py", permanent=True))
    actions = world.step()
    assert world.status.phase == "Failed"
    failed = world.condition("Failed")
    assert failed.reason == reason and "no /app/train.py" in failed.message
    assert not only(actions, CreateMember)
    assert member_name(1, 1) in {action.name for action in only(actions, DeletePod)}, "nobody waits for the others"


def test_all_members_failing_before_any_progress_fail_the_run() -> None:
    world = World().started()
    world.ended(member_name(0, 1), 64, said(Cause.APP, "ScriptRaised", "ValueError")).settle()
    assert world.status.phase == "Starting", "one alone may be its own fault"
    world.ended(member_name(1, 1), 64, said(Cause.APP, "ScriptRaised", "ValueError")).settle()
    assert world.status.phase == "Failed" and world.condition("Failed").reason == "ScriptRaised"


def test_once_there_is_progress_a_broken_member_is_tried_within_its_budget() -> None:
    world = World().training()
    world.ended(member_name(0, 1), 64, said(Cause.APP, "ScriptMissing", permanent=True)).settle()
    assert world.status.phase == "Running"
    world.step(10)
    assert member_name(0, 2) in world.pods


def test_the_app_budget_ends_a_run_after_it_has_saved() -> None:
    world = World(failurePolicy={"budgets": {"app": 1}}).training()
    world.ended(member_name(0, 1), 64, said(Cause.APP, "ScriptRaised")).settle()
    world.step(10)
    world.running(member_name(0, 2)).says().settle()
    world.ended(member_name(0, 2), 64, said(Cause.APP, "ScriptRaised", "boom"))
    actions = world.step()
    assert only(actions, SendHint)[-1].hint.give_up == "MaxFailuresExceeded"
    assert world.status.phase == "Running" and world.condition("Failed").status == "Unknown"
    assert not only(world.step(), CreateMember)
    world.says(Outcome.FAILED, reason="MaxFailuresExceeded", checkpoint=7).settle()
    failed = world.condition("Failed")
    assert world.status.phase == "Failed" and failed.reason == "MaxFailuresExceeded"
    assert "budgets.app of 1" in failed.message and "checkpoint at window 7" in failed.message


def test_giving_up_does_not_wait_for_ever() -> None:
    world = World(failurePolicy={"maxFailures": 1}).training()
    world.ended(member_name(0, 1), KILLED).settle()
    assert world.status.phase == "Running"
    world.step(world.limits.give_up_timeout)
    assert world.status.phase == "Failed"
    assert "saving took longer" in world.condition("Failed").message


def test_fail_does_not_save() -> None:
    world = World(failurePolicy={"maxFailures": 1, "onExceeded": "Fail"}).training()
    world.ended(member_name(0, 1), KILLED).step()
    assert world.status.phase == "Failed"


def test_a_successor_that_does_not_train_yet_still_counts_as_dead_at_one_time() -> None:
    world = World(
        cohorts=[{"name": "a", "vendor": "cpu", "replicas": 4}], failurePolicy={"maxFailures": "50%"}
    ).training()
    world.ended(member_name(0, 1), KILLED).settle()
    assert world.condition("Failed").status == "False"
    world.ended(member_name(1, 1), KILLED).settle()
    assert world.condition("Failed").status == "Unknown"


@pytest.mark.parametrize(
    ("value", "wanted", "limit"),
    [(None, 9, None), (3, 9, 3), ("50%", 3, 2), ("34%", 3, 2), ("1%", 3, 1), ("100%", 4, 4)],
)
def test_percentages_of_failures_are_rounded_up(value: int | str | None, wanted: int, limit: int | None) -> None:
    assert failure_limit(FailurePolicySpec(max_failures=value), wanted) == limit


@pytest.mark.parametrize("code", [75, 143])
def test_preemption_never_uses_the_budget_of_faults(code: int) -> None:
    world = World(failurePolicy={"budgets": {"app": 0, "infrastructure": 0}}).training()
    for incarnation in range(1, 9):
        world.running(member_name(0, incarnation)).says().settle()
        world.ended(member_name(0, incarnation), code).settle()
    assert world.status.phase != "Failed" and world.status.counters.preemption == 8


class TestRefusedForGood:
    """A member whose model differs: only that member is affected."""

    WORDS = said(Cause.APP, Refusal.MODEL_MISMATCH, "fc.weight has shape [10, 4], not [10, 8]", permanent=True)

    def world(self) -> World:
        return World(
            cohorts=[{"name": "a", "vendor": "cpu", "replicas": 3}], failurePolicy={"budgets": {"app": 1}}
        ).training()

    def refuse(self, world: World, incarnation: int) -> None:
        name = member_name(2, incarnation)
        world.running(name).says(states={name: "refused"}).settle()
        world.ended(name, 79, self.WORDS).settle()

    def test_the_run_goes_on_and_names_the_member(self) -> None:
        world = self.world()
        self.refuse(world, 1)
        progressing = world.condition("Progressing")
        assert (progressing.status, progressing.reason) == ("True", "MemberRefused")
        assert "a-2" in progressing.message and "fc.weight" in progressing.message
        assert world.status.members[2].reason == "ModelMismatch"

    def test_it_is_not_tried_endlessly_and_the_run_is_not_failed(self) -> None:
        world = self.world()
        self.refuse(world, 1)
        world.step(10)
        self.refuse(world, 2)
        world.step(10_000)
        assert member_name(2, 3) not in world.pods
        assert world.status.phase == "Running"
        assert "not tried again" in world.condition("Progressing").message
        sent = world.stream.sent
        assert sent is not None and sent.wanted_members == 2

    def test_what_is_billed_to_infrastructure_is_not_tried_endlessly_either(self) -> None:
        world = World(failurePolicy={"budgets": {"app": 2}}).started()
        words = said(Cause.INFRASTRUCTURE, Refusal.VENDOR_MISMATCH, "member has no real device", permanent=True)
        for incarnation in (1, 2, 3):
            assert world.status.phase != "Failed"
            for ordinal in (0, 1):
                world.running(member_name(ordinal, incarnation)).ended(member_name(ordinal, incarnation), 79, words)
            world.settle()
            world.step(30)
        failed = world.condition("Failed")
        assert world.status.phase == "Failed" and failed.reason == "VendorMismatch"
        assert "2 seats are refused for good" in failed.message and "no real device" in failed.message

    def test_its_deaths_do_not_use_up_the_budget_of_the_others(self) -> None:
        world = self.world()
        self.refuse(world, 1)
        world.step(10)
        world.running(member_name(2, 2)).says(states={member_name(2, 2): "joining"}).settle()
        world.ended(member_name(0, 1), 64, said(Cause.APP, "ScriptRaised")).settle()
        assert world.condition("Failed").status == "False"

    def test_a_run_that_keeps_too_few_members_fails_with_the_refusal(self) -> None:
        world = World(join={"minMembers": 2}, failurePolicy={"budgets": {"app": 0}}).started()
        world.ended(member_name(1, 1), 79, self.WORDS).settle()
        failed = world.condition("Failed")
        assert failed.reason == "ModelMismatch" and "minMembers 2" in failed.message

    def test_no_checkpoint_to_resume_from_fails_the_run(self) -> None:
        world = World().training()
        world.ended(member_name(0, 1), 79, said(Cause.APP, Refusal.NO_CHECKPOINT, "none", permanent=True)).settle()
        assert world.status.phase == "Failed" and world.condition("Failed").reason == "NoCheckpointToResume"


def test_the_active_deadline_counts_active_time_only() -> None:
    world = World(runPolicy={"activeDeadlineSeconds": 100}).training()
    world.step(60)
    world.edit(run_policy__suspend=True).says(Outcome.SUSPENDED).settle()
    assert world.status.phase == "Suspended" and world.status.active_seconds == 60
    for name in list(world.pods):
        world.gone(name)
    world.step(1000)
    world.edit(run_policy__suspend=False).settle()
    for name in list(world.pods):
        world.running(name)
    world.says().settle()
    world.step(39)
    assert world.condition("Failed").status == "False"
    world.step(1)
    assert (
        world.condition("Failed").status == "Unknown" and world.condition("Failed").reason == "ActiveDeadlineExceeded"
    )


def test_what_the_coordinator_says_of_another_attempt_is_not_believed() -> None:
    world = World().training()
    world.says(Outcome.FAILED, attempt=7).settle()
    assert world.status.phase != "Failed"
