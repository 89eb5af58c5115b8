"""The table of nodes, and deep checks."""

import dataclasses
import datetime
from typing import Any, ClassVar

import pytest

from fdl_api.checks.devices import DEVICE_FILES, GPU_DRIVER
from fdl_api.checks.machine import DISK_SPACE
from fdl_api.cluster import FdlClusterSpec, FdlClusterStatus
from fdl_api.nodes import NodeRecord
from fdl_api.report import Check, DeepWanted, Report, Sentinel, deep_pod_name
from fdl_operator import clock
from fdl_operator.deepcheck import MAX_AT_ONCE, PENDING_SECONDS, DeepChecks, decide, pod
from fdl_operator.model import PodPhase, PodRecord
from fdl_operator.plan.cluster import ClusterRecord, describe
from fdl_operator.settings import Settings
from tests.unit.nodes import T0, node, node_of

WISH = DeepWanted(variant="cuda", vendor="nvidia", image="reg/cuda:1", fingerprint="f", devices=2)
SPEC = FdlClusterSpec.model_validate(
    {
        "variants": [
            {"name": "cuda", "vendor": "nvidia", "image": "reg/cuda:1", "archs": ["sm_90"]},
            {"name": "cpu", "vendor": "cpu", "image": "reg/cpu:1"},
        ]
    }
)


def record(status: FdlClusterStatus | None = None) -> ClusterRecord:
    return ClusterRecord("default", "u", 1, "1", SPEC, status or FdlClusterStatus())


def reported(name: str = "g", *, age: float = 10, checks: Any = (), wishes: Any = (), **tags: str) -> NodeRecord:
    time = datetime.datetime.fromtimestamp(T0 - age, datetime.UTC)
    report = Report(node=name, time=time, ready=True, checks=tuple(checks), deep_wanted=tuple(wishes))
    return node_of(report, **tags)


def rows(*nodes: NodeRecord) -> Any:
    return describe(record(), nodes, T0).nodes


def state(status: FdlClusterStatus, kind: str) -> tuple[str, str]:
    found = next(condition for condition in status.conditions if condition.type == kind)
    return found.status, found.message


