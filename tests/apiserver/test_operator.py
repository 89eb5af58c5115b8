"""The operator's promises on a real API server. No kubelet runs: the tests do to pods what one would."""

import asyncio
from typing import Any

import pytest

from fdl_api.termination import Cause, Termination
from fdl_operator import rbac
from fdl_operator.settings import Limits

from .harness import ApiServer
from .operating import Bench, conditions, ensure_node, operating, process, with_rights


@pytest.fixture
async def bench(crds: ApiServer, namespace: str) -> Bench:
    await ensure_node(crds, "node-1")
    return Bench(crds, namespace)


async def test_a_run_gets_all_its_objects_and_the_server_takes_them(bench: Bench) -> None:
    async with operating(bench.server, bench.namespace) as operator:
        await bench.create(join={"minMembers": 1})
        pods = await bench.has_pods("run-coordinator-1", "run-cpu-0-1", "run-cpu-1-1")
        await operator.at_rest()
        secret = await bench.call("GET", bench.core("secrets", "run-run"))
        config = await bench.call("GET", bench.core("configmaps", "run-run"))
        service = await bench.call("GET", bench.core("services", "run-coordinator"))
        await bench.call("GET", f"/apis/networking.k8s.io/v1/namespaces/{bench.namespace}/networkpolicies/run-run")
        budget = await bench.call("GET", f"/apis/policy/v1/namespaces/{bench.namespace}/poddisruptionbudgets/run-run")
        run = await bench.run()
    assert set(secret["data"]) == {"token", "ca.crt", "tls.crt", "tls.key"}
    assert '"attempt": 1' in config["data"]["run.json"]
    assert service["spec"]["publishNotReadyAddresses"] and service["spec"]["selector"]["fdl.dev/incarnation"] == "1"
    assert budget["spec"]["minAvailable"] == 1
    for child in [secret, config, service, budget, *pods.values()]:
        owner = child["metadata"]["ownerReferences"][0]
        assert (owner["uid"], owner["controller"]) == (run["metadata"]["uid"], True)
        assert "blockOwnerDeletion" not in owner or not owner["blockOwnerDeletion"]
    assert run["status"]["phase"] == "Starting" and run["status"]["attempt"] == 1


async def test_a_run_carries_neither_finalizer_nor_annotation(bench: Bench) -> None:
    async with operating(bench.server, bench.namespace) as operator:
        await bench.create()
        await bench.has_pods("run-cpu-1-1")
        await operator.at_rest()
        run = await bench.run()
    assert not run["metadata"].get("finalizers") and not run["metadata"].get("annotations")


async def test_reconciling_without_a_change_sends_nothing(bench: Bench) -> None:
    async with operating(bench.server, bench.namespace) as operator:
        await bench.create()
        await bench.has_pods("run-cpu-1-1", "run-cpu-0-1", "run-coordinator-1")
        await operator.at_rest(1.0)
        before, calls = bench.writes(), sum(operator.client.calls.values())
        assert before, "what it wrote is in the audit log"
        engine = operator.operator.engine
        assert engine is not None
        leases = operator.client.calls["GET", "leases"] + operator.client.calls["PUT", "leases"]
        for _ in range(5):
            await engine.reconcile((bench.namespace, "run"))
        leases_after = operator.client.calls["GET", "leases"] + operator.client.calls["PUT", "leases"]
        assert sum(operator.client.calls.values()) - calls == leases_after - leases
    assert [entry["verb"] for entry in bench.writes()[len(before) :]] == []


async def test_a_restarted_operator_changes_nothing_and_makes_nothing_twice(bench: Bench) -> None:
    async with operating(bench.server, bench.namespace) as operator:
        await bench.create()
        await bench.has_pods("run-cpu-1-1", "run-cpu-0-1", "run-coordinator-1")
        await operator.at_rest(1.0)
    before = bench.writes()
    assert before, "what it wrote is in the audit log"
    async with operating(bench.server, bench.namespace) as operator:
        await operator.at_rest(1.0)
        assert set(await bench.pods()) == {"run-coordinator-1", "run-cpu-0-1", "run-cpu-1-1"}
    assert [(entry["verb"], entry["objectRef"]["resource"]) for entry in bench.writes()[len(before) :]] == []


