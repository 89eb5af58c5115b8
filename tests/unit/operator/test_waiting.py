"""Pods that do not come to run: one sentence that names cohort, image and remedy, and no death."""

import pytest

from fdl_api.placement import Variant
from fdl_api.reasons import Ended, Refusal
from fdl_api.termination import Cause, script_missing
from fdl_operator import clock
from fdl_operator.model import CreateMember, DeletePod, WriteStatus
from fdl_operator.plan.waiting import EARLY_SECONDS, SLOW_SECONDS, condensed, trouble

from .builders import World, is_wake, member_name, only, said

IMAGE = "reg/trainer-cpu:1"


def stuck(reason: str, message: str = "the server's words") -> World:
    """A run whose first member cannot start on n1."""
    world = World()
    world.settle()
    world.running("run-coordinator-1")
    world.change(member_name(0, 1), node="n1", waiting_reason=reason, waiting_message=message)
    world.settle()
    return world


@pytest.mark.parametrize(
    ("waiting", "reason", "remedy"),
    [
        ("ErrImagePull", "ImageUnavailable", "push the image"),
        ("ImagePullBackOff", "ImageUnavailable", "imagePullSecrets"),
        ("CreateContainerError", "ContainerConfigError", "create what is missing"),
    ],
)
def test_the_condition_names_cohort_node_image_cause_and_remedy(waiting: str, reason: str, remedy: str) -> None:
    world = stuck(waiting)
    condition = world.condition("Progressing")
    assert (condition.status, condition.reason, condition.message) == (
        "False",
        reason,
        world.status.members[0].message,
    )
    for words in ("cohort a", "node n1", IMAGE, f"{waiting}: the server's words", remedy):
        assert words in (condition.message or "")
    assert world.status.phase == "Starting" and world.status.counters.infrastructure == 0, "the kubelet tries again"
    world.running(member_name(0, 1)).settle()
    assert world.condition("Progressing").reason == "WaitingForMembers"


def test_the_image_of_a_bridge_is_to_be_mended_in_the_cluster_object() -> None:
    world = World()
    world.settle()
    name = member_name(0, 1)
    world.change(name, node="n1", waiting_reason="ErrImagePull", init_container="fdl-nccl", image="reg/nccl:1")
    world.settle()
    message = world.condition("Progressing").message
    assert "cannot get image reg/nccl:1" in message and "spec.variants[].ncclBridge.image" in message


def test_a_name_that_can_be_no_image_fails_the_run_at_once() -> None:
    world = stuck("InvalidImageName", "couldn't parse image name")
    failed = world.condition("Failed")
    assert (world.status.phase, failed.status, failed.reason) == ("Failed", "True", "ImageUnavailable")
    assert f"'{IMAGE}' is no valid name" in (failed.message or "") and "spec.trainer.image" in (failed.message or "")


def test_a_successor_without_an_image_is_told_while_training_goes_on() -> None:
    world = World().training()
    world.ended(member_name(0, 1), 137).settle()
    world.change(member_name(0, 2), node="n1", waiting_reason="InvalidImageName")
    world.says().settle()
    condition = world.condition("Progressing")
    assert (world.status.phase, condition.status, condition.reason) == ("Running", "True", "ReplacingMember")
    assert "without a-0" in (condition.message or "") and IMAGE in (condition.message or "")


def test_members_without_an_image_give_their_seats_back_like_those_without_a_node() -> None:
    world = stuck("ImagePullBackOff")
    world.change(member_name(1, 1), node="n2", waiting_reason="ImagePullBackOff").settle()
    assert world.run.spec is not None
    actions = world.step(world.run.spec.run_policy.startup_deadline_seconds)
    assert len(only(actions, DeletePod)) == 3
    formed = world.condition("Formed")
    assert formed.reason == "StartupDeadlineExceeded"
    assert "only 0 of" in (formed.message or "") and IMAGE in (formed.message or "")


def test_a_slow_pull_is_told_and_keeps_its_seat() -> None:
    world = World()
    world.settle()
    world.running("run-coordinator-1").change(member_name(0, 1), node="n1")
    world.step(SLOW_SECONDS - 1)
    assert world.status.members[0].reason == "ContainerStarting"
    world.step(1)
    assert world.status.members[0].reason == "ContainerNotStarted"
    assert f"may still pull image {IMAGE}" in world.status.members[0].message
    assert world.run.spec is not None
    world.step(world.run.spec.run_policy.startup_deadline_seconds)
    assert world.status.phase == "Starting"


