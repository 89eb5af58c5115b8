"""An operator in this process against the real API server, and what a kubelet would do to its pods."""

import asyncio
import contextlib
import dataclasses
import json
import os
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import yaml

from fdl_operator import client as clients
from fdl_operator.app import Operator
from fdl_operator.election import Timing
from fdl_operator.settings import Limits, Settings

from .harness import MERGE, ApiServer

LIMIT_S = 30.0
QUICK = Timing(lease=6, renew_deadline=5, retry=0.2)
CLUSTER = "/apis/fdl.dev/v1alpha1/fdlclusters/default"
VARIANTS = ({"name": "cpu", "vendor": "cpu", "image": "fdl.local/trainer-cpu:dev"},)


def manifest(name: str = "run", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "fdl.dev/v1alpha1",
        "kind": "FdlRun",
        "metadata": {"name": name},
        "spec": {
            "trainer": {"source": {"image": {"path": "/app/train.py"}}},
            "cohorts": [{"name": "cpu", "vendor": "cpu", "replicas": 2, "maxReplicas": 4}],
            **spec,
        },
    }


class Bench:
    """One namespace on the server, seen by a test."""

    def __init__(self, server: ApiServer, namespace: str) -> None:
        self.server = server
        self.namespace = namespace

    async def call(self, method: str, path: str, body: Any = None, **more: Any) -> dict[str, Any]:
        answer = await asyncio.to_thread(self.server.request, method, path, body, **more)
        assert answer.code < 300, f"{method} {path}: {answer.code} {answer.message}"
        return answer.body

    def runs(self, name: str = "") -> str:
        return f"/apis/fdl.dev/v1alpha1/namespaces/{self.namespace}/fdlruns" + (f"/{name}" if name else "")

    def core(self, kind: str, name: str = "") -> str:
        return f"/api/v1/namespaces/{self.namespace}/{kind}" + (f"/{name}" if name else "")

    async def create(self, **more: Any) -> dict[str, Any]:
        return await self.call("POST", self.runs(), manifest(**more), fieldValidation="Strict")

    async def run(self, name: str = "run") -> dict[str, Any]:
        return await self.call("GET", self.runs(name))

    async def edit(self, spec: dict[str, Any], name: str = "run") -> None:
        await self.call("PATCH", self.runs(name), {"spec": spec}, content_type=MERGE)

    async def cluster_status(self) -> dict[str, Any]:
        """The status of FdlCluster/default."""
        found: dict[str, Any] = (await self.call("GET", CLUSTER)).get("status", {})
        return found

    async def pods(self, name: str = "run") -> dict[str, dict[str, Any]]:
        found = await self.call("GET", self.core("pods"), labelSelector=f"fdl.dev/run={name}")
        return {item["metadata"]["name"]: item for item in found["items"]}

    async def until(self, what: Callable[[], Any], truth: Callable[[Any], Any], why: str) -> Any:
        """Poll until something holds; its value then."""
        last: Any = None
        async with contextlib.AsyncExitStack():
            deadline = asyncio.get_running_loop().time() + LIMIT_S
            while asyncio.get_running_loop().time() < deadline:
                last = await what()
                if truth(last):
                    return last
                await asyncio.sleep(0.05)
        raise AssertionError(f"{why}: {json.dumps(last, indent=1)[-6000:]}")

    async def has_pods(self, *names: str) -> dict[str, dict[str, Any]]:
        wanted = set(names)
        found: dict[str, dict[str, Any]] = await self.until(self.pods, lambda pods: wanted <= set(pods), f"no {wanted}")
        return found

    async def reaches(self, phase: str, name: str = "run") -> dict[str, Any]:
        found: dict[str, Any] = await self.until(
            lambda: self.run(name), lambda run: run.get("status", {}).get("phase") == phase, f"not {phase}"
        )
        return found

    async def condition(self, kind: str, reason: str, name: str = "run") -> dict[str, Any]:
        """Wait for a condition with this reason; the condition."""
        run = await self.until(
            lambda: self.run(name),
            lambda run: any(c["type"] == kind and c["reason"] == reason for c in conditions(run)),
            f"no {kind} {reason}",
        )
        return next(c for c in conditions(run) if c["type"] == kind)

    # --- the kubelet's part ---

    async def place(self, pod: str, node: str) -> None:
        """Bind a pod and have it run."""
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": pod},
            "target": {"kind": "Node", "name": node},
        }
        await self.call("POST", self.core("pods", pod) + "/binding", body)
        ready = [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "True"}]
        await self.status(pod, {"phase": "Running", "podIP": "127.0.0.1", "conditions": ready})

    async def end(self, pod: str, code: int, message: str = "") -> None:
        """Have the pod's main container end."""
        found = await self.call("GET", self.core("pods", pod))
        container = found["spec"]["containers"][0]
        state = {"terminated": {"exitCode": code, "message": message, "finishedAt": "2026-01-01T00:00:00Z"}}
        row = {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": False,
            "restartCount": 0,
            "state": state,
        }
        await self.status(pod, {"phase": "Succeeded" if code == 0 else "Failed", "containerStatuses": [row]})

    async def status(self, pod: str, status: dict[str, Any]) -> None:
        await self.call("PATCH", self.core("pods", pod) + "/status", {"status": status}, content_type=MERGE)

    async def delete_pod(self, pod: str) -> None:
        await self.call("DELETE", self.core("pods", pod), {"gracePeriodSeconds": 0})

    # --- what the operator sent ---

    def writes(self, agent: str = "fdl-operator") -> list[dict[str, Any]]:
        """The operator's changing requests in this namespace; Leases left out."""
        return [
            entry
            for entry in self.entries(agent)
            if entry["verb"] not in ("get", "list", "watch") and entry["objectRef"].get("resource") != "leases"
        ]

    def entries(self, agent: str = "fdl-operator") -> list[dict[str, Any]]:
        """The operator's requests in this namespace, by the server's own audit log."""
        rows = [json.loads(line) for line in self.server.audit_log.read_text().splitlines()]
        return [
            row
            for row in rows
            if row.get("userAgent", "").startswith(agent)
            and (row.get("objectRef") or {}).get("namespace") == self.namespace
        ]


