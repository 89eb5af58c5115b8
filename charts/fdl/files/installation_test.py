"""`helm test`: asks the API server whether this installation works. Standard library only, nothing from outside."""

import json
import os
import ssl
import sys
import time
import urllib.error
import urllib.request
from typing import Any

ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
DEADLINE = time.monotonic() + 90


def call(path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
    """GET, or POST with a body: status code and answer."""
    with open(f"{ACCOUNT}/token", encoding="utf-8") as file:  # noqa: PTH123 - runs without the project
        token = file.read()
    request = urllib.request.Request(
        f"https://{os.environ['KUBERNETES_SERVICE_HOST']}:{os.environ['KUBERNETES_SERVICE_PORT']}{path}",
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
    )
    context = ssl.create_default_context(cafile=f"{ACCOUNT}/ca.crt")
    try:
        with urllib.request.urlopen(request, context=context, timeout=10) as answer:  # noqa: S310 - always https
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def true_condition(path: str, kind: str) -> bool:
    """Whether the object at a path has a condition with status True."""
    _, found = call(path)
    conditions = found.get("status", {}).get("conditions", [])
    return any(entry["type"] == kind and entry["status"] == "True" for entry in conditions)


def until(what: str, holds: Any) -> None:
    """Ask once a second; end the test with a sentence at the deadline."""
    while not holds():
        if time.monotonic() > DEADLINE:
            sys.exit(f"FAILED: {what}")
        time.sleep(1)
    print(f"ok: {what}", flush=True)


def main() -> None:
    """CRDs, operator, FdlCluster/default, and that the schema refuses nonsense."""
    namespace, operator = os.environ["RELEASE_NAMESPACE"], os.environ["OPERATOR"]
    for plural in ("fdlruns", "fdlclusters"):
        path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{plural}.fdl.dev"
        until(f"CRD {plural} is established", lambda path=path: true_condition(path, "Established"))
    deployment = f"/apis/apps/v1/namespaces/{namespace}/deployments/{operator}"
    until(f"Deployment {operator} is available", lambda: true_condition(deployment, "Available"))
    cluster = "/apis/fdl.dev/v1alpha1/fdlclusters/default"
    until("the operator keeps FdlCluster/default", lambda: "conditions" in call(cluster)[1].get("status", {}))
    run = {
        "apiVersion": "fdl.dev/v1alpha1",
        "kind": "FdlRun",
        "metadata": {"name": "helm-test"},
        "spec": {"trainer": {"source": {"image": {"path": "/train.py"}}}, "cohorts": [{"name": "a", "vendor": "cpu"}]},
    }
    path = f"/apis/fdl.dev/v1alpha1/namespaces/{namespace}/fdlruns?dryRun=All"
    until("a good FdlRun is admitted (dry run)", lambda: call(path, run)[0] == 201)
    bad = {**run, "spec": {**run["spec"], "mode": "telepathy"}}
    until("an FdlRun of unknown mode is refused (dry run)", lambda: call(path, bad)[0] == 422)


main()
