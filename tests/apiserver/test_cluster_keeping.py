"""FdlCluster/default against a real API server: Events on transitions, few writes, quarantine and its taint."""

import asyncio
import datetime
import functools
import json
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from fdl_api.report import Report
from fdl_operator import rbac

from .harness import MERGE, ApiServer
from .operating import CLUSTER, Bench, ensure_node, operating, with_rights

REPOSITORY = Path(__file__).parents[2]
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
PLACES = {
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "ValidatingAdmissionPolicy": f"{ADMISSION}/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": f"{ADMISSION}/validatingadmissionpolicybindings",
}


@pytest.fixture
async def bench(crds: ApiServer, namespace: str) -> AsyncIterator[Bench]:
    """A namespace, and a node of its own name whose prober has reported. Neither it nor the cluster object stays."""
    await ensure_node(crds, namespace, {"fdl.dev/ready": "true", "fdl.dev/variant.cpu": "covers"})
    made = Bench(crds, namespace)
    await report(made, datetime.datetime.now(datetime.UTC))
    yield made
    await asyncio.to_thread(crds.request, "DELETE", f"/api/v1/nodes/{namespace}")
    await asyncio.to_thread(crds.request, "DELETE", CLUSTER)


async def report(bench: Bench, time: datetime.datetime) -> None:
    text = Report(node=bench.namespace, time=time, ready=True).render()
    await node(bench, {"metadata": {"annotations": {"fdl.dev/report": text}}})


async def node(bench: Bench, change: dict[str, Any] | None = None) -> dict[str, Any]:
    path = f"/api/v1/nodes/{bench.namespace}"
    if change is None:
        return await bench.call("GET", path)
    return await bench.call("PATCH", path, change, content_type=MERGE)


async def row(bench: Bench) -> dict[str, Any]:
    rows = (await bench.cluster_status()).get("nodes") or []
    return next((each for each in rows if each["name"] == bench.namespace), {})


async def confined(bench: Bench) -> dict[str, Any]:
    rows = (await bench.cluster_status()).get("quarantine") or []
    return next((each for each in rows if each["name"] == bench.namespace), {})


async def taints(bench: Bench) -> set[tuple[str, str]]:
    found = (await node(bench))["spec"].get("taints") or []
    return {(taint["key"], taint.get("value", "")) for taint in found}


async def events(bench: Bench, reason: str) -> list[dict[str, Any]]:
    found = await bench.call("GET", "/apis/events.k8s.io/v1/namespaces/default/events")
    return [each for each in found["items"] if each["regarding"]["kind"] == "FdlCluster" and each["reason"] == reason]


async def set_quarantine(bench: Bench, content: dict[str, Any] | None) -> None:
    await bench.call("PATCH", CLUSTER, {"spec": {"quarantine": content}}, content_type=MERGE)


