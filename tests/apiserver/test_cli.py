"""``fdl convert``, ``fdl probe`` and ``fdl explain`` against a real API server."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from fdl_api import labels
from fdl_api.report import Check, Report
from fdl_cli.access import AccessError, NotInstalledError, connect
from fdl_cli.main import main

from .harness import APPLY, MERGE, ApiServer

CLUSTER = "/apis/fdl.dev/v1alpha1/fdlclusters/default"
LIMIT_S = 60.0


def fdl(server: ApiServer, *words: str, kubeconfig: Path | None = None) -> Result:
    return CliRunner().invoke(main, [*words, "--kubeconfig", str(kubeconfig or server.kubeconfig)])


# --- convert ---------------------------------------------------------------------------------------------

HOST = "{host: a, local_devices: [0, 1], nccl_socket_ifname: eth0, path: /x, arch: precompiled/cu128}"
SETUPS = {
    "plain": f"cluster:\n  controller: {{host: h, path: /x}}\n  workers: [{HOST}]\n",
    "old": "cluster:\n  master_addr: h\n  master_port: 1\n  hosts: [{name: a, ranks: [0], libtorch_path: /l}]\n",
    "mixed": (
        f"cluster:\n  workers:\n    - {HOST}\n    - {{host: B_2, local_devices: [0], arch: precompiled/rocm70, "
        "nccl_socket_ifname: ib0, env: {A: b}}\n    - {host: c, local_devices: all, arch: precompiled/cpu}\n"
        "  env: {NCCL_DEBUG: INFO}\n"
        "  controller:\n    data_path: /data\n"
        "    join: {min_rank_start: 2, target_ranks: 9, join_timeout: 700, start: manual, token: x}\n"
    ),
    "knobs": (
        f"cluster:\n  workers: [{HOST}]\ncommands:\n  a-very-long-name-of-a-command-that-fans-out:\n    cluster: true\n"
        "    ddp: {mode: cpu_async, anchor: 2000, overhead_target: 0.9, max_batch_diff: 0, divergence_threshold: 0.1}\n"
        "    training: {epochs: 3, lr: 0.001}\n    options: {model: m}\n"
        "  second: {cluster: true, ddp: {mode: nccl-sync, partition_ratios: [0.5, 0.5]}}\n"
    ),
    "discovery": "cluster:\n  controller: {join: {discovery: true, min_rank_start: 2, start: hybrid}}\n  workers: []\n",
}


@pytest.mark.parametrize("name", SETUPS)
def test_what_convert_writes_the_api_server_takes(name: str, crds: ApiServer, namespace: str, tmp_path: Path) -> None:
    file = tmp_path / "fdl.cluster.yml"
    file.write_text(SETUPS[name])
    done = CliRunner().invoke(main, ["convert", str(file)])
    assert done.exit_code == 0, done.stderr
    manifests = list(yaml.safe_load_all(done.stdout))
    assert len(manifests) >= 2
    for manifest in manifests:
        where = CLUSTER
        if manifest["kind"] == "FdlRun":
            where = f"/apis/fdl.dev/v1alpha1/namespaces/{namespace}/fdlruns/{manifest['metadata']['name']}"
        query = {"fieldManager": "t", "fieldValidation": "Strict", "dryRun": "All"}
        answer = crds.request("PATCH", where, manifest, APPLY, **query)
        assert answer.code in (200, 201), answer.message


# --- probe and explain -----------------------------------------------------------------------------------


def put(server: ApiServer, path: str, body: dict[str, Any]) -> None:
    answer = server.request("POST", path, body)
    assert answer.code == 201, answer.message


def add_node(server: ApiServer, name: str, age: float, checks: tuple[Check, ...], **tags: str) -> None:
    """A node with a report that is ``age`` seconds old; ``tags`` are labels below fdl.dev/, ``__`` for a dot."""
    made = Report(node=name, time=datetime.now(UTC) - timedelta(seconds=age), ready=True, checks=checks)
    own = {labels.DOMAIN + key.replace("__", "."): text for key, text in tags.items()}
    meta = {"name": name, "labels": own, "annotations": {labels.REPORT: made.render()}}
    put(server, "/api/v1/nodes", {"metadata": meta})
    status = {
        "conditions": [{"type": "Ready", "status": "True", "reason": "r", "message": "m"}],
        "allocatable": {"cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "2"},
        "capacity": {"cpu": "8", "memory": "32Gi", "pods": "110", "nvidia.com/gpu": "2"},
    }
    answer = server.request("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, MERGE)
    assert answer.code == 200, answer.message


GPU = {"ready": "true", "vendor__nvidia": "true", "count__nvidia": "2", "variant__cuda": "verified"}
GAP = Check(name="kernel-coverage", severity="fail", subject="nvidia 0", message="no kernels", remedy="Add an image.")


@pytest.fixture
def cluster(crds: ApiServer) -> Iterator[ApiServer]:
    """Two nodes and FdlCluster/default; taken away again, since other tests share the server."""
    crds.request("DELETE", CLUSTER)
    variants = [{"name": "cuda", "vendor": "nvidia", "image": "r/cuda:1", "archs": ["sm_90"]}]
    made = {"apiVersion": "fdl.dev/v1alpha1", "kind": "FdlCluster", "metadata": {"name": "default"}}
    put(crds, CLUSTER.rpartition("/")[0], made | {"spec": {"variants": variants}})
    try:
        add_node(crds, "cli-good", 5, (), **GPU)
        add_node(crds, "cli-bad", 5, (GAP,), **GPU | {"variant__cuda": "gap"})
        yield crds
    finally:
        for path in (CLUSTER, "/api/v1/nodes/cli-good", "/api/v1/nodes/cli-bad"):
            crds.request("DELETE", path)


def test_probe_shows_nodes_problems_and_remedies(cluster: ApiServer) -> None:
    done = fdl(cluster, "probe")
    assert done.exit_code == 1
    row = next(line for line in done.output.splitlines() if line.startswith("cli-good"))
    assert row.split()[1:4] == ["ready", "2", "nvidia"] and "cuda verified" in row
    assert "FAIL    kernel-coverage  cli-bad  (nvidia 0)" in done.output and "-> Add an image." in done.output


def test_probe_of_one_good_node_ends_with_0(cluster: ApiServer) -> None:
    done = fdl(cluster, "probe", "--node", "cli-good")
    assert done.exit_code == 0, done.output
    assert "cli-bad" not in done.output and "1 of 1 nodes ready" in done.output
    told = json.loads(fdl(cluster, "probe", "--node", "cli-bad", "--json").output)
    assert told["ready"] is False and told["nodes"][0]["variants"] == {"cuda": "gap"}
    missing = fdl(cluster, "probe", "--node", "cli-none")
    assert missing.exit_code == 1 and "has no node 'cli-none'; see kubectl get nodes" in missing.output


def test_a_cluster_without_fdl_says_how_to_install_it(cluster: ApiServer) -> None:
    where = connect(str(cluster.kubeconfig))
    with pytest.raises(NotInstalledError, match=r"fdl is not installed in cluster 'test' .* helm install fdl"):
        where.get("/apis/fdl.dev/v9/fdlclusters/default")
    assert where.get("/apis/fdl.dev/v1alpha1/fdlclusters/other") is None
    with pytest.raises(AccessError, match="could not answer /apis/none"):
        where.get("/apis/none")


def test_lists_are_read_page_by_page(cluster: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fdl_cli.access.PAGE", 1)
    names = {item["metadata"]["name"] for item in connect(str(cluster.kubeconfig)).items("/api/v1/nodes")}
    assert {"cli-good", "cli-bad"} <= names


def credentials(server: ApiServer, token: str, path: Path) -> Path:
    """The administrator's kubeconfig with another token."""
    content = yaml.safe_load(server.kubeconfig.read_text())
    content["users"][0]["user"] = {"token": token}
    path.write_text(yaml.safe_dump(content))
    return path