async def test_a_dead_member_is_replaced_under_a_new_name(bench: Bench) -> None:
    async with operating(bench.server, bench.namespace) as operator:
        await bench.create()
        await bench.has_pods("run-cpu-0-1", "run-cpu-1-1")
        await bench.place("run-cpu-0-1", "node-1")
        await bench.end("run-cpu-0-1", 137)
        await bench.has_pods("run-cpu-0-2")
        await operator.at_rest()
        run = await bench.run()
    assert run["status"]["counters"]["infrastructure"] == 1
    assert run["status"]["nextIncarnations"] == {"cpu-0": 2, "cpu-1": 1}


async def test_a_deleted_member_is_replaced_and_no_budget_of_faults_pays(bench: Bench) -> None:
    async with operating(bench.server, bench.namespace) as operator:
        await bench.create()
        await bench.has_pods("run-cpu-0-1", "run-cpu-1-1")
        await bench.place("run-cpu-1-1", "node-1")
        await operator.at_rest()
        await bench.delete_pod("run-cpu-1-1")
        await bench.has_pods("run-cpu-1-2")
        await operator.at_rest()
        counters = (await bench.run())["status"]["counters"]
    assert (counters["app"], counters["infrastructure"], counters["preemption"]) == (0, 0, 1)


async def test_a_lost_coordinator_is_replaced_and_no_trainer_is_touched(bench: Bench) -> None:
    async with operating(bench.server, bench.namespace) as operator:
        await bench.create()
        await bench.has_pods("run-coordinator-1", "run-cpu-0-1", "run-cpu-1-1")
        await operator.at_rest()
        await bench.delete_pod("run-coordinator-1")
        await bench.has_pods("run-coordinator-2", "run-cpu-0-1", "run-cpu-1-1")
        await operator.at_rest()
        service = await bench.call("GET", bench.core("services", "run-coordinator"))
        assert set(await bench.pods()) == {"run-coordinator-2", "run-cpu-0-1", "run-cpu-1-1"}
    assert service["spec"]["selector"]["fdl.dev/incarnation"] == "2"


async def test_objects_that_are_deleted_by_hand_come_back_as_they_were_and_no_pod_is_touched(bench: Bench) -> None:
    objects = {
        "secrets": bench.core("secrets", "run-run"),
        "configmaps": bench.core("configmaps", "run-run"),
        "services": bench.core("services", "run-coordinator"),
        "networkpolicies": f"/apis/networking.k8s.io/v1/namespaces/{bench.namespace}/networkpolicies/run-run",
        "poddisruptionbudgets": f"/apis/policy/v1/namespaces/{bench.namespace}/poddisruptionbudgets/run-run",
    }
    async with operating(bench.server, bench.namespace, limits=Limits(secret_check=1.0)) as operator:
        await bench.create(join={"minMembers": 1})
        await bench.has_pods("run-coordinator-1", "run-cpu-0-1", "run-cpu-1-1")
        for pod in ("run-cpu-0-1", "run-cpu-1-1"):
            await bench.place(pod, "node-1")
        await operator.at_rest()
        before = {kind: await bench.call("GET", path) for kind, path in objects.items()}
        uids = {name: pod["metadata"]["uid"] for name, pod in (await bench.pods()).items()}
        for path in objects.values():
            await bench.call("DELETE", path)
        for kind, path in objects.items():

            async def body(path: str = path) -> dict[str, Any]:
                return (await asyncio.to_thread(bench.server.request, "GET", path)).body

            def is_new(found: dict[str, Any], kind: str = kind) -> bool:
                return found.get("metadata", {}).get("uid") not in (None, before[kind]["metadata"]["uid"])

            after = await bench.until(body, is_new, f"no new object of {kind}")
            assert after.get("data") == before[kind].get("data")
        assert {name: pod["metadata"]["uid"] for name, pod in (await bench.pods()).items()} == uids
        assert (await bench.run())["status"]["attempt"] == 1


async def test_keys_that_nobody_has_any_more_are_a_new_attempt(bench: Bench) -> None:
    async with operating(bench.server, bench.namespace) as operator:
        await bench.create()
        await bench.has_pods("run-coordinator-1", "run-cpu-0-1", "run-cpu-1-1")
        await bench.place("run-cpu-0-1", "node-1")
        await operator.at_rest()
    old = await bench.call("GET", bench.core("secrets", "run-run"))
    await bench.call("DELETE", bench.core("secrets", "run-run"))
    async with operating(bench.server, bench.namespace) as operator:
        formed = await bench.condition("Formed", "KeysLost")
        await bench.has_pods("run-coordinator-2", "run-cpu-0-2", "run-cpu-1-2")
        await operator.at_rest()
        new = await bench.call("GET", bench.core("secrets", "run-run"))
        run = await bench.run()
        left = {name for name, pod in (await bench.pods()).items() if not pod["metadata"].get("deletionTimestamp")}
    assert "Secret run-run was deleted" in formed["message"]
    assert new["data"]["token"] != old["data"]["token"]
    assert run["status"]["attempt"] == 2
    assert left == {"run-coordinator-2", "run-cpu-0-2", "run-cpu-1-2"}


