"""How nodes are judged for people."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from fdl_api.checks import conditions as catalogue
from fdl_api.checks.conditions import finding, joined
from fdl_api.cluster_nodes import mark
from fdl_api.report import Check, DeepFacts, Device
from fdl_cli.fdlcluster import read
from fdl_cli.probe.rows import CONDITIONS, Problem, Survey, natural, prober_pods, records, span, survey

from ..nodes import CONTROL_PLANE, NOW, cluster, cpu, gpu, node, report

GAP = Check(name="kernel-coverage", severity="fail", subject="nvidia 0", message="no kernels", remedy="Add an image.")


def look(*nodes: dict[str, Any], pods: Any = None, where: Any = None, only: str = "") -> Survey:
    return survey(records(nodes), read(where if where is not None else cluster()), pods, NOW.timestamp(), only)


def test_a_good_cluster_is_good() -> None:
    found = look(gpu("gpu-1"), cpu("cpu-1"), node("control", taints=CONTROL_PLANE))
    assert found.good and found.problems == ()
    assert {row.name: row.state for row in found.rows} == {
        "control": "not probed",
        "cpu-1": "ready",
        "gpu-1": "ready",
    }
    row = found.rows[-1]
    assert (dict(row.devices), row.archs, dict(row.nccl)) == ({"nvidia": 2}, ("sm_90",), {"cuda": "2.28"})
    assert dict(row.variants) == {"cuda": "verified"} and row.age == 30


@pytest.mark.parametrize(
    ("change", "state", "check"),
    [
        ({"age": 901}, "stale", "report-age"),
        ({"ready": "false"}, "not ready", ""),
        ({"cordon": True}, "not ready", "node"),
        ({"kubelet": False}, "not ready", "node"),
        ({"quarantine": True}, "not ready", "quarantine"),
        ({"report": False}, "stale", "report-age"),
        ({"bare": True}, "no report", "report-missing"),
    ],
)
def test_each_way_not_to_be_ready_has_its_state_and_its_problem(change: dict[str, Any], state: str, check: str) -> None:
    made = gpu("n", change.get("age", 30), ready=change.get("ready", "true"))
    where = cluster()
    if change.get("cordon"):
        made["spec"]["unschedulable"] = True
    if change.get("kubelet") is False:
        made["status"]["conditions"][0]["status"] = "False"
    if change.get("quarantine"):
        where["status"]["quarantine"] = [
            {"name": "n", "source": "spec", "reason": "broken fan", "since": "2026-03-01T00:00:00Z"}
        ]
    if change.get("report") is False:
        made["metadata"]["annotations"] = {}
    found = look(node("n") if change.get("bare") else made, where=where)
    assert not found.good
    assert found.rows[0].state == state
    assert [problem.check for problem in found.problems] == ([check] if check else [])
    assert all(problem.remedy for problem in found.problems)


def test_a_warning_is_no_problem_and_what_could_not_be_looked_at_is_one() -> None:
    warned = Check(name="clock", severity="warn", message="late", remedy="Run chrony.")
    assert look(cpu("a", 30, warned)).good
    assert not look(cpu("a", 30, warned.model_copy(update={"severity": "unknown"}))).good


def test_a_failing_check_is_told_also_where_the_node_is_ready() -> None:
    found = look(gpu("a", 30, GAP))
    assert found.rows[0].state == "ready" and not found.good
    assert found.problems == (Problem("a", "kernel-coverage", "fail", "no kernels", "Add an image.", "nvidia 0"),)


def test_the_age_limit_is_the_clusters() -> None:
    limit = cluster(prober={"reportMaxAgeSeconds": 60})
    assert look(cpu("a", 61), where=limit).rows[0].state == "stale"
    assert look(cpu("a", 61)).rows[0].state == "ready"


def pod(name: str, on: str, reason: str = "") -> dict[str, Any]:
    status: dict[str, Any] = {"phase": "Running"}
    if reason:
        status["containerStatuses"] = [{"state": {"waiting": {"reason": reason}}}]
    return {"metadata": {"namespace": "fdl-system", "name": name}, "spec": {"nodeName": on}, "status": status}


def test_a_missing_report_names_the_prober_pod_that_should_have_made_it() -> None:
    pods = prober_pods([pod("p1", "a"), pod("p2", "a", "CrashLoopBackOff"), pod("p3", "a"), pod("p4", "")])
    found = look(node("a"), node("b"), pods=pods)
    remedies = {problem.node: problem.remedy for problem in found.problems}
    assert remedies["a"] == "its prober pod is CrashLoopBackOff: see kubectl logs -n fdl-system p2"
    assert "no prober pod is on it: see prober.nodeSelector and prober.tolerations" in remedies["b"]
    unreadable = look(node("a"), pods=None)
    assert "kubectl get pods -A -l fdl.dev/role=prober" in unreadable.problems[0].remedy


def test_a_cluster_without_probers_is_told_once() -> None:
    found = look(node("a"), node("b"), pods={})
    assert [(problem.node, problem.check) for problem in found.problems] == [("", "prober")]
    assert "prober.enabled=true" in found.problems[0].remedy and not found.good


def test_a_missing_cluster_object_is_told_and_an_unreadable_one_is_not_in_the_way() -> None:
    missing = survey(records([cpu("a")]), None, None, NOW.timestamp())
    assert [problem.check for problem in missing.problems] == ["cluster"] and "operator" in missing.problems[0].remedy
    odd = look(cpu("a"), where={"spec": {"variants": 3, "prober": {"new": 1}}})
    assert odd.rows[0].state == "ready" and odd.good
    assert [(problem.check, problem.severity) for problem in odd.problems] == [("cluster", "warn")]
    assert "does not know spec.prober.new, spec.variants of FdlCluster/default" in odd.problems[0].message


@pytest.mark.parametrize(
    ("judged_by", "age", "told"),
    [("", 30, []), ("now", 30, []), ("before", 30, ["cluster"]), ("before", 5000, ["report-age"])],
)
def test_a_node_that_was_not_looked_at_since_the_variants_changed_says_so(
    judged_by: str, age: float, told: list[str]
) -> None:
    """What its report says of variants is of before; one that is too old says nothing at all."""
    where = cluster()
    node = cpu("a", age)
    made = json.loads(node["metadata"]["annotations"]["fdl.dev/report"])
    made["judgedBy"] = mark(where["spec"]) if judged_by == "now" else judged_by
    node["metadata"]["annotations"]["fdl.dev/report"] = json.dumps(made)
    found = look(node, where=where)
    assert [problem.check for problem in found.problems] == told and found.good is not bool(told)
    if told == ["cluster"]:
        assert found.problems[0].severity == "unknown" and "kubectl annotate node a" in found.problems[0].remedy


def test_conditions_that_say_more_than_the_nodes_are_told() -> None:
    where = cluster(
        ("NodesReady", "False", "a"),
        ("NCCLConsistent", "False", "2.27 on a"),
        ("FabricKnown", "False", "no group"),
        ("SharedVolumeConsistent", "Unknown", "c"),
        ("ClocksAgree", "False", "the clock of a"),
    )
    found = look(cpu("a"), where=where)
    assert [(problem.check, problem.severity) for problem in found.problems] == [
        ("NCCLConsistent", "fail"),
        ("FabricKnown", "warn"),
        ("ClocksAgree", "warn"),
    ]


@pytest.mark.parametrize("kind", CONDITIONS)
def test_a_condition_that_is_false_is_as_bad_as_the_catalogue_says(kind: str) -> None:
    assert {entry.severity for entry in catalogue.CONDITIONS[kind]} - {"unknown"} == {CONDITIONS[kind]}


def test_one_node_is_told_alone_with_what_concerns_the_cluster() -> None:
    where = cluster(("NCCLConsistent", "False", "skew"))
    found = look(gpu("a", 30, GAP), gpu("b", 30, GAP), where=where, only="b")
    assert [row.name for row in found.rows] == ["b"]
    assert [problem.node for problem in found.problems] == ["", "b"]


def test_names_are_sorted_as_people_count() -> None:
    assert sorted(["gpu-10", "gpu-2", "cpu", "gpu-1-b", "gpu-1"], key=natural) == [
        *("cpu", "gpu-1", "gpu-1-b", "gpu-2", "gpu-10"),
    ]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (119.9, "119 s"), (120, "2 min"), (7199, "119 min"), (7200, "2 h"), (172800, "2 d"), (1e7, "115 d")],
)
def test_times_have_one_unit(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_a_node_with_the_recorded_h200s_is_shown_as_it_is() -> None:
    """What the two-H200 machine's deep check said, on a node as its prober labels it."""
    path = Path(__file__).parents[2] / "prober" / "data" / "h200.json"
    facts = DeepFacts.model_validate(json.loads(path.read_text())["deepcheck"])
    devices = tuple(Device(vendor="nvidia", index=each.index, name=each.name, arch=each.arch) for each in facts.devices)
    made = report("h200", devices=devices)
    version = ".".join(facts.nccl_version.split(".")[:2])
    found = look(
        node(
            "h200",
            made,
            ready="true",
            gpu_vendor="nvidia",
            count__nvidia=str(len(devices)),
            arch__sm_90="true",
            variant__gpu="verified",
            nccl__gpu=version,
        )
    )
    row = found.rows[0]
    assert (row.state, dict(row.devices), row.archs) == ("ready", {"nvidia": 2}, ("sm_90",))
    assert dict(row.nccl) == {"gpu": "2.28"} and found.good


def test_problems_are_values() -> None:
    assert dataclasses.asdict(Problem("a", "b", "fail", "c"))["blocking"] is False


def test_a_failed_condition_has_the_remedy_of_the_catalogue_and_says_it_once() -> None:
    entry = finding("NCCLConsistent", "VersionSkew")
    assert entry is not None
    where = cluster(("NCCLConsistent", "False", joined("2.26 on a; 2.28 on b", entry)))
    where["status"]["conditions"][0]["reason"] = "VersionSkew"
    (problem,) = look(cpu("a"), where=where).problems
    assert (problem.message, problem.remedy, problem.reason) == ("2.26 on a; 2.28 on b", entry.remedy, "VersionSkew")