def test_another_image_of_the_variant_replaces_pods_that_cannot_pull() -> None:
    world = stuck("ImagePullBackOff")
    world.variants = (Variant("cpu", "cpu", "reg/trainer-cpu:2"),)
    actions = world.step(world.limits.unschedulable)
    assert member_name(0, 1) in [action.name for action in only(actions, DeletePod)]
    assert member_name(0, 2) in [action.name for action in only(actions, CreateMember)]


def test_a_pod_that_no_node_takes_says_what_is_short() -> None:
    world = World()
    world.settle()
    world.change(member_name(1, 1), unschedulable="0/2 nodes: Insufficient cpu", unschedulable_since=world.now)
    world.settle()
    placeable = world.condition("Placeable")
    assert (placeable.status, placeable.reason) == ("False", "NotScheduled")
    assert (placeable.message or "").startswith(
        "a pod finds no place; cohort a: no node takes pod run-a-1-1 (0/2 nodes: Insufficient cpu); free or add"
    )


def test_a_claim_that_is_missing_is_said_to_be_made() -> None:
    world = World()
    world.settle()
    why = '0/3 nodes are available: persistentvolumeclaim "fashion" not found'
    world.change(member_name(1, 1), unschedulable=why, unschedulable_since=world.now)
    world.settle()
    message = world.condition("Placeable").message or ""
    assert "create PersistentVolumeClaim fashion in namespace ns; if its name is wrong" in message
    assert "ask for less" not in message


@pytest.mark.parametrize(
    ("detail", "remedy"),
    [
        ('configmap "settings" not found', "create ConfigMap settings in namespace ns; if its name is wrong"),
        ('secret "s3" not found', "create Secret s3 in namespace ns; if its name is wrong"),
        ("couldn't find key user in Secret ns/s3", "add the key user to Secret s3 in namespace ns"),
        ("couldn't find key a.b in ConfigMap ns/settings", "add the key a.b to ConfigMap settings in namespace ns"),
    ],
)
def test_what_an_environment_variable_lacks_is_named_as_an_object(detail: str, remedy: str) -> None:
    message = stuck("CreateContainerConfigError", detail).condition("Progressing").message
    assert remedy in message and detail in message and "node n1" in message


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            '0/3 nodes are available: persistentvolumeclaim "data" not found. not found',
            '0/3 nodes are available: persistentvolumeclaim "data" not found',
        ),
        (
            "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint {a: b}. preemption: 0/2 "
            "nodes are available: 2 Preemption is not helpful for scheduling.",
            "0/2 nodes are available: 1 Insufficient cpu, 1 node(s) had untolerated taint {a: b}",
        ),
        (
            "0/1 nodes are available: 1 Insufficient memory. no new claims to deallocate, preemption: 0/1 nodes are "
            "available: 1 No preemption victims found for incoming pod.",
            "0/1 nodes are available: 1 Insufficient memory",
        ),
        (
            "0/1 nodes are available: 1 node(s) had untolerated taint {example.com/preemption: true}. preemption: 0/1 "
            "nodes are available: 1 Preemption is not helpful for scheduling.",
            "0/1 nodes are available: 1 node(s) had untolerated taint {example.com/preemption: true}",
        ),
        ("running Reserve plugin: it failed. Retry", "running Reserve plugin: it failed. Retry"),
        ("preemption: not eligible", "preemption: not eligible"),
        ("not found", "not found"),
    ],
)
def test_the_schedulers_words_are_told_once(said: str, told: str) -> None:
    assert condensed(said) == told
    world = World()
    world.settle()
    world.change(member_name(1, 1), unschedulable=said, unschedulable_since=world.now).settle()
    assert f"({told})" in world.condition("Placeable").message


def test_a_claim_that_is_not_bound_is_not_taken_for_a_shortage() -> None:
    world = World()
    world.settle()
    why = "pod has unbound immediate PersistentVolumeClaims"
    world.change(member_name(1, 1), unschedulable=why, unschedulable_since=world.now).settle()
    assert "bind it" in world.condition("Placeable").message