async def test_a_finished_run_never_creates_anything_again(bench: Bench) -> None:
    async with operating(bench.server, bench.namespace) as operator:
        await bench.create(runPolicy={"cleanPodPolicy": "All"})
        await bench.has_pods("run-coordinator-1", "run-cpu-0-1", "run-cpu-1-1")
        words = Termination(cause=Cause.COMPLETE, reason="Completed", message="done").render()
        for pod in ("run-cpu-0-1", "run-cpu-1-1"):
            await bench.place(pod, "node-1")
            await bench.end(pod, 0, words)
        run = await bench.reaches("Succeeded")
        await operator.at_rest()
        for pod in await bench.pods():
            await bench.call("DELETE", bench.core("pods", pod), {"gracePeriodSeconds": 0})
        await bench.call("DELETE", bench.core("configmaps", "run-run"))
        await bench.call("DELETE", bench.core("services", "run-coordinator"))
        await operator.at_rest(1.0)
        assert await bench.pods() == {}
        assert (await bench.run())["status"]["phase"] == "Succeeded"
    states = {entry["type"]: entry["status"] for entry in conditions(run)}
    assert (states["Complete"], states["Failed"], states["Progressing"]) == ("True", "False", "False")
    async with operating(bench.server, bench.namespace) as operator:
        await operator.at_rest(1.0)
        assert await bench.pods() == {}


async def test_a_quota_shows_in_a_condition_and_clears_when_it_is_raised(bench: Bench) -> None:
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"pods": "1"}}}
    await bench.call("POST", bench.core("resourcequotas"), quota)
    await bench.call(
        "PATCH",
        bench.core("resourcequotas", "q") + "/status",
        {"status": {"hard": {"pods": "1"}, "used": {"pods": "0"}}},
        content_type="application/merge-patch+json",
    )
    async with operating(bench.server, bench.namespace) as operator:
        await bench.create()
        found = await bench.condition("Progressing", "ChildCreateFailed")
        assert "exceeded quota: q" in found["message"] and found["status"] == "False"
        for path in ("", "/status"):
            await bench.call(
                "PATCH",
                bench.core("resourcequotas", "q") + path,
                {"spec": {"hard": {"pods": "9"}}, "status": {"hard": {"pods": "9"}}},
                content_type="application/merge-patch+json",
            )
        await bench.has_pods("run-coordinator-1", "run-cpu-0-1", "run-cpu-1-1")
        await bench.condition("Progressing", "WaitingForMembers")
        await operator.at_rest()


async def test_a_bad_pod_template_is_refused_before_anything_is_created(bench: Bench) -> None:
    template = {"spec": {"containers": [{"name": "trainer", "imagePullPolicy": "Sometimes"}]}}
    cohort = {"name": "cpu", "vendor": "cpu", "replicas": 2, "podTemplate": template}
    async with operating(bench.server, bench.namespace) as operator:
        await bench.create(cohorts=[cohort])
        found = await bench.condition("Progressing", "PodTemplateRefused")
        await operator.at_rest(0.2)
        assert await bench.pods() == {}
    assert "imagePullPolicy" in found["message"]


async def test_a_forbidden_environment_ends_the_run_before_anything_is_created(bench: Bench) -> None:
    env = [{"name": "NCCL_IGNORE_NET_MISMATCH", "value": "1"}]
    async with operating(bench.server, bench.namespace) as operator:
        await bench.create(
            mode="nccl-sync",
            cohorts=[{"name": "gpu", "vendor": "nvidia", "replicas": 1}],
            trainer={"source": {"image": {"path": "/app/train.py"}}, "env": env},
        )
        found = await bench.condition("Failed", "EnvironmentForbidden")
        await operator.at_rest(0.2)
        run = await bench.run()
        assert await bench.pods() == {}
    assert "NCCL_IGNORE_NET_MISMATCH=1 (spec.trainer.env)" in found["message"] and run["status"]["phase"] == "Failed"


