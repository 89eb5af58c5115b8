"""A thousand nodes are labelled at once: how long until FdlCluster has them all, by how many writes.

The nodes are objects without kubelets; what their probers write is made by the prober's own code from recorded devices.
The figures are printed (``pytest -s``), never asserted; that writes keep to one a second is.
"""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from fdl_api import labels
from fdl_api.report import DeepFacts, Report
from fdl_prober import decide
from tests.unit.prober.stories import ALL, CUDA, facts, nvidia, result, seen

from .conftest import CRDS, install
from .harness import APPLY, MERGE, ApiServer, started
from .operating import CLUSTER, Bench, make_ready, operating

NODES = 1000
WRITERS = 8
LIMIT_S = 300.0
RECORDED = json.loads((Path(__file__).parents[1] / "unit/prober/data/h200.json").read_text())


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A server of its own: other tests' operators should not watch a thousand nodes."""
    with started(tmp_path_factory.mktemp("nodes")) as running:
        install(running, sorted(CRDS.glob("*.yaml")))
        yield running


@pytest.fixture
async def bench(own_server: ApiServer) -> AsyncIterator[Bench]:
    answer = await asyncio.to_thread(own_server.request, "POST", "/api/v1/namespaces", {"metadata": {"name": "many"}})
    assert answer.code in (201, 409), answer.message
    yield Bench(own_server, "many")


def recorded(now: datetime) -> tuple[dict[str, str], Report]:
    """Labels and report of a node with two H200 whose deep check passed, as its prober makes them."""
    bare = facts(seen(nvml=nvidia("sm_90", "sm_90"), plugged={"nvidia": 2}), variants=ALL)
    told = DeepFacts.model_validate(RECORDED["deepcheck"])
    passed = result(decide.report(bare, now), CUDA, facts=told, outcome="passed")
    return decide.desired(facts(seen(nvml=nvidia("sm_90", "sm_90"), plugged={"nvidia": 2}), deep={"cuda": passed}), now)


def name_of(number: int) -> str:
    return f"node-{number:04}.example.internal"


def create(server: ApiServer, number: int) -> None:
    """A ready node, before its prober has looked at it."""
    name = name_of(number)
    assert server.request("POST", "/api/v1/nodes", {"metadata": {"name": name}}).code == 201
    make_ready(server, name)


def label(server: ApiServer, number: int, made: dict[str, str], report: Report) -> None:
    """What the prober of a node writes."""
    name = name_of(number)
    body = decide.apply_body(name, made, report.model_copy(update={"node": name}))
    answer = server.request("PATCH", f"/api/v1/nodes/{name}", body, APPLY, fieldManager=labels.PROBER_FIELD_MANAGER)
    assert answer.code == 200, answer.message


async def all_of(work: Any, *arguments: Any) -> None:
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(WRITERS) as pool:
        await asyncio.gather(*(loop.run_in_executor(pool, work, arguments[0], n, *arguments[1:]) for n in range(NODES)))


async def test_a_thousand_nodes_are_in_the_table_by_few_writes(bench: Bench) -> None:
    await all_of(create, bench.server)
    made, report = recorded(datetime.now(UTC))
    async with operating(bench.server, bench.namespace) as operator:
        variants = [variant.model_dump(mode="json", by_alias=True, exclude_none=True) for variant in ALL]
        await bench.call("PATCH", CLUSTER, {"spec": {"variants": variants}}, content_type=MERGE)
        await operator.at_rest(1.5)
        before, cpu, start = operator.client.calls["PATCH", "fdlclusters"], os.times(), time.monotonic()
        await all_of(label, bench.server, made, report)
        labelled = time.monotonic() - start
        while (await bench.cluster_status()).get("summary", {}).get("nodes") != f"{NODES}/{NODES}":
            assert time.monotonic() - start < LIMIT_S, (await bench.cluster_status()).get("summary")
            await asyncio.sleep(0.25)
        seconds, after = time.monotonic() - start, os.times()
        writes = operator.client.calls["PATCH", "fdlclusters"] - before
        found = await bench.call("GET", CLUSTER)
        await operator.at_rest(1.5)
        settled = operator.client.calls["PATCH", "fdlclusters"]
        await all_of(label, bench.server, made, report.model_copy(update={"time": datetime.now(UTC)}))
        await operator.at_rest(2.0)
        renewed = operator.client.calls["PATCH", "fdlclusters"] - settled
    used = after.user - cpu.user + after.system - cpu.system
    print(
        f"\n{NODES} nodes: labelled in {labelled:.1f} s, in FdlCluster status after {seconds:.1f} s, {writes} status "
        f"writes, object of {len(json.dumps(found)) / 1024:.0f} KiB, {used:.1f} s of CPU in this process; "
        f"{renewed} writes when all {NODES} reports were renewed"
    )
    conditions = {each["type"]: each["status"] for each in found["status"]["conditions"]}
    assert (conditions["NodesReady"], conditions["NCCLConsistent"], conditions["VariantCoverage"]) == ("True",) * 3
    assert conditions["FabricKnown"] == "False", "no interface is named for a thousand nodes with devices"
    assert writes <= seconds + 1
    assert renewed == 0, "reports that say the same are no news"
