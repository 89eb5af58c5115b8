"""The CRDs on a real API server: what they take, keep, default, print and scale."""

import subprocess
from typing import Any

import pytest
import yaml

from fdl_api.cluster import FdlCluster
from fdl_api.run import FdlRun, FdlRunSpec

from .conftest import CRDS
from .harness import MERGE, ApiServer

RUNS = "/apis/fdl.dev/v1alpha1/namespaces/{}/fdlruns"
CLUSTERS = "/apis/fdl.dev/v1alpha1/fdlclusters"


def run(name: str = "run", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "fdl.dev/v1alpha1",
        "kind": "FdlRun",
        "metadata": {"name": name},
        "spec": {
            "trainer": {"source": {"configMap": {"name": "script"}}},
            "cohorts": [{"name": "cpu", "vendor": "cpu", "replicas": 2, "maxReplicas": 4}],
            **spec,
        },
    }


def created(server: ApiServer, namespace: str, manifest: dict[str, Any]) -> dict[str, Any]:
    answer = server.request("POST", RUNS.format(namespace), manifest, fieldValidation="Strict")
    assert answer.code == 201, answer.message
    return answer.body


def kubectl(server: ApiServer, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(server.bin / "kubectl"), "--kubeconfig", str(server.kubeconfig), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_server_and_the_model_fill_in_the_same_defaults(crds: ApiServer, namespace: str) -> None:
    manifest = run()
    stored = created(crds, namespace, manifest)
    assert FdlRunSpec.model_validate(stored["spec"]) == FdlRun.model_validate(manifest).spec


def test_what_the_model_writes_the_server_takes_and_keeps(crds: ApiServer, namespace: str) -> None:
    overlay = {
        "metadata": {"annotations": {"a": "b"}},
        "spec": {"containers": [{"name": "x", "anyField": [1, {"y": 2}]}]},
    }
    manifest = run(failurePolicy={"maxFailures": "10%"}, checkpoint={"claim": "c"})
    manifest["spec"]["cohorts"][0]["podTemplate"] = overlay
    spec = FdlRun.model_validate(manifest).spec
    stored = created(crds, namespace, {**manifest, "spec": spec.to_dict()})
    assert FdlRunSpec.model_validate(stored["spec"]) == spec
    assert stored["spec"]["cohorts"][0]["podTemplate"] == overlay


@pytest.mark.parametrize("kind", ["fdlruns", "fdlclusters"])
def test_applying_a_crd_again_changes_nothing(crds: ApiServer, kind: str) -> None:
    manifest = yaml.safe_load((CRDS / f"{kind}.yaml").read_text())
    where = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{kind}.fdl.dev"
    before = crds.request("GET", where).body["metadata"]["generation"]
    answer = crds.apply(where, manifest, manager="fdl-install")
    assert (answer.code, answer.body["metadata"]["generation"]) == (200, before)
    conditions = {each["type"]: each["status"] for each in answer.body["status"]["conditions"]}
    assert conditions.get("NonStructuralSchema", "False") == "False"
    assert conditions["NamesAccepted"] == "True"


def test_a_run_applied_twice_by_one_manager_does_not_conflict(crds: ApiServer, namespace: str) -> None:
    where = f"{RUNS.format(namespace)}/run"
    first = crds.apply(where, run(), manager="person")
    second = crds.apply(where, run(), manager="person")
    assert (first.code, second.code) == (201, 200)
    assert first.body["metadata"]["resourceVersion"] == second.body["metadata"]["resourceVersion"]


def test_an_unknown_key_is_refused_by_strict_validation(crds: ApiServer, namespace: str) -> None:
    manifest = run(runPolicy={"suspended": True})
    answer = crds.request("POST", RUNS.format(namespace), manifest, fieldValidation="Strict")
    assert answer.code == 400
    assert 'unknown field "spec.runPolicy.suspended"' in answer.message


def full_status() -> dict[str, Any]:
    time = "2026-01-02T03:04:05Z"
    return {
        "phase": "Recovering",
        "observedGeneration": 1,
        "conditions": [
            {
                "type": "Formed",
                "status": "True",
                "observedGeneration": 1,
                "lastTransitionTime": time,
                "reason": "Formed",
                "message": "2 members train.",
            }
        ],
        "replicas": 2,
        "selector": "fdl.dev/run=run",
        "attempt": 1,
        "summary": {
            "members": "1/2",
            "progress": "42%",
            "goodput": "0.93",
            "reason": "ReplacingMember",
            "message": "training goes on without cpu-0",
        },
        "members": [
            {
                "name": "run-cpu-0-1",
                "uid": "u",
                "cohort": "cpu",
                "ordinal": 0,
                "incarnation": 1,
                "node": "n",
                "variant": "cpu",
                "phase": "Failed",
                "reason": "NodeLost",
                "message": "m",
            }
        ],
        "cohorts": [{"name": "cpu", "wanted": 2, "ready": 1, "variant": "cpu", "nccl": "2.27"}],
        "counters": {"app": 1, "infrastructure": 2, "preemption": 3, "coordinator": 4},
        "seatCounters": [
            {"seat": "cpu-0", "app": 1, "infrastructure": 2, "preemption": 3, "inARow": 2, "endedAt": time}
        ],
        "nextIncarnations": {"cpu-0": 2},
        "coordinator": {"incarnation": 1, "podName": "run-coordinator-1", "podUid": "p", "node": "n"},
        "training": {
            "runUID": "r",
            "guard": {
                "divergence": 0.1,
                "latched": True,
                "counts": {"nudgeDown": 1},
                "last": [{"window": 2, "guard": "persistent", "action": "nudgeDown", "message": "D is 0.6."}],
            },
            "attempt": 1,
            "generation": 1,
            "epoch": 2,
            "window": 3,
            "dataEpoch": 1,
            "anchor": 10,
            "samples": 100,
            "totalSamples": 1000,
            "progress": 0.1,
            "samplesPerSecond": 12.5,
            "etaSeconds": 72.5,
            "goodput": 0.93,
            "loss": 0.5,
            "metrics": {"accuracy": 0.9},
            "deaths": 1,
            "staleMessages": 2,
            "checkpoint": {
                "lastDurableStep": 3,
                "samples": 100,
                "path": "x/3",
                "sizeBytes": 10,
                "verified": True,
                "savedAt": time,
                "final": True,
                "stallMs": 1.5,
            },
            "checkpointProblem": "full",
            "refusals": [{"member": "m", "reason": "ModelMismatch", "message": "s", "permanent": True}],
            "ranks": [{"member": "m", "localRank": 0, "msPerBatch": 4.5, "quota": 7, "share": 0.5, "data": "resident"}],
            "notes": ["3 shares for 2 ranks"],
            "lastHeard": time,
        },
        "templateHash": "h",
        "templateVersion": "0.1.0",
        "startTime": time,
        "attemptStartTime": time,
        "activeSeconds": 5,
        "completionTime": time,
    }


def all_fields_set(value: Any, model: Any) -> list[str]:
    """Fields of ``model`` (and below) that ``value`` leaves out."""
    missing = [name for name in type(value).model_fields if name not in value.model_fields_set]
    for name in type(value).model_fields:
        child = getattr(value, name)
        for each in child if isinstance(child, tuple) else [child]:
            if hasattr(each, "model_fields_set"):
                missing += all_fields_set(each, type(each))
    return missing


def test_no_field_of_a_status_is_pruned(crds: ApiServer, namespace: str) -> None:
    created(crds, namespace, run())
    status = full_status()
    parsed = FdlRun.model_validate({**run(), "status": status}).status
    assert all_fields_set(parsed, type(parsed)) == [], "the example must set every field"
    where = f"{RUNS.format(namespace)}/run/status"
    answer = crds.apply(where, {**run(), "status": status}, manager="fdl-operator")
    assert answer.code == 200, answer.message
    assert answer.body["status"] == status
    assert FdlRun.model_validate(answer.body).status == parsed


def test_no_field_of_a_cluster_status_is_pruned(crds: ApiServer) -> None:
    status = {
        "observedGeneration": 1,
        "conditions": [
            {
                "type": "NodesReady",
                "status": "False",
                "observedGeneration": 1,
                "lastTransitionTime": "2026-01-02T03:04:05Z",
                "reason": "NoReport",
                "message": "m",
            }
        ],
        "summary": {"nodes": "1/2", "devices": "2 nvidia"},
        "counts": {"total": 2, "ready": 1, "nvidia": 1, "amd": 0, "cpu": 1, "problems": 1},
        "quarantine": [
            {
                "name": "n",
                "source": "deep-check",
                "reason": "r",
                "since": "2026-01-02T03:04:05Z",
                "until": "2026-01-03T03:04:05Z",
                "tainted": True,
            }
        ],
        "nodes": [
            {
                "name": "n",
                "vendor": "nvidia",
                "devices": 2,
                "archs": ["sm_90"],
                "nccl": {"cuda": "2.27"},
                "variants": ["cuda"],
                "simulated": True,
                "ready": True,
                "reportTime": "2026-01-02T03:04:05Z",
                "problems": [
                    {
                        "check": "driver",
                        "reason": "not-loaded",
                        "severity": "error",
                        "class": "permanent",
                        "message": "m",
                        "remedy": "r",
                    }
                ],
            }
        ],
    }
    manifest = {"apiVersion": "fdl.dev/v1alpha1", "kind": "FdlCluster", "metadata": {"name": "default"}, "spec": {}}
    parsed = FdlCluster.model_validate({**manifest, "status": status}).status
    assert all_fields_set(parsed, type(parsed)) == []
    assert crds.apply(f"{CLUSTERS}/default", manifest).code == 201
    answer = crds.apply(f"{CLUSTERS}/default/status", {**manifest, "status": status}, manager="fdl-operator")
    assert answer.code == 200, answer.message
    assert answer.body["status"] == status
    shown = kubectl(crds, "get", "fdc")
    assert shown.stdout.splitlines()[0].split() == ["NAME", "NODES", "DEVICES", "AGE"]
    assert crds.request("DELETE", f"{CLUSTERS}/default").code == 200


def test_a_write_of_the_object_leaves_its_status_alone(crds: ApiServer, namespace: str) -> None:
    stored = created(crds, namespace, run())
    answer = crds.request("PUT", f"{RUNS.format(namespace)}/run", {**stored, "status": {"phase": "Succeeded"}})
    assert (answer.code, answer.body.get("status")) == (200, None)


def test_kubectl_scales_prints_and_finds_runs_by_every_name(crds: ApiServer, namespace: str) -> None:
    created(crds, namespace, run())
    status = {"replicas": 2, "selector": "fdl.dev/run=run", "phase": "Running", "summary": {"members": "2/2"}}
    where = f"{RUNS.format(namespace)}/run"
    assert crds.request("PATCH", f"{where}/status", {"status": status}, MERGE).code == 200

    # The server cannot show a scale without a wish: an HPA needs one, kubectl does not.
    assert '".spec.replicas" does not exist' in crds.request("GET", f"{where}/scale").message
    scaled = kubectl(crds, "-n", namespace, "scale", "fdlrun/run", "--replicas=4")
    assert scaled.returncode == 0, scaled.stderr
    assert crds.request("GET", where).body["spec"]["replicas"] == 4
    scale = crds.request("GET", f"{where}/scale").body
    assert (scale["spec"], scale["status"]) == ({"replicas": 4}, {"replicas": 2, "selector": "fdl.dev/run=run"})
    beyond = kubectl(crds, "-n", namespace, "scale", "fdr/run", "--replicas=99")
    assert beyond.returncode == 0, "a wish beyond the bounds is clamped by the operator, not refused"

    header, line = kubectl(crds, "-n", namespace, "get", "fdl").stdout.splitlines()[:2]
    assert header.split() == ["NAME", "PHASE", "MODE", "MEMBERS", "PROGRESS", "GOODPUT", "REASON", "AGE"]
    assert line.split()[:4] == ["fdlrun.fdl.dev/run", "Running", "cpu-cadence", "2/2"]


def test_the_largest_run_stays_within_the_cost_that_a_rule_may_have(crds: ApiServer, namespace: str) -> None:
    def item(number: int) -> dict[str, Any]:
        return {
            "name": f"c{number:02}" + "x" * 17,
            "vendor": "nvidia",
            "replicas": 100,
            "nodeSelector": {f"k{key}": "v" * 63 for key in range(32)},
            "tolerations": [{"key": f"t{key}", "operator": "Exists"} for key in range(32)],
            "podTemplate": {"spec": {"x": ["y" * 1000] * 20}},
        }

    manifest = run(
        "r" * 31,
        cohorts=[item(number) for number in range(16)],
        trainer={
            "source": {"configMap": {"name": "script"}},
            "args": ["a" * 1000] * 256,
            "env": [{"name": f"V{number}", "value": "v" * 4096} for number in range(128)],
        },
    )
    stored = created(crds, namespace, manifest)
    stored["spec"]["replicas"] = 7
    answer = crds.request("PUT", f"{RUNS.format(namespace)}/{'r' * 31}", stored)
    assert answer.code == 200, answer.message