@pytest.mark.parametrize(
    ("source", "named"),
    [
        (
            {"configMap": {"name": "script", "key": "a.py"}},
            "ConfigMap script in namespace ns is not there or has no key a.py",
        ),
        ({"volume": {"claim": "code", "path": "x/a.py"}}, "claim code in namespace ns has no file x/a.py"),
        ({"image": {"path": "/app/a.py"}}, "run-a-0-1: The script /app/a.py cannot be read (No such file)"),
    ],
)
def test_a_missing_script_names_the_object_that_should_hold_it(source: dict[str, object], named: str) -> None:
    world = World(trainer={"source": source}).started()
    sentence = script_missing("/app/a.py", "No such file")
    words = said(Cause.APP, "ScriptMissing", sentence, permanent=True)
    world.ended(member_name(0, 1), 64, words).settle()
    for message in (world.condition("Failed").message, world.status.summary.message):
        assert named in message
    message = world.condition("Failed").message
    assert "The script /app/a.py cannot be read (No such file)" in message
    assert message.count("in a new run") == 1, "what to do is said once"


REMEDY = "mend what this sentence names and start it again"


@pytest.mark.parametrize("cause", [Cause.APP, Cause.INFRASTRUCTURE, Cause.PREEMPTION])
@pytest.mark.parametrize("reason", [*Ended, *Refusal])
def test_the_remedy_of_any_last_words_is_told_once_wherever_it_is_told(reason: str, cause: Cause) -> None:
    """Of all members at once, of one again and again, and in the end."""
    world = World(failurePolicy={"budgets": {"app": 1, "infrastructure": 2, "preemption": 2}}).training()
    for incarnation in range(1, 5):
        words = said(cause, str(reason), f"Rank 0 failed: {REMEDY}.", permanent=incarnation > 2)
        for ordinal in range(2):
            if (name := member_name(ordinal, incarnation)) in world.pods:
                world.ended(name, 64, words)
        writes = only(world.settle(), WriteStatus)
        told = [each.message for write in writes for each in (*write.status.conditions, *write.status.members)]
        told += [note.message for write in writes for note in write.events]
        assert not writes or any(REMEDY in message for message in told)
        assert all(message.count(REMEDY) <= 1 for message in told), told
        world.step(60)
        world.settle()


def test_a_node_that_prepares_a_pod_is_told_early_with_what_it_needs_there() -> None:
    world = World()
    world.settle()
    world.running("run-coordinator-1")
    world.change(member_name(0, 1), node="n1", scheduled_at=world.now, mounts=("claim ckpt", "Secret s3"))
    since = clock.render(world.now)
    world.step(EARLY_SECONDS - 1)
    assert world.status.members[0].reason == ""
    world.step(1)
    condition = world.condition("Progressing")
    assert condition.reason == "ContainerStarting"
    for words in ("node n1", f"since {since}", "mount claim ckpt, Secret s3", f"pull image {IMAGE}"):
        assert words in condition.message


def test_an_image_that_is_pulled_is_told_early_and_its_node_and_since_when() -> None:
    world = World()
    world.settle()
    world.running("run-coordinator-1")
    world.change(member_name(0, 1), node="n1", scheduled_at=world.now, sandbox_at=world.now + 2)
    since = clock.render(world.now + 2)
    world.step(EARLY_SECONDS + 2)
    condition = world.condition("Progressing")
    assert (condition.status, condition.reason) == ("False", "PullingImage")
    assert f"cohort a: node n1 gets image {IMAGE} for pod run-a-0-1 since {since}" in condition.message
    world.step(600)
    assert world.condition("Progressing").reason == "PullingImage" and world.status.phase == "Starting"
    assert not [action for action in world.plan() if not is_wake(action)], "a long pull writes nothing"


def test_a_seat_that_was_refused_stays_so_while_its_successors_image_is_pulled() -> None:
    world = World().training()
    words = said(Cause.APP, "ModelMismatch", "another model", permanent=True)
    world.ended(member_name(0, 1), 79, words).settle()
    world.step(world.limits.app_backoff)
    world.change(member_name(0, 2), node="n1", scheduled_at=world.now).step(EARLY_SECONDS)
    assert world.status.members[0].reason == "ModelMismatch"


def test_the_coordinators_pod_is_told_as_its_own() -> None:
    world = World()
    world.settle()
    world.change("run-coordinator-1", node="n1", waiting_reason="ErrImagePull", image="reg/operator:1").settle()
    message = world.condition("CoordinatorReady").message or ""
    assert "the coordinator: node n1 cannot get image reg/operator:1" in message and "the chart's values" in message


def test_a_pod_that_runs_has_no_trouble() -> None:
    world = World().training()
    pod = world.pods[member_name(0, 1)]
    assert trouble(pod, world.now + 1000) is None