async def test_a_pod_template_of_400_kib_works(bench: Bench) -> None:
    template = {"metadata": {"annotations": {"note": "x" * 200_000}}, "spec": {"hostname": "a-host"}}
    big = {"spec": {"containers": [{"name": "side", "image": "i", "args": ["y" * 200_000]}]}}
    template["spec"] |= big["spec"]
    cohort = {"name": "cpu", "vendor": "cpu", "replicas": 1, "podTemplate": template}
    async with operating(bench.server, bench.namespace) as operator:
        await bench.create(cohorts=[cohort])
        pods = await bench.has_pods("run-cpu-0-1", "run-coordinator-1")
        await operator.at_rest()
        run = await bench.run()
    assert [entry["name"] for entry in pods["run-cpu-0-1"]["spec"]["containers"]] == ["trainer", "side"]
    assert pods["run-cpu-0-1"]["spec"]["hostname"] == "a-host"
    assert not run["metadata"].get("annotations")


@pytest.mark.parametrize("phase", ["Pending", "Starting", "Suspended", "Succeeded"])
async def test_deleting_a_run_in_any_phase_waits_for_nobody(bench: Bench, phase: str) -> None:
    selector = {"no": "where"} if phase == "Pending" else {}
    cohort = {"name": "cpu", "vendor": "cpu", "replicas": 1, "nodeSelector": selector}
    async with operating(bench.server, bench.namespace) as operator:
        await bench.create(cohorts=[cohort], runPolicy={"suspend": phase == "Suspended"})
        if phase == "Succeeded":
            await bench.has_pods("run-cpu-0-1")
            await bench.place("run-cpu-0-1", "node-1")
            words = Termination(cause=Cause.COMPLETE, reason="Completed", message="done").render()
            await bench.end("run-cpu-0-1", 0, words)
        await bench.reaches(phase)
        await bench.call("DELETE", bench.runs("run"))
        answer = await asyncio.to_thread(bench.server.request, "GET", bench.runs("run"))
        assert answer.code == 404
        await operator.at_rest()
        before = len(bench.writes())
        await operator.at_rest(1.0)
    assert bench.writes()[before:] == []


async def test_without_the_operator_a_run_can_be_deleted_too(bench: Bench) -> None:
    async with operating(bench.server, bench.namespace):
        await bench.create()
        await bench.has_pods("run-cpu-0-1")
    await bench.call("DELETE", bench.runs("run"))
    answer = await asyncio.to_thread(bench.server.request, "GET", bench.runs("run"))
    assert answer.code == 404


async def test_of_two_operators_one_leads_and_the_other_takes_over(bench: Bench) -> None:
    where = f"/apis/coordination.k8s.io/v1/namespaces/{bench.namespace}/leases/fdl-operator"

    async def lease() -> dict[str, Any]:
        return (await asyncio.to_thread(bench.server.request, "GET", where)).body

    def held_by(name: str) -> Any:
        return lambda body: body.get("spec", {}).get("holderIdentity") == name

    async with process(bench.server, bench.namespace, "one") as first:
        await bench.until(lease, held_by("one"), "one does not lead")
        async with process(bench.server, bench.namespace, "two"):
            await bench.create()
            await bench.has_pods("run-cpu-0-1", "run-cpu-1-1")
            first.terminate()
            assert await asyncio.wait_for(first.wait(), 20) == 0
            await bench.until(lease, held_by("two"), "two does not take over")
            await bench.place("run-cpu-0-1", "node-1")
            await bench.end("run-cpu-0-1", 137)
            pods = await bench.has_pods("run-cpu-0-2")
    assert set(pods) == {"run-coordinator-1", "run-cpu-0-1", "run-cpu-0-2", "run-cpu-1-1"}


async def test_an_operator_that_loses_its_lease_stops(bench: Bench) -> None:
    where = f"/apis/coordination.k8s.io/v1/namespaces/{bench.namespace}/leases/fdl-operator"
    async with operating(bench.server, bench.namespace) as operator:
        await bench.call(
            "PATCH", where, {"spec": {"holderIdentity": "thief"}}, content_type="application/merge-patch+json"
        )
        assert await asyncio.wait_for(asyncio.shield(operator.task), 20) == 1
        lease: dict[str, Any] = await bench.call("GET", where)
    assert lease["spec"]["holderIdentity"] == "thief"


