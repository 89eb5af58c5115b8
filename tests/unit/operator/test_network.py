"""Runs in NCCL modes: one version for a cohort, interfaces, and members over several kinds of nodes."""

import dataclasses
from typing import Any

import pytest

from fdl_api.cluster import NcclBridge, SocketInterface
from fdl_api.nodes import NodeRecord
from fdl_api.placement import Variant
from fdl_api.run import FdlRunStatus, Mode
from fdl_operator.build.runconfig import run_config
from fdl_operator.model import CreateMember
from fdl_operator.plan.seating import PATIENCE

from .builders import World, node, only

CPU = Variant("cpu", "cpu", "reg/cpu:1")
CUDA = Variant("cuda", "nvidia", "reg/cuda:1")
CUDA12 = Variant(
    "cuda12",
    "nvidia",
    "reg/cuda12:1",
    bridge=NcclBridge.model_validate({"image": "reg/nccl:1", "version": "2.28.3"}),
)
ETH0 = SocketInterface.model_validate({"name": "all", "socketInterface": "eth0"})


def gpu(name: str, variant: str, version: str, devices: int = 1) -> NodeRecord:
    tags = {"vendor__nvidia": "true", "count__nvidia": str(devices)}
    tags |= {f"variant__{variant}": "verified", f"nccl__{variant}": version}
    return node(name, **tags)


def world(*nodes: NodeRecord, replicas: int = 2, mode: str = "nccl-cadence", **changes: Any) -> World:
    cohort = {"name": "g", "vendor": "nvidia", "replicas": replicas, "maxReplicas": 8}
    made = World(mode=mode, cohorts=[cohort], **changes)
    made.nodes = {each.name: each for each in nodes}
    made.variants = (CPU, CUDA, CUDA12)
    made.fabric = (ETH0,)
    return made


def placements(made: World, actions: list[Any]) -> list[tuple[str, bool]]:
    return [(each.placement.variant, each.placement.bridge is not None) for each in only(actions, CreateMember)]


def test_members_fill_the_nodes_that_need_no_bridge_first() -> None:
    made = world(gpu("a", "cuda", "2.28"), gpu("b", "cuda12", "2.26"), replicas=3)
    made.nodes |= {"c": gpu("c", "cuda", "2.28")}
    actions = made.settle()
    assert placements(made, actions) == [("cuda", False), ("cuda", False), ("cuda12", True)]
    assert made.status.cohorts[0].nccl == "2.28"


def test_more_members_than_devices_wait_in_the_best_way() -> None:
    actions = world(gpu("a", "cuda", "2.28"), gpu("b", "cuda12", "2.26"), replicas=3).settle()
    assert placements(World(), actions) == [("cuda", False), ("cuda12", True), ("cuda", False)]


def test_in_cpu_modes_each_node_has_its_variant_and_no_bridge() -> None:
    made = world(gpu("a", "cuda", "2.28"), gpu("b", "cuda12", "2.26"), mode="cpu-cadence")
    actions = made.settle()
    assert placements(made, actions) == [("cuda", False), ("cuda12", False)]
    assert made.status.cohorts[0].nccl == ""


def test_the_version_is_in_the_resolved_run_for_the_join_gate() -> None:
    made = world(gpu("a", "cuda", "2.28"))
    made.settle()
    assert made.run.spec is not None
    config = run_config(made.run, made.run.spec, attempt=1, must_resume=False)
    assert config.cohorts[0].nccl == "2.28"
    other = made.run.spec.model_copy(update={"mode": Mode.CPU_CADENCE})
    assert run_config(made.run, other, attempt=1, must_resume=False).cohorts[0].nccl is None


def test_the_version_stays_within_an_attempt_and_is_free_in_the_next() -> None:
    made = world(gpu("a", "cuda", "2.28", 8), replicas=1)
    made.settle()
    made.nodes = {name: gpu(name, "cuda", "2.30", 8) for name in ("a", "b")}
    made.edit(cohorts__0__replicas=2).settle()
    assert "the cohort runs 2.28" in made.condition("Placeable").message
    made.edit(run_policy__suspend=True)
    for _ in range(4):
        made.step(200)
        made.pods = {name: pod for name, pod in made.pods.items() if pod.deleted_at is None}
    assert made.status.phase == "Suspended"
    made.edit(run_policy__suspend=False).settle()
    assert made.status.cohorts[0].nccl == "2.30" and made.status.attempt == 2


def test_the_sentence_says_that_an_interface_is_missing() -> None:
    made = world(gpu("a", "cuda", "2.28"), gpu("b", "cuda", "2.28"))
    made.fabric = ()
    made.settle()
    condition = made.condition("Placeable")
    assert (condition.status, condition.reason) == ("False", "FabricUnknown")
    assert "spec.fabric" in condition.message and "NCCL_SOCKET_IFNAME" in condition.message
    assert made.events.count("FabricUnknown") == 1
    made.fabric = (ETH0,)
    made.settle()
    assert made.condition("Placeable").status == "True"


@pytest.mark.parametrize(
    "template",
    [None, {"spec": {"containers": [{"name": "trainer", "env": [{"name": "NCCL_SOCKET_IFNAME", "value": "ib0"}]}]}}],
)
def test_a_run_that_names_the_interface_itself_needs_no_group(template: dict[str, Any] | None) -> None:
    nodes = gpu("a", "cuda", "2.28"), gpu("b", "cuda", "2.28")
    made = world(*nodes)
    made.fabric = ()
    if template is None:
        made.edit(trainer__env=[{"name": "NCCL_SOCKET_IFNAME", "value": "ib0"}])
    else:
        made.edit(cohorts__0__pod_template=template)
    made.settle()
    assert made.condition("Placeable").status == "True"


class TestMovingOn:
    """A pod that others leave no device tries another kind of nodes, but not soon."""

    def waiting(self) -> World:
        made = world(gpu("a", "cuda", "2.28", 4), gpu("b", "cuda12", "2.26", 4), replicas=1, mode="cpu-cadence")
        made.settle()
        pod = made.member(0, "g")
        assert pod.variant == "cuda"
        return made.change(pod.name, unschedulable="0/2 nodes", unschedulable_since=made.now)

    def test_it_stays_for_a_while(self) -> None:
        made = self.waiting()
        assert not only(made.step(made.limits.unschedulable + 1), CreateMember)

    def test_then_it_goes_to_the_other(self) -> None:
        made = self.waiting()
        (created,) = only(made.step(made.limits.unschedulable * PATIENCE + 1), CreateMember)
        assert created.placement.variant == "cuda12" and created.incarnation == 2

    def test_it_stays_where_there_is_no_other_with_room(self) -> None:
        made = self.waiting()
        del made.nodes["b"]
        assert not only(made.step(made.limits.unschedulable * PATIENCE + 1), CreateMember)


def test_a_status_of_an_older_release_has_no_version() -> None:
    made = world(gpu("a", "cuda", "2.28"))
    made.run = dataclasses.replace(made.run, status=FdlRunStatus())
    made.settle()
    assert made.status.cohorts[0].nccl == "2.28"
