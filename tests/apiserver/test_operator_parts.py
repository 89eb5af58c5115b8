"""The operator's connections to a real API server: Lease, watches, the cluster object, deep checks, foreign objects."""

import asyncio
import datetime
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from fdl_api.report import DeepWanted, Report, deep_pod_name
from fdl_operator import client as clients
from fdl_operator.client import PODS, Client
from fdl_operator.election import Election, Timing
from fdl_operator.watch import Watch

from .harness import MERGE, ApiServer
from .operating import Bench, ensure_node, operating

TIMING = Timing(lease=2.0, renew_deadline=1.0, retry=0.1)


@pytest.fixture
async def bench(crds: ApiServer, namespace: str) -> Bench:
    await ensure_node(crds, "node-1")
    return Bench(crds, namespace)


@pytest.fixture
async def client(server: ApiServer) -> AsyncIterator[Client]:
    connection = await clients.connect(kubeconfig=str(server.kubeconfig), qps=1000, burst=1000)
    yield connection
    await connection.close()


def candidate(client: Client, namespace: str, name: str) -> Election:
    return Election(client, namespace=namespace, name="lease", identity=name, timing=TIMING)


class TestElection:
    async def test_the_first_candidate_makes_the_lease_and_the_second_waits(
        self, client: Client, namespace: str
    ) -> None:
        one, two = candidate(client, namespace, "one"), candidate(client, namespace, "two")
        await asyncio.wait_for(one.acquire(), 10)
        waiting = asyncio.create_task(two.acquire())
        holding = asyncio.create_task(one.hold())
        done, _ = await asyncio.wait({waiting, holding}, timeout=1.5 * TIMING.lease)
        assert not done, "a Lease that is renewed is not taken over, and its holder does not give up"
        holding.cancel()
        await one.release()
        await asyncio.wait_for(waiting, 10)
        lease = await client.get(clients.LEASES, namespace, "lease")
        assert lease["spec"]["holderIdentity"] == "two" and lease["spec"]["leaseTransitions"] == 1

    async def test_a_holder_that_died_is_followed_once_its_lease_has_expired(
        self, client: Client, namespace: str
    ) -> None:
        await asyncio.wait_for(candidate(client, namespace, "dead").acquire(), 10)
        await asyncio.wait_for(candidate(client, namespace, "next").acquire(), 20)
        lease = await client.get(clients.LEASES, namespace, "lease")
        assert lease["spec"]["holderIdentity"] == "next"

    async def test_of_many_candidates_exactly_one_wins(self, client: Client, namespace: str) -> None:
        tasks = [asyncio.create_task(candidate(client, namespace, f"c{n}").acquire()) for n in range(8)]
        done, pending = await asyncio.wait(tasks, timeout=TIMING.lease / 2, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(TIMING.lease / 4)
        assert len(done) == 1 and sum(task.done() for task in tasks) == 1
        for task in pending:
            task.cancel()

    async def test_a_holder_that_cannot_renew_gives_up_before_the_lease_expires(
        self, server: ApiServer, namespace: str
    ) -> None:
        own = await clients.connect(kubeconfig=str(server.kubeconfig))
        holder = candidate(own, namespace, "cut-off")
        await asyncio.wait_for(holder.acquire(), 10)
        own.configuration.host = "https://127.0.0.1:9"
        await asyncio.wait_for(holder.hold(), TIMING.lease)
        await own.close()


class TestWatch:
    async def test_what_vanished_during_a_gap_is_dropped(self, client: Client, bench: Bench) -> None:
        seen: dict[str, str] = {}
        watch: Watch[str] = Watch(
            client, PODS, selector="app=x", namespace=bench.namespace,
            project=lambda item: item["metadata"]["uid"],
            put=seen.__setitem__, drop=lambda key: seen.pop(key) and None,
        )  # fmt: skip
        await self.pod(bench, "one")
        await self.pod(bench, "two")
        first = asyncio.create_task(watch.run())
        await asyncio.wait_for(watch.synced.wait(), 10)
        assert set(seen) == {f"{bench.namespace}/one", f"{bench.namespace}/two"}
        first.cancel()
        await bench.delete_pod("one")
        await self.pod(bench, "three")
        again = asyncio.create_task(watch.run())
        await bench.until(
            lambda: _now(sorted(seen)), lambda names: len(names) == 2 and "three" in names[0], "no relist"
        )
        await bench.delete_pod("two")
        await bench.until(lambda: _now(sorted(seen)), lambda names: len(names) == 1, "the deletion was not seen")
        again.cancel()

    async def test_only_labelled_objects_are_seen_and_pages_are_joined(
        self, client: Client, bench: Bench, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(clients, "PAGE", 2)
        await asyncio.gather(*(self.pod(bench, f"p{n}") for n in range(5)), self.pod(bench, "other", app="y"))
        found = []
        async for items, _ in client.pages(PODS, bench.namespace, "app=x"):
            found += [item["metadata"]["name"] for item in items]
        assert sorted(found) == [f"p{n}" for n in range(5)]

    @staticmethod
    async def pod(bench: Bench, name: str, app: str = "x") -> None:
        body = {
            "metadata": {"name": name, "labels": {"app": app}},
            "spec": {"containers": [{"name": "c", "image": "i"}]},
        }
        await bench.call("POST", bench.core("pods"), body)


async def _now(value: Any) -> Any:
    return value


async def test_the_node_table_and_deep_checks_follow_the_reports(bench: Bench) -> None:
    name = f"gpu-{bench.namespace}"
    wish = DeepWanted(variant="cpu", vendor="cpu", image="fdl.local/trainer-cpu:dev", fingerprint="f")
    report = Report(node=name, time=datetime.datetime.now(datetime.UTC), ready=True, deep_wanted=(wish,))
    labels = {"fdl.dev/ready": "true", "fdl.dev/gpu-vendor": "none", "fdl.dev/variant.cpu": "covers"}
    where = f"/api/v1/nodes/{name}"
    await ensure_node(bench.server, name, labels)
    try:
        async with operating(bench.server, bench.namespace):

            async def row() -> Any:
                cluster = await bench.call("GET", "/apis/fdl.dev/v1alpha1/fdlclusters/default")
                rows = cluster.get("status", {}).get("nodes") or []
                return next((each for each in rows if each["name"] == name), {})

            async def report_is(content: Report) -> None:
                notes = {"metadata": {"annotations": {"fdl.dev/report": content.render()}}}
                await bench.call("PATCH", where, notes, content_type=MERGE)

            async def deep() -> list[str]:
                found = await bench.call("GET", bench.core("pods"), labelSelector="fdl.dev/role=deep-check")
                return [item["metadata"]["name"] for item in found["items"]]

            found = await bench.until(row, lambda found: found.get("problems"), "a node without a report is a problem")
            problem = found["problems"][0]
            assert (problem["check"], problem["reason"], problem["class"]) == ("report-age", "unreadable", "transient")
            await report_is(report)
            found = await bench.until(row, lambda found: found.get("ready"), "the node is not ready")
            assert found["variants"] == ["cpu"] and not found.get("problems")
            await bench.until(deep, lambda names: names == [deep_pod_name(name, wish)], "no deep check")
            await report_is(report.model_copy(update={"deep_wanted": ()}))
            await bench.until(deep, lambda names: not names, "the deep check was not cleared away")
    finally:
        await bench.call("DELETE", where)


async def test_a_foreign_object_in_the_way_is_named_and_left_alone(bench: Bench) -> None:
    pod = {"metadata": {"name": "run-cpu-0-1"}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    await bench.call("POST", bench.core("pods"), pod)
    async with operating(bench.server, bench.namespace) as operator:
        await bench.create()
        found = await bench.condition("Progressing", "ChildCreateFailed")
        assert "run-cpu-0-1" in found["message"] and "belongs to something else" in found["message"]
        assert (await bench.call("GET", bench.core("pods", "run-cpu-0-1")))["spec"]["containers"][0]["name"] == "c"
        await bench.delete_pod("run-cpu-0-1")
        await bench.until(
            bench.pods, lambda pods: "run-cpu-0-1" in pods, "the member was not created once its name was free"
        )
        await bench.condition("Progressing", "WaitingForMembers")
        await operator.at_rest()


async def test_an_applied_object_that_somebody_changes_or_deletes_comes_back(bench: Bench) -> None:
    async with operating(bench.server, bench.namespace) as operator:
        await bench.create()
        await bench.has_pods("run-cpu-0-1", "run-coordinator-1")
        await operator.at_rest()
        await bench.call("DELETE", bench.core("services", "run-coordinator"))

        async def service() -> Any:
            answer = await asyncio.to_thread(bench.server.request, "GET", bench.core("services", "run-coordinator"))
            return answer.code

        await bench.until(service, lambda code: code == 200, "the Service did not come back")


async def test_creating_a_run_costs_a_bounded_number_of_requests(bench: Bench) -> None:
    async with operating(bench.server, bench.namespace) as operator:
        cohort = {"name": "cpu", "vendor": "cpu", "replicas": 4}
        await bench.create(cohorts=[cohort])
        await bench.has_pods("run-cpu-3-1")
        await operator.at_rest(1.0)
    rows = [entry for entry in bench.writes() if entry["objectRef"].get("resource") != "events"]
    kinds = sorted(f"{entry['verb']} {entry['objectRef']['resource']}" for entry in rows)
    objects = ["patch configmaps", "patch networkpolicies", "patch poddisruptionbudgets", "patch services"]
    status = [kind for kind in kinds if kind == "patch fdlruns"]
    assert [kind for kind in kinds if kind != "patch fdlruns"] == sorted(
        ["create pods"] * 5 + ["create secrets"] + objects
    ), json.dumps(kinds)
    assert len(status) <= 4, "one when it starts, few more while its pods are seen"


async def test_an_operator_whose_watch_breaks_ends_instead_of_going_on_half_blind(
    bench: Bench,
) -> None:
    async with operating(bench.server, bench.namespace) as operator:
        engine = operator.operator.engine
        assert engine is not None

        def broken(item: Any) -> Any:
            raise TypeError("a record that cannot be made")

        for task in asyncio.all_tasks():
            if task.get_name() == "watch" and (frame := task.get_stack(limit=1)):
                frame[0].f_locals["self"]._project = broken
        await bench.create()
        assert await asyncio.wait_for(asyncio.shield(operator.task), 20) == 1