async def test_suspend_frees_the_pods_and_resume_makes_a_new_attempt(bench: Bench) -> None:
    async with operating(bench.server, bench.namespace) as operator:
        await bench.create()
        await bench.has_pods("run-coordinator-1", "run-cpu-0-1", "run-cpu-1-1")
        await operator.at_rest()
        await bench.edit({"runPolicy": {"suspend": True}})
        await bench.reaches("Suspended")
        await bench.until(bench.pods, lambda pods: not pods, "pods are left")
        await bench.edit({"runPolicy": {"suspend": False}})
        await bench.has_pods("run-coordinator-2", "run-cpu-0-2", "run-cpu-1-2")
        await operator.at_rest()
        run = await bench.run()
        config = await bench.call("GET", bench.core("configmaps", "run-run"))
    assert run["status"]["attempt"] == 2 and '"attempt": 2' in config["data"]["run.json"]


async def test_scaling_goes_through_the_scale_subresource(bench: Bench) -> None:
    async with operating(bench.server, bench.namespace) as operator:
        await bench.create(replicas=2)
        await bench.has_pods("run-cpu-0-1", "run-cpu-1-1")
        await operator.at_rest()
        scale = await bench.call("GET", bench.runs("run") + "/scale")
        assert scale["status"]["replicas"] == 2
        scale["spec"]["replicas"] = 9
        await bench.call("PUT", bench.runs("run") + "/scale", scale)
        await bench.has_pods("run-cpu-3-1")
        await operator.at_rest()
        assert "run-cpu-4-1" not in await bench.pods()
        selector = (await bench.call("GET", bench.runs("run") + "/scale"))["status"]["selector"]
        found = await bench.call("GET", bench.core("pods"), labelSelector=selector)
    assert {item["metadata"]["name"] for item in found["items"]} == {f"run-cpu-{n}-1" for n in range(4)}


async def test_transitions_are_events_once(bench: Bench) -> None:
    async with operating(bench.server, bench.namespace) as operator:
        await bench.create()
        await bench.has_pods("run-cpu-0-1", "run-cpu-1-1")
        await operator.at_rest(1.0)
        found = await bench.call("GET", f"/apis/events.k8s.io/v1/namespaces/{bench.namespace}/events")
    reasons = sorted(item["reason"] for item in found["items"] if item["regarding"]["kind"] == "FdlRun")
    assert reasons == ["AttemptStarted", "Starting"]


async def test_the_operator_makes_the_cluster_object_that_is_missing(bench: Bench) -> None:
    async with operating(bench.server, bench.namespace):

        async def get() -> Any:
            return await asyncio.to_thread(bench.server.request, "GET", "/apis/fdl.dev/v1alpha1/fdlclusters/default")

        answer = await bench.until(
            lambda: _body(get), lambda body: body.get("spec", {}).get("variants"), "no FdlCluster/default"
        )
    assert answer["spec"]["variants"][0]["name"] == "cpu"


async def _body(get: Any) -> dict[str, Any]:
    body: dict[str, Any] = (await get()).body
    return body


async def test_its_rights_are_enough_and_no_more_than_listed(bench: Bench) -> None:
    rules = [rule.render() for rule in rbac.CLUSTER_RULES]
    own = [rule.render() for rule in rbac.namespace_rules("fdl-operator")]
    limited = await with_rights(bench.server, bench.namespace, rules, own)
    async with operating(limited, bench.namespace) as operator:
        await bench.create(join={"minMembers": 1}, runPolicy={"ttlSecondsAfterFinished": 0, "cleanPodPolicy": "All"})
        await bench.has_pods("run-coordinator-1", "run-cpu-0-1", "run-cpu-1-1")
        await operator.at_rest()
        await bench.edit({"cohorts": [{"name": "cpu", "vendor": "cpu", "replicas": 1, "maxReplicas": 4}]})
        await bench.place("run-cpu-0-1", "node-1")
        words = Termination(cause=Cause.COMPLETE, reason="Completed", message="done").render()
        await bench.end("run-cpu-0-1", 0, words)

        async def found() -> int:
            return (await asyncio.to_thread(bench.server.request, "GET", bench.runs("run"))).code

        await bench.until(found, lambda code: code == 404, "the run was not deleted")
        await operator.at_rest()
    refused = [
        entry
        for entry in bench.entries()
        if entry.get("annotations", {}).get("authorization.k8s.io/decision") == "forbid"
    ]
    assert not refused