def user(server: ApiServer, namespace: str, folder: Path) -> Path:
    """Kubeconfig of a service account without any right."""
    put(server, f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "guest"}})
    answer = server.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts/guest/token", {"spec": {}})
    assert answer.code == 201, answer.message
    return credentials(server, answer.body["status"]["token"], folder / "guest")


def allow(server: ApiServer, namespace: str, *resources: tuple[str, str]) -> None:
    """Let the guest read kinds, each as (group, plural)."""
    rules = [{"apiGroups": [group], "resources": [plural], "verbs": ["get", "list"]} for group, plural in resources]
    put(
        server,
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        {"metadata": {"name": f"guest-{namespace}"}, "rules": rules},
    )
    put(
        server,
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
        {
            "metadata": {"name": f"guest-{namespace}"},
            "subjects": [{"kind": "ServiceAccount", "name": "guest", "namespace": namespace}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": f"guest-{namespace}"},
        },
    )


def test_a_person_without_rights_is_told_which_are_missing(cluster: ApiServer, namespace: str, tmp_path: Path) -> None:
    guest = user(cluster, namespace, tmp_path)
    refused = fdl(cluster, "probe", kubeconfig=guest)
    assert refused.exit_code == 1 and "does not let you read this: " in refused.output
    assert "cannot get resource" in refused.output and "fdlclusters" in refused.output
    allow(cluster, namespace, ("", "nodes"), ("fdl.dev", "fdlclusters"))
    deadline = time.monotonic() + LIMIT_S
    while (done := fdl(cluster, "probe", kubeconfig=guest)).output.startswith("Error"):
        assert time.monotonic() < deadline, done.output
        time.sleep(0.2)
    assert "cli-good" in done.output  # prober pods, which the guest may not list, only make remedies more exact


def test_wrong_credentials_are_told(cluster: ApiServer, tmp_path: Path) -> None:
    done = fdl(cluster, "probe", kubeconfig=credentials(cluster, "no-such-token", tmp_path / "wrong"))
    assert done.exit_code == 1 and "does not know you (Unauthorized)" in done.output


RUN = {
    "apiVersion": "fdl.dev/v1alpha1",
    "kind": "FdlRun",
    "metadata": {"name": "r"},
    "spec": {
        "trainer": {"source": {"image": {"path": "/a.py"}}},
        "cohorts": [{"name": "a", "vendor": "nvidia", "devicesPerReplica": 2}],
    },
}


def test_explain_a_run_and_a_node(cluster: ApiServer, namespace: str) -> None:
    put(cluster, f"/apis/fdl.dev/v1alpha1/namespaces/{namespace}/fdlruns", RUN)
    done = fdl(cluster, "explain", "run", "r", "-n", namespace)
    assert done.exit_code == 0, done.output
    rows = {line.split()[0]: line.split()[1:] for line in done.output.splitlines() if line.startswith("cli-")}
    assert rows["cli-good"][:2] == ["yes", "1"] and rows["cli-bad"][0] == "no"
    assert "fdl.dev/variant.cuda=gap" in done.output
    node = fdl(cluster, "explain", "node", "cli-bad", "-n", namespace)
    assert (
        node.exit_code == 0 and "kernel-coverage" in node.output and f"{namespace}/r" in node.output.replace("\n", "")
    )


def test_devices_that_other_pods_hold_make_a_node_full(cluster: ApiServer, namespace: str) -> None:
    put(cluster, f"/apis/fdl.dev/v1alpha1/namespaces/{namespace}/fdlruns", RUN)
    resources = {"requests": {"nvidia.com/gpu": "1"}, "limits": {"nvidia.com/gpu": "1"}}
    container = {"name": "c", "image": "i", "resources": resources}
    pod = {"metadata": {"name": "p"}, "spec": {"nodeName": "cli-good", "containers": [container]}}
    put(cluster, f"/api/v1/namespaces/{namespace}/pods", pod)
    told = fdl(cluster, "explain", "run", "r", "-n", namespace).output
    row = next(line for line in told.splitlines() if line.startswith("cli-good"))
    assert row.split()[1:3] == ["full", "0"] and "has 1 of 2" in row
    cluster.request("DELETE", f"/api/v1/namespaces/{namespace}/pods/p", {"gracePeriodSeconds": 0})


def test_what_is_not_there_is_said(cluster: ApiServer, namespace: str) -> None:
    run = fdl(cluster, "explain", "run", "none", "-n", namespace)
    assert run.exit_code == 1 and f"there is no FdlRun 'none' in namespace '{namespace}'" in run.output
    node = fdl(cluster, "explain", "node", "none")
    assert node.exit_code == 1 and "has no node 'none'" in node.output
    quiet = fdl(cluster, "explain", "node", "cli-good", "-n", namespace)
    assert quiet.exit_code == 0 and f"no unfinished run in namespace {namespace}" in quiet.output


def until(text: str, lines: list[str], stream: Any) -> None:
    """Read lines until one has ``text``; the test's own time limit bounds it."""
    for line in stream:
        lines.append(line)
        if text in line:
            return
    pytest.fail(f"no line with {text!r} in:\n{''.join(lines)}")


def test_watch_shows_a_change_and_ends_by_what_was_last_seen(cluster: ApiServer) -> None:
    words = ["probe", "--watch", "--interval", "1", "--node", "cli-good", "--kubeconfig", str(cluster.kubeconfig)]
    lines: list[str] = []
    # Where tests run in the background, interrupts are ignored, and a program that is started ignores them too.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "fdl_cli.main", *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
        try:
            until("1 of 1 nodes ready", lines, watching.stdout)
            change = {"metadata": {"labels": {labels.READY: "false"}}}
            assert cluster.request("PATCH", "/api/v1/nodes/cli-good", change, MERGE).code == 200
            until("0 of 1 nodes ready", lines, watching.stdout)
        finally:
            watching.send_signal(signal.SIGINT)
        assert watching.wait(timeout=LIMIT_S) == 1
    assert sum(line.startswith("NODE") for line in lines) == 2  # nothing was shown while nothing changed
