"""Ways to place members: one NCCL version, bridges, network interfaces, quarantine, and variants by node."""

import dataclasses
from typing import Any

import pytest

from fdl_api.cluster import NcclBridge, SocketInterface
from fdl_api.nccl import common_version, order
from fdl_api.nodes import NodeRecord
from fdl_api.placement import Cluster, Communicator, Placement, Unplaced, Variant, options
from fdl_api.run import Cohort, Toleration
from tests.unit.nodes import T0, node

from .test_placement import TRAINER, cohort

BRIDGE = NcclBridge.model_validate({"image": "reg/nccl:228", "version": "2.28.3"})
CUDA = Variant("cuda", "nvidia", "reg/cuda:1")
CUDA12 = Variant("cuda12", "nvidia", "reg/cuda12:1")
CPU = Variant("cpu", "cpu", "reg/cpu:1")
SPANNING = Communicator(interface_given=True)
"""An NCCL mode whose run names the interface itself, for tests that are not about it."""


def gpu(name: str, devices: int = 2, **tags: str) -> NodeRecord:
    own = {"vendor__nvidia": "true", "count__nvidia": str(devices)} | tags
    return dataclasses.replace(node(name, **own), interfaces=("eth0", "ib0"))


def new(name: str, **tags: str) -> NodeRecord:
    return gpu(name, **{"variant__cuda": "covers", "nccl__cuda": "2.28", "variant__cuda12": "gap"} | tags)


def old(name: str, **tags: str) -> NodeRecord:
    return gpu(name, **{"variant__cuda": "gap", "variant__cuda12": "verified", "nccl__cuda12": "2.26"} | tags)


def cluster(*nodes: NodeRecord, variants: tuple[Variant, ...] = (CPU, CUDA, CUDA12), **more: Any) -> Cluster:
    return Cluster({each.name: each for each in nodes}, variants, 600, T0, **more)


def placed(where: Cluster, communicator: Communicator | None = None, **more: Any) -> tuple[Placement, ...]:
    own: Cohort = more.pop("cohort", None) or cohort("nvidia")
    found = options(own, TRAINER, where, communicator=communicator, **more)
    assert isinstance(found, tuple), found
    return found


def unplaced(where: Cluster, communicator: Communicator | None = None, **more: Any) -> Unplaced:
    found = options(more.pop("cohort", None) or cohort("nvidia"), TRAINER, where, communicator=communicator)
    assert isinstance(found, Unplaced), found
    return found


class TestVariants:
    def test_auto_picks_a_variant_for_each_node(self) -> None:
        found = placed(cluster(new("a"), new("b"), old("c")))
        assert [(each.variant, each.room) for each in found] == [("cuda", 2 + 2), ("cuda12", 2)]

    def test_a_named_variant_is_the_only_way(self) -> None:
        found = placed(cluster(new("a"), old("c")), cohort=cohort("nvidia", variant="cuda12"))
        assert [each.variant for each in found] == ["cuda12"]

    def test_a_variant_that_adds_no_node_is_no_second_way(self) -> None:
        both = new("a", variant__cuda12="covers")
        assert [each.variant for each in placed(cluster(both, new("b")))] == ["cuda"]

    def test_room_counts_the_devices_that_a_member_takes(self) -> None:
        found = placed(cluster(new("a"), new("b")), cohort=cohort("nvidia", devicesPerReplica=2))
        assert [each.room for each in found] == [2]

    def test_own_device_resources_and_cpu_members_are_not_counted(self) -> None:
        mig = cohort("nvidia", deviceResource="nvidia.com/mig-1g.5gb")
        assert placed(cluster(new("a")), cohort=mig)[0].room is None
        assert placed(cluster(node()), cohort=cohort("cpu"))[0].room is None


class TestVersion:
    def test_other_modes_ask_for_none(self) -> None:
        assert [each.nccl for each in placed(cluster(new("a"), old("b")))] == ["", ""]

    def test_the_version_that_most_nodes_load_is_pinned(self) -> None:
        (only,) = placed(cluster(new("a"), old("b"), old("c")), SPANNING)
        assert (only.variant, only.nccl) == ("cuda12", "2.26")
        assert ("fdl.dev/nccl.cuda12", ("2.26",)) in only.required

    def test_the_newest_of_equals_is_taken(self) -> None:
        assert common_version({"a": ["2.9"], "b": ["2.10"]}) == "2.10"
        assert common_version({"a": [], "b": []}) == ""

    def test_members_that_run_decide(self) -> None:
        (only,) = placed(cluster(new("a"), old("b"), old("c")), Communicator("2.28", interface_given=True))
        assert only.nccl == "2.28" and only.variant == "cuda"

    def test_a_node_of_another_version_is_told_what_would_help(self) -> None:
        found = unplaced(cluster(old("b")), Communicator("2.28", interface_given=True))
        assert found.reason == "NoFittingNode"
        assert "node b loads NCCL 2.26 and the cohort runs 2.28; an ncclBridge to 2.28" in found.message

    def test_a_node_whose_version_nobody_knows_waits_for_its_deep_check(self) -> None:
        untold = gpu("u", variant__cuda="covers")
        (only,) = placed(cluster(new("a"), untold), SPANNING)
        assert only.nccl == "2.28" and ("fdl.dev/nccl.cuda", ("2.28",)) in only.required

    def test_where_no_version_is_known_none_is_pinned(self) -> None:
        (only,) = placed(cluster(gpu("u", variant__cuda="covers")), SPANNING)
        assert only.nccl == "" and all(not key.startswith("fdl.dev/nccl.") for key, _ in only.required)