class TestTable:
    H200: ClassVar = {"gpu_vendor": "nvidia", "count__nvidia": "2", "arch__sm_90": "true", "variant__cuda": "verified"}

    def test_a_row_says_what_the_labels_say(self) -> None:
        labels = {key.replace("sm_90", "sm-90"): text for key, text in self.H200.items() if "arch" not in key}
        each = reported("g", **labels, nccl__cuda="2.27")
        each = dataclasses.replace(each, labels=each.labels | {"fdl.dev/arch.sm_90": "true"})
        (row,) = rows(each)
        assert (row.vendor, row.devices, row.archs, row.variants) == ("nvidia", 2, ("sm_90",), ("cuda",))
        assert row.nccl == {"cuda": "2.27"} and row.ready and not row.problems

    def test_nodes_without_a_prober_are_not_in_it(self) -> None:
        assert rows(node("x", report_age=None)) == ()

    def test_an_old_report_is_a_problem_and_makes_it_unready(self) -> None:
        (row,) = rows(reported(age=901))
        (problem,) = row.problems
        assert not row.ready and problem.severity == "error" and problem.remedy
        assert (problem.check, problem.reason, problem.persistence) == ("report-age", "old", "transient")

    def test_a_report_of_the_future_is_no_evidence(self) -> None:
        (row,) = rows(reported(age=-901))
        assert not row.ready and row.problems[0].reason == "ahead"

    def test_a_problem_has_the_reason_and_the_class_of_its_finding(self) -> None:
        (row,) = rows(reported(checks=[GPU_DRIVER.found("nouveau", "the kernel says so")]))
        (problem,) = row.problems
        assert (problem.check, problem.reason, problem.persistence) == ("gpu-driver", "nouveau", "permanent")
        assert problem.to_dict()["class"] == "permanent"
        assert problem.remedy == GPU_DRIVER.finding("nouveau").remedy

    def test_a_problem_names_what_it_is_about(self) -> None:
        full = [DISK_SPACE.found("full", "less than 1 GiB is free", f"/volumes/{n}") for n in (0, 1)]
        shut = DEVICE_FILES.found("closed", "/dev/kfd has mode 0600", "/dev/kfd")
        (row,) = rows(reported(checks=[*full, shut]))
        assert [problem.message for problem in row.problems] == [
            "/volumes/0: less than 1 GiB is free",
            "/volumes/1: less than 1 GiB is free",
            "/dev/kfd has mode 0600",
        ]

    def test_a_quarantine_is_a_finding_like_any_other(self) -> None:
        spec = FdlClusterSpec.model_validate({"quarantine": {"nodes": [{"name": "g", "reason": "a noisy fan"}]}})
        asked = ClusterRecord("default", "u", 1, "1", spec, FdlClusterStatus())
        (row,) = describe(asked, [reported("g")], T0).nodes
        (problem,) = row.problems
        assert not row.ready and problem.message == "in quarantine: a noisy fan"
        assert (problem.check, problem.reason, problem.persistence) == ("quarantine", "by-people", "permanent")

    def test_findings_come_with_remedies(self) -> None:
        bad = Check(name="driver", severity="fail", message="no driver", remedy="install one", blocking=True)
        (row,) = rows(reported(checks=[bad, Check(name="ok", severity="pass", message="m")]))
        assert [(each.check, each.severity, each.remedy) for each in row.problems] == [
            ("driver", "error", "install one")
        ]

    def test_a_finding_that_keeps_nobody_away_is_a_warning(self) -> None:
        (row,) = rows(reported(checks=[Check(name="nccl", severity="fail", message="none", remedy="install it")]))
        assert [each.severity for each in row.problems] == ["warning"]

    def test_the_shared_volume_is_judged_by_what_the_nodes_see(self) -> None:
        def seen(name: str, digest: str) -> NodeRecord:
            time = datetime.datetime.fromtimestamp(T0 - 1, datetime.UTC)
            report = Report(node=name, time=time, ready=True, sentinel=Sentinel(path="/data/ok", sha256=digest))
            return node_of(report)

        def judged(*nodes: NodeRecord) -> tuple[str, str]:
            return state(describe(record(), nodes, T0), "SharedVolumeConsistent")

        assert judged(seen("a", "f00"), seen("b", "f00"), reported("c"))[0] == "True"
        status, message = judged(seen("a", "f00"), seen("b", "bad"), seen("c", ""))
        assert status == "False"
        assert "cannot be read on c" in message and "bad on b; f00 on a" in message

    def test_a_cordoned_node_is_not_ready(self) -> None:
        assert not rows(dataclasses.replace(reported(), unschedulable=True))[0].ready

    def test_counts_and_columns(self) -> None:
        status = describe(record(), [reported("a"), reported("b", gpu_vendor="amd", count__amd="4")], T0)
        assert (status.counts.total, status.counts.ready, status.counts.amd, status.counts.cpu) == (2, 2, 1, 1)
        assert (status.summary.nodes, status.summary.devices) == ("2/2", "4 amd")

    def test_a_quiet_minute_changes_nothing(self) -> None:
        first = describe(record(), [reported(age=100)], T0)
        newer = reported(age=70)
        assert describe(record(first), [newer], T0 + 30) == first

    @pytest.mark.parametrize("seconds", [1.0, 299.0, 300.0, 86_400.0])
    def test_reports_that_differ_only_in_their_times_change_nothing_however_long_it_goes_on(
        self, seconds: float
    ) -> None:
        bad = Check(name="driver", severity="fail", message="no driver", remedy="install one", blocking=True)

        def renewed(now: float) -> list[NodeRecord]:
            nodes = [reported("a", age=T0 - now + 5), reported("b", age=T0 - now + 200, checks=[bad])]
            return [dataclasses.replace(each, report_at=now - 5) for each in nodes]

        first = describe(record(), renewed(T0), T0)
        read_back = FdlClusterStatus.model_validate(first.to_dict())
        assert describe(record(read_back), renewed(T0 + seconds), T0 + seconds) == read_back

    def test_a_row_that_says_something_new_has_the_time_of_the_report_that_says_it(self) -> None:
        first = describe(record(), [reported("a", age=100), reported("b", age=100)], T0)
        changed = reported("a", age=40, count__amd="1")
        second = describe(record(first), [changed, reported("b", age=40)], T0).nodes
        assert [row.report_time for row in second] == [clock.render(T0 - 40), clock.render(T0 - 100)]

    @pytest.mark.parametrize(
        ("uid", "version", "newer"), [("u", "1", False), ("u", "10", True), ("u", "0", False), ("v", "1", True)]
    )
    def test_only_a_later_version_is_news(self, uid: str, version: str, newer: bool) -> None:
        seen = dataclasses.replace(record(), uid=uid, resource_version=version)
        assert seen.is_newer_than(record()) is newer


