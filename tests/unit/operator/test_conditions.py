"""What the conditions of FdlCluster say when all nodes are looked at together."""

import dataclasses
import datetime
from typing import Any, ClassVar

import pytest

from fdl_api.checks.machine import HOST_SURVEY
from fdl_api.cluster import FdlClusterSpec, FdlClusterStatus
from fdl_api.nodes import NodeRecord
from fdl_api.report import Host, Interface, RdmaDevice, Report, Sentinel
from fdl_api.run import Condition
from fdl_operator.plan.cluster import ClusterRecord, describe
from fdl_operator.plan.conditions import transitions
from tests.unit.nodes import T0, node_of

VARIANTS: list[dict[str, Any]] = [
    {"name": "cpu", "vendor": "cpu", "image": "reg/cpu:1"},
    {"name": "cuda", "vendor": "nvidia", "image": "reg/cuda:1", "archs": ["sm_90"]},
    {"name": "cuda12", "vendor": "nvidia", "image": "reg/cuda12:1", "archs": ["sm_60", "sm_90"]},
    {"name": "rocm", "vendor": "amd", "image": "reg/rocm:1", "archs": ["gfx942"]},
]


def seen(
    name: str,
    *,
    age: float = 10,
    sentinel: Sentinel | None = None,
    up: tuple[str, ...] = ("eth0",),
    mtu: int = 0,
    rdma: tuple[RdmaDevice, ...] = (),
    clock: float | None = 0.0,
    **tags: str,
) -> NodeRecord:
    """A node with a report; ``tags`` are labels below fdl.dev/, with ``__`` for a dot."""
    time = datetime.datetime.fromtimestamp(T0 - age, datetime.UTC)
    interfaces = tuple(Interface(name=each, up=True, mtu=mtu) for each in up)
    host = Host(interfaces=interfaces, rdma=rdma, clock_offset_seconds=clock)
    report = Report(node=name, time=time, ready=True, sentinel=sentinel, host=host)
    return dataclasses.replace(node_of(report, **tags), interfaces=up or None)


def gpu(name: str, *, vendor: str = "nvidia", **more: Any) -> NodeRecord:
    return seen(name, gpu_vendor=vendor, **{f"count__{vendor}": "2", **more})


def cpu(name: str = "c", **more: Any) -> NodeRecord:
    return seen(name, variant__cpu="covers", **more)


def status(*nodes: NodeRecord, old: FdlClusterStatus | None = None, now: float = T0, **spec: Any) -> FdlClusterStatus:
    parsed = FdlClusterSpec.model_validate({"variants": VARIANTS} | spec)
    return describe(ClusterRecord("default", "u", 1, "1", parsed, old or FdlClusterStatus()), nodes, now)


def said(kind: str, *nodes: NodeRecord, **spec: Any) -> Condition:
    return next(each for each in status(*nodes, **spec).conditions if each.type == kind)


class TestNodesReady:
    def test_nothing_is_known_without_a_report(self) -> None:
        found = said("NodesReady")
        assert (found.status, found.reason) == ("Unknown", "NoReports") and "fdl.dev/role=prober" in found.message

    def test_each_cause_is_told_once_with_its_nodes(self) -> None:
        nodes = [cpu("a", age=5000), cpu("b", age=5000), dataclasses.replace(cpu("c"), unschedulable=True), cpu("d")]
        found = said("NodesReady", *nodes)
        assert (found.status, found.reason) == ("False", "NodesNotReady")
        assert "a, b: the newest report is older than 900 s" in found.message
        assert "c: cordoned" in found.message and "d" not in found.message.split()

    def test_a_kubelet_that_is_away_is_named(self) -> None:
        assert "a: the kubelet is not ready" in said("NodesReady", dataclasses.replace(cpu("a"), ready=False)).message

    def test_only_some_of_many_nodes_are_named(self) -> None:
        message = said("NodesReady", *[cpu(f"n{number:02}", age=5000) for number in range(12)]).message
        assert "n09 and 2 more" in message and "n10" not in message


