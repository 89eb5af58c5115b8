"""An operator that is older than the CRDs: their newer fields, which the server fills in, are not in its way."""

import copy
import time
from collections.abc import Iterator
from typing import Any

import pytest

from fdl_api import crd

from .harness import START_LIMIT_S, ApiServer
from .operating import CLUSTER, Bench, ensure_node, manifest, operating

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MANAGER = "fdl-install"
FIELD: dict[str, Any] = {"type": "string", "maxLength": 16, "default": "soon", "description": "Of a later release."}


def grown(made: dict[str, Any]) -> dict[str, Any]:
    """A CRD with a field more in spec, in the items of its first list, and in status, each with a default."""
    newer = copy.deepcopy(made)
    root = newer["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    lists = {"FdlRun": "cohorts", "FdlCluster": "variants"}
    item = root["spec"]["properties"][lists[made["spec"]["names"]["kind"]]]["items"]
    for part in (root["spec"], item, root["status"]):
        part["properties"]["tomorrow"] = FIELD
    return newer


def put(server: ApiServer, made: dict[str, Any]) -> None:
    answer = server.apply(f"{CRDS}/{made['metadata']['name']}", made, manager=MANAGER)
    assert answer.code in (200, 201), answer.message


def served(server: ApiServer, namespace: str, *, newer: bool) -> None:
    """Return once the server fills the field in, or does not any more."""
    deadline = time.monotonic() + START_LIMIT_S
    where = f"/apis/fdl.dev/v1alpha1/namespaces/{namespace}/fdlruns"
    while True:
        answer = server.request("POST", where, manifest("dry"), dryRun="All")
        if answer.code == 201 and ("tomorrow" in answer.body["spec"]) is newer:
            return
        assert time.monotonic() < deadline, answer.message
        time.sleep(0.1)


@pytest.fixture
def newer(crds: ApiServer, namespace: str) -> Iterator[Bench]:
    """The server with CRDs of a later release; with ours again afterwards, since other tests share it."""
    made = (crd.run_crd(), crd.cluster_crd())
    for each in made:
        put(crds, grown(each))
    try:
        served(crds, namespace, newer=True)
        yield Bench(crds, namespace)
    finally:
        for each in made:
            put(crds, each)
        served(crds, namespace, newer=False)


async def test_a_run_starts_and_the_cluster_is_kept(newer: Bench) -> None:
    await ensure_node(newer.server, "node-1")
    async with operating(newer.server, newer.namespace) as operator:
        made = await newer.create()
        assert (made["spec"]["tomorrow"], made["spec"]["cohorts"][0]["tomorrow"]) == ("soon", "soon")
        await newer.has_pods("run-coordinator-1", "run-cpu-0-1", "run-cpu-1-1")
        await operator.at_rest()
        run = await newer.run()
        cluster = await newer.call("GET", CLUSTER)
        events = await newer.call("GET", newer.core("events"))
    assert run["status"]["phase"] == "Starting" and run["status"]["tomorrow"] == "soon"
    assert cluster["spec"]["variants"][0]["tomorrow"] == "soon"
    assert {each["type"] for each in cluster["status"]["conditions"]} >= {"NodesReady", "VariantCoverage"}
    told = [each for each in events["items"] if each["reason"] == "FieldsNotKnown"]
    assert len(told) == 1 and "spec.tomorrow" in (told[0].get("note") or told[0].get("message") or "")


async def test_an_operator_that_comes_back_as_an_older_one_changes_nothing(crds: ApiServer, newer: Bench) -> None:
    await ensure_node(newer.server, "node-1")
    async with operating(newer.server, newer.namespace) as operator:
        await newer.create()
        await newer.has_pods("run-coordinator-1", "run-cpu-0-1", "run-cpu-1-1")
        await operator.at_rest()
    before = set(await newer.pods())
    async with operating(newer.server, newer.namespace) as operator:
        await operator.at_rest()

        assert set(await newer.pods()) == before