class TestDeepChecks:
    def existing(self, name: str, **fields: Any) -> PodRecord:
        return PodRecord("fdl-system", name, "u", "", "", "deep-check", created_at=T0, **fields)

    def test_a_wish_is_started_once(self) -> None:
        name = deep_pod_name("g", WISH)
        nodes = [reported(wishes=[WISH])]
        assert set(decide(SPEC, nodes, {}, set(), T0).start) == {name}
        assert not decide(SPEC, nodes, {name: self.existing(name)}, set(), T0).start
        assert not decide(SPEC, nodes, {}, {name}, T0).start

    def test_switched_off_nothing_starts(self) -> None:
        off = FdlClusterSpec.model_validate({"prober": {"deepCheck": False}})
        assert not decide(off, [reported(wishes=[WISH])], {}, set(), T0).start

    def test_a_pod_that_nobody_wants_any_more_is_deleted(self) -> None:
        done = self.existing("old", phase=PodPhase.SUCCEEDED)
        assert decide(SPEC, [reported()], {"old": done}, set(), T0).delete == [done]

    def test_one_that_never_starts_is_taken_back(self) -> None:
        name = deep_pod_name("g", WISH)
        waiting = self.existing(name)
        nodes = [reported(wishes=[WISH])]
        assert not decide(SPEC, nodes, {name: waiting}, set(), T0 + PENDING_SECONDS).delete
        assert decide(SPEC, nodes, {name: waiting}, set(), T0 + PENDING_SECONDS + 1).delete == [waiting]

    def test_only_a_few_run_at_a_time(self) -> None:
        nodes = [reported(f"n{n}", wishes=[WISH]) for n in range(20)]
        assert len(decide(SPEC, nodes, {}, set(), T0).start) == MAX_AT_ONCE

    @pytest.mark.parametrize(
        "change",
        [
            {"image": "evil/miner:1"},
            {"variant": "--help"},
            {"variant": "cpu"},
            {"vendor": "intel"},
            {"devices": -1},
            {"devices": 10**30},
            {"simulated": True},
        ],
        ids=str,
    )
    def test_a_node_cannot_ask_for_what_is_not_the_clusters(self, change: dict[str, Any]) -> None:
        asked = reported(wishes=[WISH.model_copy(update=change)])
        assert decide(SPEC, [asked], {}, set(), T0) == decide(SPEC, [reported()], {}, set(), T0)

    def test_simulated_devices_are_asked_for_with_the_cpu_image(self) -> None:
        wish = WISH.model_copy(update={"simulated": True, "image": "reg/cpu:1"})
        assert len(decide(SPEC, [reported(wishes=[wish])], {}, set(), T0).start) == 1

    def test_a_node_has_one_wish_a_variant(self) -> None:
        wishes = [WISH.model_copy(update={"attempt": n}) for n in range(5)]
        assert set(decide(SPEC, [reported(wishes=wishes)], {}, set(), T0).start) == {deep_pod_name("g", wishes[-1])}

    async def test_what_was_made_is_made_again_when_it_is_wanted_anew_or_never_answers(self) -> None:
        made: list[str] = []

        class Client:
            async def create(self, _resource: object, _namespace: str, body: dict[str, Any]) -> None:
                made.append(body["metadata"]["name"])

        checks = DeepChecks(Client(), Settings())  # type: ignore[arg-type]
        asks, quiet = [reported(wishes=[WISH])], [reported()]
        steps = [(asks, 0.0), (asks, 1.0), (quiet, 2.0), (asks, 3.0), (asks, 4.0), (asks, 3.0 + PENDING_SECONDS)]
        counts = []
        for nodes, after in steps:
            await checks.reconcile(SPEC, nodes, T0 + after)
            counts.append(len(made))
        assert counts == [1, 1, 1, 2, 2, 3] and len(set(made)) == 1

    @pytest.mark.parametrize(
        ("change", "command", "limits"),
        [
            ({}, [], {"nvidia.com/gpu": "2"}),
            ({"simulated": True}, ["--simulated"], None),
            ({"vendor": "cpu"}, [], None),
        ],
    )
    def test_the_pod(self, change: dict[str, Any], command: list[str], limits: dict[str, str] | None) -> None:
        wish = WISH.model_copy(update=change)
        body = pod("g", wish, Settings())
        container = body["spec"]["containers"][0]
        assert container["command"][:3] == ["python", "-m", "fdl_trainer.deepcheck"]
        assert container["command"][7:] == command and container["resources"].get("limits") == limits
        node_affinity = body["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert node_affinity["nodeSelectorTerms"][0]["matchFields"][0]["values"] == ["g"]
        assert body["metadata"]["name"] == deep_pod_name("g", wish)