async def test_transitions_are_events_and_people_can_read_the_object(bench: Bench) -> None:
    async with operating(bench.server, bench.namespace) as operator:
        await bench.until(lambda: row(bench), lambda found: found.get("ready"), "the node is not in the table")
        before = len(await events(bench, "NodesNotReady"))
        await report(bench, datetime.datetime.now(datetime.UTC) - datetime.timedelta(hours=1))
        await bench.until(lambda: row(bench), lambda found: not found.get("ready"), "an old report counts")
        found = await bench.until(
            lambda: events(bench, "NodesNotReady"), lambda found: len(found) > before, "no Event says so"
        )
        assert bench.namespace in found[-1]["note"] and "older than" in found[-1]["note"]
        await operator.at_rest(1.5)
        told = len(await events(bench, "NodesNotReady"))
        await node(bench, {"metadata": {"labels": {"fdl.dev/libtorch-coverage": "full"}}})
        await operator.at_rest(1.5)
        assert len(await events(bench, "NodesNotReady")) == told, "what goes on is no news"
    shown = await asyncio.to_thread(
        subprocess.run,
        [str(bench.server.bin / "kubectl"), "--kubeconfig", str(bench.server.kubeconfig), "describe", "fdc", "default"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "new members are kept off" in shown.stdout and "VariantCoverage" in shown.stdout


@pytest.mark.parametrize("time", ["0001-01-01T00:00:00", "9999-12-31T23:59:59-23:59"])
async def test_a_node_that_says_nonsense_stops_neither_the_start_nor_the_table(bench: Bench, time: str) -> None:
    """Labels and the report are data from outside: anybody who may change a node can write what they like."""
    wish = {"variant": "x", "vendor": "intel", "image": "not-the-clusters:1", "fingerprint": "f"}
    told = {"node": bench.namespace, "time": time, "ready": True, "deepWanted": [wish]}
    tags = {"fdl.dev/arch.SM_90": "true", "fdl.dev/count.nvidia": "9" * 63, "fdl.dev/nccl.cuda": "9" * 63}
    tags |= {f"fdl.dev/variant.v{number}": "covers" for number in range(40)}
    await node(bench, {"metadata": {"labels": tags, "annotations": {"fdl.dev/report": json.dumps(told)}}})
    async with operating(bench.server, bench.namespace):
        found = await bench.until(lambda: row(bench), bool, "the node is not in the table")
        assert not found.get("ready") and found["problems"][0]["check"] == "report-age"
        text = json.dumps(told | {"time": datetime.datetime.now(datetime.UTC).isoformat()})
        await node(bench, {"metadata": {"annotations": {"fdl.dev/report": text}}})
        await bench.until(lambda: row(bench), lambda found: found.get("ready"), "a sound report does not count")
        await set_quarantine(bench, {"nodes": [{"name": bench.namespace, "reason": "bad fan"}]})
        await bench.until(lambda: confined(bench), bool, "the table stands still")
        pods = await bench.call("GET", "/api/v1/pods", labelSelector="fdl.dev/role=deep-check")
        assert not [pod for pod in pods["items"] if "not-the-clusters" in pod["spec"]["containers"][0]["image"]]


async def test_many_changes_are_at_most_one_write_a_second(bench: Bench) -> None:
    async with operating(bench.server, bench.namespace) as operator:
        await operator.at_rest(1.5)
        before, start = operator.client.calls["PATCH", "fdlclusters"], time.monotonic()
        for number in range(40):
            await node(bench, {"metadata": {"labels": {"fdl.dev/count.amd": str(number)}}})
            await asyncio.sleep(0.1)
        await operator.at_rest(1.5)
        writes, seconds = operator.client.calls["PATCH", "fdlclusters"] - before, time.monotonic() - start
        assert (await row(bench))["devices"] == 39
    assert 1 <= writes <= seconds + 1


async def test_a_node_in_quarantine_is_kept_out_and_tainted_and_comes_back(bench: Bench) -> None:
    async with operating(bench.server, bench.namespace):
        await node(bench, {"spec": {"taints": [{"key": "team", "value": "x", "effect": "PreferNoSchedule"}]}})
        await set_quarantine(bench, {"nodes": [{"name": bench.namespace, "reason": "bad fan"}]})
        found = await bench.until(lambda: confined(bench), bool, "it is not in status.quarantine")
        assert (found["source"], found["reason"], found.get("tainted", False)) == ("spec", "bad fan", False)
        assert await taints(bench) == {("team", "x")}
        await set_quarantine(bench, {"nodes": [{"name": bench.namespace, "reason": "bad fan"}], "taint": True})
        await bench.until(lambda: confined(bench), lambda found: found.get("tainted"), "it was not tainted")
        assert await taints(bench) == {("team", "x"), ("fdl.dev/quarantine", "spec")}
        await set_quarantine(bench, None)
        await bench.until(lambda: taints(bench), lambda found: found == {("team", "x")}, "the taint stayed")
        await bench.until(lambda: row(bench), lambda found: found.get("ready"), "the node did not come back")


def rendered(server: ApiServer, release: str) -> list[dict[str, Any]]:
    command = [str(server.bin / "helm"), "template", release, str(REPOSITORY / "charts/fdl"), "--namespace", release]
    command += ["--set", "operator.taintNodes=true", "--show-only", "templates/operator-taints.yaml"]
    text = subprocess.run(command, check=True, capture_output=True, timeout=60, text=True).stdout
    return [manifest for manifest in yaml.safe_load_all(text) if manifest]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another taint": (
        {"spec": {"taints": [{"key": "evil", "effect": "NoExecute"}]}},
        "may change only the taint fdl.dev/quarantine",
    ),
    "an evicting taint": (
        {"spec": {"taints": [{"key": "fdl.dev/quarantine", "value": "spec", "effect": "NoExecute"}]}},
        "only with the effect NoSchedule",
    ),
    "cordon": ({"spec": {"unschedulable": True}}, "may not change anything else in a Node's spec"),
    "a provider": ({"spec": {"providerID": "x://y"}}, "may not change anything else in a Node's spec"),
    "a label": ({"metadata": {"labels": {"fdl.dev/ready": "false"}}}, "may not change a Node's labels"),
    "an annotation": ({"metadata": {"annotations": {"fdl.dev/report": "{}"}}}, "may not change a Node's labels"),
    "a finalizer": ({"metadata": {"finalizers": ["fdl.dev/x"]}}, "may not change a Node's labels"),
}