class TestNCCLConsistent:
    def test_skew_names_versions_variants_and_nodes(self) -> None:
        old, new = {"variant__cuda12": "covers", "nccl__cuda12": "2.26"}, {"variant__cuda": "covers"}
        nodes = [gpu("a", **old), gpu("b", **new, nccl__cuda="2.28"), gpu("c", **new, nccl__cuda="2.28"), cpu()]
        found = said("NCCLConsistent", *nodes)
        assert (found.status, found.reason) == ("False", "VersionSkew")
        assert "nvidia nodes load different NCCL: 2.26 (cuda12) on a; 2.28 (cuda) on b, c" in found.message

    def test_one_version_that_all_nodes_can_load_is_enough(self) -> None:
        both = {"variant__cuda": "covers", "nccl__cuda": "2.28"}
        old = {"variant__cuda12": "covers", "nccl__cuda12": "2.26"}
        found = said("NCCLConsistent", gpu("a", **both, **old), gpu("b", **old))
        assert (found.status, found.message) == ("True", "NCCL 2.26 on all 2 nvidia nodes")

    def test_vendors_are_not_compared_with_each_other(self) -> None:
        nodes = [
            gpu("a", variant__cuda="covers", nccl__cuda="2.28"),
            gpu("m", vendor="amd", variant__rocm="covers", nccl__rocm="2.22"),
        ]
        found = said("NCCLConsistent", *nodes)
        assert found.status == "True" and "RCCL 2.22 on all 1 amd nodes" in found.message

    def test_a_version_that_nobody_has_told_is_unknown(self) -> None:
        known = gpu("a", variant__cuda="covers", nccl__cuda="2.28")
        found = said("NCCLConsistent", known, gpu("b", variant__cuda="covers"))
        assert (found.status, found.reason) == ("Unknown", "VersionUnknown") and "nvidia node b" in found.message

    def test_a_cluster_without_devices_has_nothing_to_compare(self) -> None:
        found = said("NCCLConsistent", cpu())
        assert (found.status, found.reason) == ("True", "NoDevices")

    def test_a_bridge_brings_the_others_version(self) -> None:
        bridge = {"image": "reg/nccl:1", "version": "2.28.3"}
        bridged = [each | {"ncclBridge": bridge} if each["name"] == "cuda12" else each for each in VARIANTS]
        old = gpu("a", variant__cuda12="covers", nccl__cuda12="2.26")
        new = gpu("b", variant__cuda="covers", nccl__cuda="2.28")
        found = said("NCCLConsistent", old, new, variants=bridged)
        assert (found.status, found.message) == ("True", "NCCL 2.28 on all 2 nvidia nodes, bridged on a")


class TestVariantCoverage:
    def test_the_smallest_set_is_named(self) -> None:
        nodes = [
            gpu("a", variant__cuda="covers", variant__cuda12="covers"),
            gpu("b", variant__cuda12="verified"),
            cpu(),
        ]
        found = said("VariantCoverage", *nodes)
        assert found.status == "True" and found.message.endswith(
            "the smallest set of variants that does it: cpu, cuda12"
        )

    def test_gaps_are_named_with_their_architectures(self) -> None:
        bad = gpu("b", variant__cuda="gap", variant__cuda12="gap")
        bad = dataclasses.replace(bad, labels=bad.labels | {"fdl.dev/arch.sm_52": "true"})
        found = said("VariantCoverage", cpu(), bad)
        assert (found.status, found.reason) == ("False", "NotCovered")
        assert "no variant covers b (nvidia: sm_52)" in found.message and "covers the others: cpu" in found.message

    def test_a_mixed_node_needs_a_variant_for_each_vendor(self) -> None:
        mixed = gpu("m", count__amd="1", variant__cuda="covers", variant__rocm="gap")
        assert "m (amd: " in said("VariantCoverage", mixed).message

    def test_a_variant_that_no_prober_has_judged_yet_is_unknown(self) -> None:
        found = said("VariantCoverage", gpu("a"))
        assert (found.status, found.reason) == ("Unknown", "NotJudgedYet") and "on a yet. Wait" in found.message

    @pytest.mark.parametrize(
        ("judged_by", "age", "status"),
        [("now", 10, "False"), ("before", 10, "Unknown"), ("", 10, "False"), ("before", 5000, "False")],
    )
    def test_a_gap_of_the_variants_before_the_change_is_none_yet(self, judged_by: str, age: float, status: str) -> None:
        parsed = FdlClusterSpec.model_validate({"variants": VARIANTS[:2]})
        time = datetime.datetime.fromtimestamp(T0 - age, datetime.UTC)
        report = Report(node="a", time=time, ready=True, judged_by=judged_by)
        node = node_of(report, gpu_vendor="nvidia", count__nvidia="2", variant__cuda="gap")
        found = describe(ClusterRecord("default", "u", 1, "1", parsed, FdlClusterStatus(), mark="now"), [node], T0)
        (told,) = (each for each in found.conditions if each.type == "VariantCoverage")
        assert told.status == status and (status == "False" or told.reason == "NotJudgedYet")

    def test_a_vendor_without_any_variant_is_a_gap(self) -> None:
        assert said("VariantCoverage", gpu("m", vendor="amd"), variants=VARIANTS[:2]).status == "False"