class TestBridge:
    VARIANTS = (CPU, CUDA, dataclasses.replace(CUDA12, bridge=BRIDGE))

    def test_bridged_nodes_count_at_the_bridged_version(self) -> None:
        first, second = placed(cluster(new("a"), old("b"), variants=self.VARIANTS), SPANNING)
        assert (first.variant, first.nccl, first.bridge) == ("cuda", "2.28", None)
        assert (second.variant, second.nccl, second.bridge) == ("cuda12", "2.28", BRIDGE)
        assert ("fdl.dev/nccl.cuda12", ("2.26",)) in second.required

    def test_members_on_simulated_devices_are_bridged_like_others(self) -> None:
        fake = {"simulated": "true"}
        nodes = new("a", variant__cuda="simulated", **fake), old("b", variant__cuda12="simulated", **fake)
        asks = cohort("nvidia", allowSimulated=True)
        first, second = placed(cluster(*nodes, variants=self.VARIANTS), SPANNING, cohort=asks)
        assert (first.simulated, first.bridge) == (True, None)
        assert (second.simulated, second.variant, second.bridge) == (True, "cuda12", BRIDGE)

    def test_nothing_is_bridged_that_loads_the_version_itself(self) -> None:
        found = placed(cluster(old("b", nccl__cuda12="2.28"), new("a"), variants=self.VARIANTS), SPANNING)
        assert [each.bridge for each in found] == [None, None]

    def test_nothing_is_bridged_outside_of_nccl_modes(self) -> None:
        assert all(each.bridge is None for each in placed(cluster(new("a"), old("b"), variants=self.VARIANTS)))

    def test_a_bridge_is_part_of_what_a_pod_was_built_from(self) -> None:
        _, second = placed(cluster(new("a"), old("b"), variants=self.VARIANTS), SPANNING)
        assert second.digest != dataclasses.replace(second, bridge=None).digest


class TestFabric:
    EAST = SocketInterface.model_validate(
        {"name": "east", "nodeSelector": {"fdl.dev/zone": "e"}, "socketInterface": "ib0"}
    )
    REST = SocketInterface.model_validate({"name": "rest", "socketInterface": "eth0"})
    MODE = Communicator()

    def test_members_on_several_nodes_need_an_interface(self) -> None:
        found = unplaced(cluster(new("a"), new("b")), self.MODE)
        assert found.reason == "FabricUnknown"
        assert "node a is in no group of FdlCluster/default spec.fabric" in found.message

    @pytest.mark.parametrize("mode", [Communicator(spans=False), Communicator(interface_given=True), None])
    def test_others_do_not(self, mode: Communicator | None) -> None:
        assert placed(cluster(new("a"), new("b")), mode)[0].interface == ""

    def test_a_single_node_needs_none(self) -> None:
        assert placed(cluster(new("a")), self.MODE)[0].interface == ""

    def test_each_group_is_a_way_and_the_first_that_fits_counts(self) -> None:
        where = cluster(new("a", zone="e"), new("b"), new("c"), fabric=(self.EAST, self.REST))
        first, second = placed(where, self.MODE)
        assert (first.interface, second.interface) == ("eth0", "ib0")
        assert first.excluded == ("a",), "its labels would let it in"
        assert ("fdl.dev/zone", ("e",)) in second.required and second.excluded == ()

    def test_nodes_in_no_group_are_left_out(self) -> None:
        (only,) = placed(cluster(new("a", zone="e"), new("b"), fabric=(self.EAST,)), self.MODE)
        assert only.interface == "ib0"

    def test_an_interface_that_is_not_up_keeps_a_node_out(self) -> None:
        broken = dataclasses.replace(new("b"), interfaces=("lo",))
        (only,) = placed(cluster(new("a"), broken, fabric=(self.REST,)), self.MODE)
        assert only.excluded == ("b",)
        found = unplaced(cluster(broken, fabric=(self.REST,)), self.MODE)
        assert "node b has no interface eth0 that is up (group rest" in found.message and "have lo" in found.message

    def test_a_pod_template_may_bring_other_networks(self) -> None:
        broken = dataclasses.replace(new("b"), interfaces=("lo",))
        own = cohort("nvidia", podTemplate={"metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "ib"}}})
        assert placed(cluster(broken, fabric=(self.REST,)), self.MODE, cohort=own)[0].interface == "eth0"


class TestQuarantine:
    def test_a_quarantined_node_is_kept_out_by_name(self) -> None:
        where = cluster(new("a"), new("b"), quarantined={"b": "failed"})
        assert placed(where)[0].excluded == ("b",)

    def test_the_sentence_says_why(self) -> None:
        found = unplaced(cluster(new("b"), quarantined={"b": "two kernels went wrong (until T)"}))
        assert "node b is in quarantine: two kernels went wrong (until T)" in found.message


def test_a_tainted_quarantine_is_told_by_its_reason() -> None:
    taint = ("fdl.dev/quarantine", "spec", "NoSchedule")
    tainted = dataclasses.replace(new("b"), taints=(taint,))
    assert "node b is in quarantine: bad fan" in unplaced(cluster(tainted, quarantined={"b": "bad fan"})).message
    assert "has taint fdl.dev/quarantine" in unplaced(cluster(tainted)).message, "somebody else's"


def test_tolerations_of_the_cluster_count_for_all_cohorts() -> None:
    tainted = dataclasses.replace(new("a"), taints=(("team", "x", "NoSchedule"),))
    assert "does not tolerate" in unplaced(cluster(tainted)).message
    team = Toleration.model_validate({"key": "team", "operator": "Exists"})
    assert placed(cluster(tainted, tolerations=(team,)))


def test_versions_are_compared_by_their_numbers_and_what_is_none_counts_as_zero() -> None:
    assert order("2.10") > order("2.9")
    assert order("2.\N{SUPERSCRIPT TWO}") == order("2.x") == (2, 0)
