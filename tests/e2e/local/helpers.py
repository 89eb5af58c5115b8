"""Pods for the tests, and bounded waiting."""

import time
from collections.abc import Callable
from typing import Any

from fdl_cli.local import Cluster
from fdl_cli.local.errors import LocalError

PROBE = "fdl.local/probe:1"


def eventually(what: str, check: Callable[[], bool], limit_s: float = 60.0) -> None:
    """Waits until ``check`` holds; fails with ``what`` after ``limit_s`` seconds."""
    deadline = time.monotonic() + limit_s
    while not check():
        assert time.monotonic() < deadline, f"after {limit_s:.0f} s still not: {what}"
        time.sleep(0.2)


def pod(
    name: str,
    node: str,
    *args: str,
    labels: dict[str, str] | None = None,
    claim: str | None = None,
    container: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """A pod of the probe image on a node; ``claim`` is mounted at /data, ``container`` adds fields to its container."""
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}] if claim else []
    mounts = [{"name": "data", "mountPath": "/data"}] if claim else []
    main = {"name": "c", "image": PROBE, "imagePullPolicy": "Never", "args": list(args), "volumeMounts": mounts}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels or {}},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": node},
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "containers": [main | (container or {})],
            "volumes": volumes,
        },
    }


def reaches(cluster: Cluster, name: str, url: str) -> None:
    """Waits until a pod gets an answer of a URL."""
    eventually(f"{name} reaches {url}", lambda: fetches(cluster, name, url))


def phase(cluster: Cluster, name: str) -> str:
    """Phase of a pod."""
    return str(cluster.kubectl().json("get", "pod", name)["status"]["phase"])


def create(cluster: Cluster, *objects: dict[str, Any]) -> None:
    """Creates objects and waits until the pods among them run (or have run)."""
    cluster.kubectl().apply(objects)
    for each in objects:
        if each["kind"] == "Pod":
            started(cluster, each["metadata"]["name"])


def started(cluster: Cluster, name: str) -> None:
    """Waits until a pod runs, or has run."""
    eventually(f"pod {name} runs", lambda: phase(cluster, name) in ("Running", "Succeeded"))


def execute(cluster: Cluster, name: str, *command: str) -> str:
    """Output of the probe in a pod."""
    return cluster.kubectl().run("exec", name, "--", "/probe", *command, limit_s=30)


def fetches(cluster: Cluster, name: str, url: str) -> bool:
    """Whether a pod gets an answer of a URL."""
    try:
        execute(cluster, name, "fetch", url)
    except LocalError:
        return False
    return True


def remove(cluster: Cluster, *kinds: str) -> None:
    """Deletes all objects of the kinds in the default namespace and waits until pods are gone."""
    for kind in kinds:
        # The API server's own service is everybody's.
        which = ["--field-selector=metadata.name!=kubernetes"] if kind == "service" else ["--all"]
        cluster.kubectl().run("delete", kind, *which, "--force", "--grace-period=0", "--wait=false")
    eventually("pods are gone", lambda: not cluster.kubectl().json("get", "pods")["items"])