async def test_with_the_charts_right_it_can_taint_and_change_nothing_else(bench: Bench) -> None:
    manifests = rendered(bench.server, bench.namespace)
    made = [f"{PLACES[each['kind']]}/{each['metadata']['name']}" for each in manifests]
    try:
        for where, manifest in zip(made, manifests, strict=True):
            answer = await asyncio.to_thread(bench.server.apply, where, manifest)
            assert answer.code == 201, answer.message
        account = next(each["subjects"][0]["name"] for each in manifests if each["kind"] == "ClusterRoleBinding")
        rules = [rule.render() for rule in rbac.CLUSTER_RULES]
        own = [rule.render() for rule in rbac.namespace_rules("fdl-operator")]
        limited = await with_rights(bench.server, bench.namespace, rules, own, account)
        path = f"/api/v1/nodes/{bench.namespace}"

        async def refusal(change: dict[str, Any]) -> str:
            answer = await asyncio.to_thread(limited.request, "PATCH", path, change, MERGE, dryRun="All")
            return answer.message

        for story, (change, sentence) in REFUSED.items():
            # Roles and policies reach the server's own caches a moment after they are written.
            await bench.until(
                functools.partial(refusal, change), lambda said, expected=sentence: expected in said, story
            )
        async with operating(limited, bench.namespace):
            await set_quarantine(bench, {"nodes": [{"name": bench.namespace}], "taint": True})
            await bench.until(lambda: taints(bench), lambda found: ("fdl.dev/quarantine", "spec") in found, "no taint")
            await set_quarantine(bench, None)
            await bench.until(lambda: taints(bench), lambda found: not found, "the taint stayed")
    finally:
        for where in made:
            await asyncio.to_thread(bench.server.request, "DELETE", where)


async def test_without_the_right_it_says_so_once_and_keeps_the_node_out(bench: Bench) -> None:
    rules = [rule.render() for rule in rbac.CLUSTER_RULES]
    own = [rule.render() for rule in rbac.namespace_rules("fdl-operator")]
    limited = await with_rights(bench.server, bench.namespace, rules, own)
    before = len(await events(bench, "TaintRefused"))
    async with operating(limited, bench.namespace) as operator:
        await set_quarantine(bench, {"nodes": [{"name": bench.namespace}], "taint": True})
        found = await bench.until(lambda: confined(bench), bool, "it is not in status.quarantine")
        assert not found.get("tainted")
        await bench.until(lambda: events(bench, "TaintRefused"), lambda found: len(found) > before, "nobody is told")
        await node(bench, {"metadata": {"labels": {"fdl.dev/libtorch-coverage": "full"}}})
        await operator.at_rest(1.5)
        assert len(await events(bench, "TaintRefused")) == before + 1
    assert await taints(bench) == set()


async def test_a_deleted_cluster_object_comes_back_and_runs_go_on(bench: Bench) -> None:
    async with operating(bench.server, bench.namespace) as operator:
        await bench.create()
        names = ("run-coordinator-1", "run-cpu-0-1", "run-cpu-1-1")
        before = await bench.has_pods(*names)
        await operator.at_rest()
        uid = (await bench.call("GET", CLUSTER))["metadata"]["uid"]
        await bench.call("DELETE", CLUSTER)

        async def found() -> dict[str, Any]:
            answer = await asyncio.to_thread(bench.server.request, "GET", CLUSTER)
            return answer.body if answer.code == 200 else {}

        again = await bench.until(
            found, lambda item: item.get("metadata", {}).get("uid") not in (None, uid), "it was not made again"
        )
        assert [each["name"] for each in again["spec"]["variants"]] == ["cpu"]
        await operator.at_rest()
        after = await bench.pods()
    assert {name: after[name]["metadata"]["uid"] for name in names} == {
        name: before[name]["metadata"]["uid"] for name in names
    }