def conditions(run: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = run.get("status", {}).get("conditions") or []
    return found


@dataclasses.dataclass
class Running:
    """An operator at work."""

    operator: Operator
    stop: asyncio.Event
    task: "asyncio.Task[int]"
    client: clients.Client

    async def at_rest(self, seconds: float = 0.5) -> None:
        """Wait until its queue has been empty for a while."""
        loop = asyncio.get_running_loop()
        deadline, quiet = loop.time() + LIMIT_S, loop.time()
        while loop.time() - quiet < seconds:
            engine = self.operator.engine
            if engine is None or not engine.queue.idle:
                quiet = loop.time()
            assert loop.time() < deadline, "the operator never came to rest"
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def operating(
    server: ApiServer, namespace: str, *, wait: bool = True, timing: Timing = QUICK, **changes: Any
) -> AsyncIterator[Running]:
    """An operator for one namespace; it is stopped at the end."""
    settings = Settings(
        namespace=namespace,
        identity=f"op-{uuid.uuid4().hex[:6]}",
        operator_image="fdl.local/operator:dev",
        variants=VARIANTS,
        watch_namespaces=(namespace,),
        health_port=0,
        limits=changes.pop("limits", Limits(create_retry=0.5, create_retry_max=1.0)),
        **changes,
    )
    client = await clients.connect(kubeconfig=str(server.kubeconfig), qps=1000, burst=1000)
    operator = Operator(client, settings, timing)
    stop = asyncio.Event()
    task = asyncio.create_task(operator.run(stop))
    try:
        if wait:
            await asyncio.wait_for(operator.synced.wait(), LIMIT_S)
        yield Running(operator, stop, task, client)
    finally:
        stop.set()
        await asyncio.wait_for(task, LIMIT_S)
        await client.close()


@contextlib.asynccontextmanager
async def process(server: ApiServer, namespace: str, name: str) -> AsyncIterator["asyncio.subprocess.Process"]:
    """An operator as a process of its own, as in its container; killed at the end."""
    env = {
        **os.environ,
        "KUBECONFIG": str(server.kubeconfig),
        "POD_NAME": name,
        "FDL_NAMESPACE": namespace,
        "FDL_WATCH_NAMESPACES": namespace,
        "FDL_OPERATOR_IMAGE": "fdl.local/operator:dev",
        "FDL_VARIANTS": json.dumps(VARIANTS),
        "FDL_HEALTH_PORT": "0",
    }
    started = await asyncio.create_subprocess_exec(sys.executable, "-m", "fdl_operator", env=env)
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
        await started.wait()


async def ensure_node(server: ApiServer, name: str, labels: dict[str, str] | None = None) -> None:
    """A node that is ready, as a kubelet would report it."""
    await asyncio.to_thread(
        server.request, "POST", "/api/v1/nodes", {"metadata": {"name": name, "labels": labels or {}}}
    )
    await asyncio.to_thread(make_ready, server, name)


def make_ready(server: ApiServer, name: str) -> None:
    """What a kubelet and the controllers do with a node that is new."""
    ready = {"type": "Ready", "status": "True", "reason": "Test", "message": "", "lastHeartbeatTime": None}
    answer = server.request("PATCH", f"/api/v1/nodes/{name}/status", {"status": {"conditions": [ready]}}, MERGE)
    assert answer.code == 200, answer.message
    # Admission taints new nodes until a controller finds them ready.
    server.request("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": None}}, MERGE)


async def with_rights(
    server: ApiServer, namespace: str, rules: list[dict[str, Any]], own: list[dict[str, Any]], account: str = ""
) -> ApiServer:
    """The same server, seen by a service account with these rights and no others."""
    account = account or f"op-{namespace}"
    subject = [{"kind": "ServiceAccount", "name": account, "namespace": namespace}]
    rbac = "/apis/rbac.authorization.k8s.io/v1"

    async def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = await asyncio.to_thread(server.request, "POST", path, body)
        assert answer.code == 201, answer.message
        return answer.body

    await post(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": account}})
    for kind, where, table in (
        ("ClusterRole", rbac, rules),
        ("Role", f"{rbac}/namespaces/{namespace}", own),
    ):
        await post(f"{where}/{kind.lower()}s", {"metadata": {"name": account}, "rules": table})
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": account}
        binding = {"metadata": {"name": account}, "roleRef": reference, "subjects": subject}
        await post(f"{where}/{kind.lower()}bindings", binding)
    token = await post(
        f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token", {"spec": {"expirationSeconds": 3600}}
    )
    config = yaml.safe_load(server.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token["status"]["token"]}
    file = server.kubeconfig.with_name(f"{account}.kubeconfig")
    file.write_text(yaml.safe_dump(config))
    return dataclasses.replace(server, kubeconfig=file, token=token["status"]["token"])
