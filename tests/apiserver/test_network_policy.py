"""FdlCluster's condition NetworkPolicyEnforced, from a coordinator as it runs in its pod to the status."""

import asyncio
import base64
import contextlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fdl_api.runconfig import MemberEnv
from fdl_operator import policies
from tests.addresses import own_address

from .harness import ApiServer
from .operating import CLUSTER, Bench, ensure_node, operating

POD = "run-coordinator-1"
FILES = {
    MemberEnv.TOKEN_FILE: "token",
    MemberEnv.CA_FILE: "ca.crt",
    MemberEnv.CERT_FILE: "tls.crt",
    MemberEnv.KEY_FILE: "tls.key",
}


@pytest.fixture
async def bench(crds: ApiServer, namespace: str) -> AsyncIterator[Bench]:
    await ensure_node(crds, "node-1")
    yield Bench(crds, namespace)
    await asyncio.to_thread(crds.request, "DELETE", CLUSTER)


@contextlib.asynccontextmanager
async def coordinating(bench: Bench, folder: Path, address: str) -> AsyncIterator[None]:
    """The run's coordinator, with what its pod mounts, on an address of its own."""
    secret = await bench.call("GET", bench.core("secrets", "run-run"))
    config = await bench.call("GET", bench.core("configmaps", "run-run"))
    contents = {name: base64.b64decode(secret["data"][key]).decode() for name, key in FILES.items()}
    contents[MemberEnv.RUN_FILE] = config["data"]["run.json"]
    env = {**os.environ, MemberEnv.GENERATION: "1", "FDL_LISTEN": address, "POD_IP": address}
    for name, text in contents.items():
        (folder / name).write_text(text)
        env[name] = str(folder / name)
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "fdl_coordinator", env=env)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await asyncio.wait_for(process.wait(), 20)


async def test_a_network_that_lets_through_what_a_run_forbids_is_told_with_its_node(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing enforces a policy on the loopback, and the operator finds that out."""
    monkeypatch.setattr(policies, "SETTLE_SECONDS", 0.05)
    address = own_address()

    async def told() -> dict[str, Any]:
        conditions = (await bench.cluster_status()).get("conditions") or []
        return next((each for each in conditions if each["type"] == "NetworkPolicyEnforced"), {})

    async with operating(bench.server, bench.namespace, in_pod=True) as operator:
        await bench.create()
        await bench.has_pods(POD, "run-cpu-0-1", "run-cpu-1-1")
        await operator.at_rest()
        assert (await told()).get("reason", "PolicyNotTried") == "PolicyNotTried"
        async with coordinating(bench, tmp_path, address):
            await bench.place(POD, "node-1")
            await bench.status(POD, {"podIP": address, "podIPs": [{"ip": address}]})
            found = await bench.until(told, lambda each: each.get("status") == "False", "the open port was not found")
    assert found["reason"] == "PolicyNotEnforced" and " on node-1. Install a network plugin" in found["message"]
    async with operating(bench.server, bench.namespace, in_pod=True) as operator:
        await operator.at_rest()
        assert (await told())["message"] == found["message"], "the next operator has not tried it yet"