class TestSharedVolume:
    def test_without_a_sentinel_nothing_is_known(self) -> None:
        found = said("SharedVolumeConsistent", cpu())
        assert (found.status, found.reason) == ("Unknown", "NoSentinel") and "prober.sentinel" in found.message

    def test_an_old_report_is_no_evidence(self) -> None:
        nodes = [
            cpu("a", sentinel=Sentinel(path="/d", sha256="f00")),
            cpu("b", sentinel=Sentinel(path="/d", sha256="bad"), age=5000),
        ]
        assert said("SharedVolumeConsistent", *nodes).status == "True"

    def test_what_cannot_be_read_is_told_with_its_error(self) -> None:
        found = said("SharedVolumeConsistent", cpu("a", sentinel=Sentinel(path="/d", error="No such file")))
        assert (found.status, found.reason) == ("False", "SentinelUnreadable")
        assert "on a (No such file)" in found.message


class TestFabric:
    GROUPS: ClassVar = {"groups": [{"name": "all", "socketInterface": "eth0"}]}

    def test_one_node_of_a_vendor_needs_none(self) -> None:
        found = said("FabricKnown", gpu("a"), gpu("m", vendor="amd"), cpu())
        assert (found.status, found.reason) == ("True", "NotNeeded")

    def test_nodes_without_a_group_are_named(self) -> None:
        groups = {"groups": [{"name": "east", "nodeSelector": {"fdl.dev/zone": "e"}, "socketInterface": "eth0"}]}
        found = said("FabricKnown", gpu("a", zone="e"), gpu("b"), fabric=groups)
        assert (found.status, found.reason) == ("False", "InterfaceNotNamed") and "for b. Name" in found.message

    def test_an_interface_that_is_not_there_is_named_with_those_that_are(self) -> None:
        found = said("FabricKnown", gpu("a"), gpu("b", up=("ib0", "lo")), fabric=self.GROUPS)
        assert (found.status, found.reason) == ("False", "InterfaceDown")
        assert "on b (eth0 of group all; it has ib0, lo)" in found.message

    def test_what_no_fresh_report_tells_is_unknown(self) -> None:
        found = said("FabricKnown", gpu("a"), gpu("b", age=5000), fabric=self.GROUPS)
        assert (found.status, found.reason) == ("Unknown", "InterfaceUnknown")

    def test_all_well(self) -> None:
        assert said("FabricKnown", gpu("a"), gpu("b"), fabric=self.GROUPS).status == "True"
        alike = [gpu(name, mtu=9000, rdma=(RdmaDevice(name="mlx5_0", active_ports=1),)) for name in "ab"]
        assert said("FabricKnown", *alike, fabric=self.GROUPS).status == "True"

    def test_different_mtus_are_named_with_their_nodes(self) -> None:
        nodes = [gpu("a", mtu=9000), gpu("b", mtu=1500), gpu("c", mtu=9000)]
        found = said("FabricKnown", *nodes, fabric=self.GROUPS)
        assert (found.status, found.reason) == ("False", "MtuDiffers")
        assert "1500 on b; 9000 on a, c" in found.message and "one MTU" in found.message

    def test_an_mtu_that_is_not_known_or_of_another_vendor_is_no_difference(self) -> None:
        nodes = [gpu("a", mtu=9000), gpu("b"), gpu("m", vendor="amd", mtu=1500), gpu("n", vendor="amd", mtu=1500)]
        assert said("FabricKnown", *nodes, fabric=self.GROUPS).status == "True"

    def test_rdma_devices_that_a_prober_could_not_look_at_are_no_difference(self) -> None:
        one = RdmaDevice(name="mlx5_0", active_ports=1)
        time = datetime.datetime.fromtimestamp(T0 - 10, datetime.UTC)
        host = Host(interfaces=(Interface(name="eth0", up=True),))
        unseen = HOST_SURVEY.found("no-answer", "the look at rdma: ValueError", "rdma")
        blind, seeing = (Report(node="b", time=time, ready=True, host=host, checks=each) for each in ((unseen,), ()))
        tags = {"gpu_vendor": "nvidia", "count__nvidia": "2"}
        others = gpu("a", rdma=(one,)), gpu("c", rdma=(one,))
        found = [
            said(
                "FabricKnown",
                *others,
                dataclasses.replace(node_of(each, **tags), interfaces=("eth0",)),
                fabric=self.GROUPS,
            )
            for each in (blind, seeing)
        ]
        assert [each.reason for each in found] == ["AsExpected", "RdmaDiffers"]

    def test_rdma_devices_that_only_some_have_are_named(self) -> None:
        active, idle = RdmaDevice(name="mlx5_0", active_ports=1), RdmaDevice(name="mlx5_0")
        found = said("FabricKnown", gpu("a", rdma=(active,)), gpu("b", rdma=(idle,)), fabric=self.GROUPS)
        assert (found.status, found.reason) == ("False", "RdmaDiffers")
        assert "mlx5_0 on a; none on b" in found.message and "NCCL_IB_HCA" in found.message


