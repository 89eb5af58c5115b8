"""A run whose environment cannot work is told so before any pod starts."""

from typing import Any

from fdl_operator.model import CreateCoordinator, CreateMember, WriteStatus

from .builders import World, node, only

BAD = {"name": "NCCL_PROTO", "value": "LL128"}
SLOW = [{"name": "NCCL_P2P_DISABLE", "value": "1"}, {"name": "NCCL_SHM_DISABLE", "value": "1"}]
GPU = {"vendor__nvidia": "true", "count__nvidia": "2", "variant__cuda": "verified", "nccl__cuda": "2.28"}


def world(*env: dict[str, Any]) -> World:
    """An NCCL run of one member with these variables, and a node that it fits on."""
    made = World(
        mode="nccl-sync",
        cohorts=[{"name": "a", "vendor": "nvidia", "replicas": 1}],
        trainer={"source": {"image": {"path": "/app/train.py"}}, "env": list(env)},
    )
    made.nodes = {"n1": node("n1", **GPU), "n2": node("n2")}
    return made


def test_a_forbidden_environment_ends_the_run_before_any_pod() -> None:
    bad = world(BAD)
    actions = bad.settle()
    assert not only(actions, CreateMember) and not only(actions, CreateCoordinator)
    assert (bad.status.phase, bad.status.attempt) == ("Failed", 0)
    failed = bad.condition("Failed")
    assert (failed.status, failed.reason) == ("True", "EnvironmentForbidden")
    assert "NCCL_PROTO=LL128 (spec.trainer.env)" in failed.message and "Remove NCCL_PROTO" in failed.message
    assert bad.events == ["EnvironmentForbidden"]
    assert bad.status.summary.reason == "EnvironmentForbidden"
    assert (bad.condition("EnvironmentSound").status, bad.condition("EnvironmentSound").reason) == (
        "False",
        "EnvironmentForbidden",
    )


def test_a_slow_environment_is_a_condition_and_the_run_starts() -> None:
    slow = world(*SLOW)
    assert only(slow.settle(), CreateMember)
    told = slow.condition("EnvironmentSound")
    assert (told.status, told.reason) == ("False", "EnvironmentDoubtful")
    assert "NCCL_P2P_DISABLE=1" in told.message and "nccl-environment/slow-path" in told.message
    assert slow.events.count("EnvironmentDoubtful") == 1


def test_a_run_that_has_started_is_not_ended_by_a_newer_rule() -> None:
    started = world().started()
    spec = started.run.spec
    assert spec is not None
    env = [entry.model_dump(by_alias=False) for entry in world(BAD).run.spec.trainer.env]  # type: ignore[union-attr]
    started.edit(trainer__env=env).settle()
    assert started.status.phase == "Starting" and started.condition("EnvironmentSound").reason == "EnvironmentDoubtful"


def test_a_sound_environment_is_told_and_does_not_move() -> None:
    sound = world()
    sound.settle()
    assert sound.condition("EnvironmentSound").status == "True"
    assert not only(sound.step(5), WriteStatus)


def test_runs_without_devices_have_no_such_condition() -> None:
    plain = World()
    plain.settle()
    assert "EnvironmentSound" not in {condition.type for condition in plain.status.conditions}
