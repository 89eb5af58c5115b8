# ruff: noqa: E501 - one row a story
"""One cause a death, by precedence."""

import dataclasses
from typing import Any

import pytest

from fdl_api.reasons import Refusal
from fdl_api.termination import Cause
from fdl_operator.model import PodPhase, PodRecord
from fdl_operator.plan.deaths import classify

from .builders import node, said

APP = said(Cause.APP, "ScriptRaised", "ValueError: no")
LOST_NODE = node("n1", ready=False)


def pod(**fields: Any) -> PodRecord:
    base = PodRecord("ns", "run-a-0-1", "u", "run", "r", "member", node="n1", phase=PodPhase.FAILED)
    return dataclasses.replace(base, **fields)


@pytest.mark.parametrize(
    ("story", "fields", "where", "cause", "reason"),
    [
        ("the script raised", {"exit_code": 64, "termination": APP}, node(), Cause.APP, "ScriptRaised"),
        ("killed by the kernel for memory", {"exit_code": 137, "exit_reason": "OOMKilled"}, node(), Cause.APP, "OutOfMemory"),
        ("SIGKILL", {"exit_code": 137}, node(), Cause.INFRASTRUCTURE, "Killed"),
        ("SIGTERM", {"exit_code": 143}, node(), Cause.PREEMPTION, "LeftOnRequest"),
        ("left on request", {"exit_code": 75}, node(), Cause.PREEMPTION, "LeftOnRequest"),
        ("fenced", {"exit_code": 76}, node(), Cause.FENCED, "Fenced"),
        ("coordinator lost", {"exit_code": 78}, node(), Cause.INFRASTRUCTURE, "CoordinatorLost"),
        ("fault of fdl", {"exit_code": 70}, node(), Cause.INFRASTRUCTURE, "InternalError"),
        ("unknown exit code", {"exit_code": 3}, node(), Cause.APP, "ScriptExited"),
        ("exit 0 without last words is no success", {"exit_code": 0, "phase": PodPhase.SUCCEEDED}, node(), Cause.APP, "ScriptExited"),
        ("complete", {"exit_code": 0, "phase": PodPhase.SUCCEEDED, "termination": said(Cause.COMPLETE, "Completed")}, node(), Cause.COMPLETE, "Completed"),
        ("evicted by the kubelet", {"status_reason": "Evicted"}, node(), Cause.PREEMPTION, "Evicted"),
        ("preempted by the scheduler", {"disruption": "PreemptionByScheduler", "exit_code": 143}, node(), Cause.PREEMPTION, "Preempted"),
        ("drained, the script died of it", {"disruption": "EvictionByEvictionAPI", "exit_code": 64, "termination": APP}, node(), Cause.PREEMPTION, "Evicted"),
        ("drained and out of memory", {"disruption": "EvictionByEvictionAPI", "exit_code": 137, "exit_reason": "OOMKilled"}, node(), Cause.PREEMPTION, "Evicted"),
        ("disrupted on a lost node", {"disruption": "DeletionByTaintManager", "phase": PodPhase.RUNNING}, LOST_NODE, Cause.PREEMPTION, "Evicted"),
        ("node gone", {"phase": PodPhase.RUNNING}, None, Cause.INFRASTRUCTURE, "NodeLost"),
        ("node not ready", {"phase": PodPhase.RUNNING}, LOST_NODE, Cause.INFRASTRUCTURE, "NodeLost"),
        ("shut down with the node, killed for memory", {"status_reason": "Terminated", "exit_reason": "OOMKilled", "exit_code": 137}, node(), Cause.INFRASTRUCTURE, "NodeLost"),
        ("out of memory whatever the agent says", {"exit_code": 137, "exit_reason": "OOMKilled", "termination": APP}, node(), Cause.APP, "OutOfMemory"),
        ("ended before its node was lost", {"exit_code": 64, "termination": APP}, LOST_NODE, Cause.APP, "ScriptRaised"),
        ("the container cannot start", {"exit_code": 128, "exit_reason": "StartError"}, node(), Cause.INFRASTRUCTURE, "ContainerConfigError"),
        ("finished well and then drained", {"exit_code": 0, "phase": PodPhase.SUCCEEDED, "disruption": "EvictionByEvictionAPI", "termination": said(Cause.COMPLETE, "Completed")}, node(), Cause.COMPLETE, "Completed"),
        ("deadline of the pod", {"status_reason": "DeadlineExceeded"}, node(), Cause.INFRASTRUCTURE, "InternalError"),
    ],
)  # fmt: skip
def test_cause_by_precedence(story: str, fields: dict[str, Any], where: Any, cause: Cause, reason: str) -> None:
    death = classify(pod(**fields), where)
    assert (death.cause, death.reason) == (cause, reason), story
    assert death.message


def test_a_refusal_of_one_member_is_told_from_one_of_all() -> None:
    def refused(reason: Refusal) -> bool:
        return classify(pod(exit_code=79, termination=said(Cause.APP, reason, permanent=True)), node()).refused

    assert refused(Refusal.MODEL_MISMATCH) and refused(Refusal.DATASET_MISMATCH)
    assert not refused(Refusal.NO_CHECKPOINT)


def test_last_words_that_are_not_ours_count_by_exit_code() -> None:
    death = classify(pod(exit_code=70, termination='{"hello": 1}'), node())
    assert (death.cause, death.reason) == (Cause.INFRASTRUCTURE, "InternalError")


def test_a_bridged_library_that_cannot_be_copied_is_no_fault_of_the_script() -> None:
    failed = pod(exit_code=1, init_container="fdl-nccl", image="reg/nccl:1", termination="cp: cannot stat")
    death = classify(failed, node())
    assert (death.cause, death.reason) == (Cause.INFRASTRUCTURE, "ContainerConfigError")
    assert "from image reg/nccl:1" in death.message and "ncclBridge" in death.message
    assert "cp: cannot stat" in death.message