class TestClocks:
    def test_one_node_has_nobody_to_agree_with(self) -> None:
        found = said("ClocksAgree", cpu(clock=50))
        assert (found.status, found.reason) == ("Unknown", "ClockUnknown")

    def test_the_node_that_differs_from_the_others_is_named_and_not_they(self) -> None:
        nodes = [cpu("a", clock=0.3), cpu("b", clock=-7), cpu("c", clock=-0.4), cpu("d", clock=0.1)]
        found = said("ClocksAgree", *nodes)
        assert (found.status, found.reason) == ("False", "ClocksDiffer")
        assert "the clock of b is more than 2 s from the median of all 4 nodes" in found.message
        assert "chrony" in found.message

    def test_an_api_server_whose_own_clock_is_wrong_is_no_difference_of_nodes(self) -> None:
        assert said("ClocksAgree", cpu("a", clock=40.2), cpu("b", clock=39.8)).status == "True"

    def test_an_offset_that_moves_gives_a_steady_sentence(self) -> None:
        first, later = (said("ClocksAgree", cpu("a"), cpu("b"), cpu("c", clock=offset)) for offset in (6.0, 6.4))
        assert (first.status, first.message) == ("False", later.message)

    def test_an_offset_that_is_old_or_not_told_is_no_evidence(self) -> None:
        nodes = [cpu("a"), cpu("b", clock=9, age=5000), cpu("c", clock=None)]
        assert said("ClocksAgree", *nodes).reason == "ClockUnknown"
        assert said("ClocksAgree", *nodes, cpu("d")).message == "2 nodes have the same time"


class TestNetworkPolicy:
    def state(self, policies: dict[str, bool], old: FdlClusterStatus | None = None) -> FdlClusterStatus:
        parsed = FdlClusterSpec.model_validate({"variants": VARIANTS})
        return describe(ClusterRecord("default", "u", 1, "1", parsed, old or FdlClusterStatus()), [cpu()], T0, policies)

    def told(self, found: FdlClusterStatus) -> Condition:
        return next(each for each in found.conditions if each.type == "NetworkPolicyEnforced")

    def test_what_was_never_tried_is_unknown_and_no_event(self) -> None:
        found = self.state({})
        assert (self.told(found).status, self.told(found).reason) == ("Unknown", "PolicyNotTried")
        assert transitions((), [self.told(found)]) == ()

    def test_one_open_port_outweighs_the_closed_ones_and_names_its_node(self) -> None:
        found = self.told(self.state({"a": True, "b": False}))
        assert (found.status, found.reason) == ("False", "PolicyNotEnforced")
        assert "open to it on b. Install a network plugin" in found.message

    def test_closed_ports_are_proof_and_further_ones_change_nothing(self) -> None:
        first = self.state({"a": True})
        assert self.told(first).status == "True"
        assert self.state({"a": True, "b": True}, first) == first

    @pytest.mark.parametrize("closed", [True, False])
    def test_what_an_earlier_operator_found_stays_until_more_is_known(self, closed: bool) -> None:
        found = self.state({"a": closed})
        assert self.state({}, found) == found
        assert self.told(self.state({"a": not closed}, found)).status != self.told(found).status

    def test_a_reason_that_a_newer_operator_has_written_stays_as_it_is(self) -> None:
        found = self.state({"a": True})
        newer = {"reason": "PolicyEnforcedByMesh", "message": "a mesh does it"}
        conditions = [
            each.model_copy(update=newer) if each.type == "NetworkPolicyEnforced" else each for each in found.conditions
        ]
        told = self.told(self.state({}, found.model_copy(update={"conditions": tuple(conditions)})))
        assert (told.status, told.reason, told.message) == ("True", newer["reason"], newer["message"])


class TestTransitions:
    def notes(self, before: FdlClusterStatus, after: FdlClusterStatus) -> list[tuple[str, bool]]:
        return [(note.message.split(":")[0], note.warning) for note in transitions(before.conditions, after.conditions)]

    def test_only_a_change_of_status_is_an_event(self) -> None:
        well = status(cpu())
        ill = status(cpu(age=5000), old=well)
        assert self.notes(FdlClusterStatus(), well) == []
        assert self.notes(well, ill) == [("NodesReady is False", True)]
        assert self.notes(ill, status(cpu(age=5001), cpu("x", age=5000), old=ill)) == []
        assert self.notes(ill, status(cpu(), old=ill)) == [("NodesReady is True", False)]

    def test_trouble_at_the_first_look_is_told(self) -> None:
        assert self.notes(FdlClusterStatus(), status(cpu(age=5000))) == [("NodesReady is False", True)]

    @pytest.mark.parametrize("seconds", [1, 600])
    def test_conditions_do_not_move_by_themselves(self, seconds: float) -> None:
        nodes = [gpu("a", variant__cuda="covers", nccl__cuda="2.28"), cpu()]
        first = status(*nodes)
        assert status(*nodes, old=first, now=T0 + seconds).conditions == first.conditions
