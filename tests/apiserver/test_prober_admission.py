"""The prober against a real API server: the chart's rights and admission policy, and what its writes leave alone."""

import asyncio
import json
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from fdl_api.report import DeepDevice, DeepFacts, deep_pod_name, of_node
from fdl_prober.access import Access
from fdl_prober.loop import Prober
from fdl_prober.nodewatch import NodeWatch
from fdl_prober.server import Server, ServerError
from fdl_prober.settings import Settings

from .harness import APPLY, MERGE, Answer, ApiServer

REPOSITORY = Path(__file__).parents[2]
PARTS = ("prober-rbac", "prober-admission", "prober-daemonset")
ACTIVE_LIMIT_S = 60.0
WHERE = {
    "ServiceAccount": "/api/v1/namespaces/{namespace}/serviceaccounts",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
    "DaemonSet": "/apis/apps/v1/namespaces/{namespace}/daemonsets",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
}
CPU_IMAGE = "r/cpu:1"


def metadata(**changes: Any) -> dict[str, Any]:
    return {"metadata": changes}


@dataclass(frozen=True)
class Installed:
    """A release of the chart's prober, two nodes, and access as the prober of the first."""

    admin: ApiServer
    prober: ApiServer
    namespace: str
    account: str
    own: str
    other: str

    def node(self, name: str) -> dict[str, Any]:
        answer = self.admin.request("GET", f"/api/v1/nodes/{name}")
        assert answer.code == 200, answer.message
        return answer.body

    def write(self, change: dict[str, Any], name: str | None = None, content_type: str = MERGE) -> Answer:
        """A patch with the prober's token."""
        query = {"fieldManager": "fdl-prober"} | ({"force": "true"} if content_type == APPLY else {})
        return self.prober.request("PATCH", f"/api/v1/nodes/{name or self.own}", change, content_type, **query)

    def token(self, **bound: str) -> str:
        spec = {"audiences": [], "expirationSeconds": 3600}
        if bound:
            spec["boundObjectRef"] = bound
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{self.account}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        answer = self.admin.request("POST", path, body)
        assert answer.code == 201, answer.message
        return str(answer.body["status"]["token"])


def rendered(binaries: Path, release: str, *values: str) -> list[dict[str, Any]]:
    """The prober's objects as the chart makes them; ``values`` are as for ``helm --set``."""
    show = [argument for part in PARTS for argument in ("--show-only", f"templates/{part}.yaml")]
    command = [
        str(binaries / "helm"),
        "template",
        release,
        str(REPOSITORY / "charts/fdl"),
        "--namespace",
        release,
        *show,
        *(word for value in values for word in ("--set", value)),
    ]
    text = subprocess.run(command, check=True, capture_output=True, timeout=60, text=True).stdout
    return [manifest for manifest in yaml.safe_load_all(text) if manifest]


@pytest.fixture(scope="module")
def release(crds: ApiServer) -> Iterator[Installed]:
    """The chart's prober, installed once."""
    namespace = f"t-{uuid.uuid4().hex[:12]}"
    assert crds.request("POST", "/api/v1/namespaces", metadata(name=namespace)).code == 201
    manifests = rendered(crds.bin, namespace)
    made: list[str] = []
    # An operator of another module's tests may have made one of its own.
    crds.request("DELETE", "/apis/fdl.dev/v1alpha1/fdlclusters/default")
    for manifest in manifests:
        where = WHERE[manifest["kind"]].format(namespace=namespace) + f"/{manifest['metadata']['name']}"
        answer = crds.apply(where, manifest)
        assert answer.code == 201, answer.message
        made.append(where)
    account = next(m["metadata"]["name"] for m in manifests if m["kind"] == "ServiceAccount")
    own, other = f"{namespace}-own", f"{namespace}-other"
    admin = Installed(crds, crds, namespace, account, own, other)
    make_nodes(admin)
    pod = make_pod(crds, namespace, "prober", own, serviceAccountName=account)
    token = admin.token(kind="Pod", apiVersion="v1", name="prober", uid=pod["metadata"]["uid"])
    made_release = Installed(crds, ApiServer(**(vars(crds) | {"token": token})), namespace, account, own, other)
    wait_until_active(made_release)
    yield made_release
    for where in made:
        crds.request("DELETE", where)


def make_nodes(release: Installed) -> None:
    for name in (release.own, release.other):
        notes = {"labels": {"team": "a", "kubernetes.io/os": "linux"}, "annotations": {"note": "x"}}
        body = metadata(name=name, **notes) | {"spec": {"taints": [{"key": "gpu", "effect": "NoSchedule"}]}}
        answer = release.admin.request("POST", "/api/v1/nodes", body)
        assert answer.code == 201, answer.message


@pytest.fixture
def installed(release: Installed) -> Iterator[Installed]:
    """The release with two fresh nodes."""
    for name in (release.own, release.other):
        release.admin.request("DELETE", f"/api/v1/nodes/{name}")
    make_nodes(release)
    yield release
    for name in (release.own, release.other):
        release.admin.request("DELETE", f"/api/v1/nodes/{name}")


def make_pod(admin: ApiServer, namespace: str, name: str, node: str, **spec: Any) -> dict[str, Any]:
    labels = spec.pop("labels", {})
    image = spec.pop("image", "i")
    body = {
        "metadata": {"name": name, "labels": labels},
        "spec": {"nodeName": node, "containers": [{"name": "c", "image": image}]} | spec,
    }
    answer = admin.request("POST", f"/api/v1/namespaces/{namespace}/pods", body)
    assert answer.code == 201, answer.message
    return answer.body


def wait_until_active(release: Installed) -> None:
    """Policies and roles reach the server's own caches a moment after they are written."""
    deadline = time.monotonic() + ACTIVE_LIMIT_S
    while True:
        refused = release.prober.request("PATCH", f"/api/v1/nodes/{release.other}", {}, MERGE, dryRun="All")
        if refused.code == 403 and "may write only the node that it runs on" in refused.message:
            return
        assert time.monotonic() < deadline, refused.message
        time.sleep(0.1)


# --- the policy -----------------------------------------------------------------------------------------------------


def test_own_labels_and_the_report_can_be_written_changed_and_removed(installed: Installed) -> None:
    for value in ("true", "false", None):
        change = metadata(labels={"fdl.dev/ready": value}, annotations={"fdl.dev/report": value})
        answer = installed.write(change)
        assert answer.code == 200, answer.message
    assert "fdl.dev/ready" not in installed.node(installed.own)["metadata"]["labels"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "a foreign label": (metadata(labels={"team": "b"}), "only labels that begin with fdl.dev/"),
    "a new foreign label": (metadata(labels={"node-role.kubernetes.io/control-plane": ""}), "only labels that begin"),
    "a removed foreign label": (metadata(labels={"team": None}), "only labels that begin with fdl.dev/"),
    "all labels removed": (metadata(labels=None), "only labels that begin with fdl.dev/"),
    "a label that only looks like ours": (metadata(labels={"fdl.dev.evil.com/x": "1"}), "only labels that begin"),
    "simulated made real": (metadata(labels={"fdl.dev/simulated": "false"}), "never fdl.dev/simulated"),
    "a foreign annotation": (metadata(annotations={"note": "y"}), "only the annotation fdl.dev/report"),
    "a removed annotation": (metadata(annotations={"note": None}), "only the annotation fdl.dev/report"),
    "another annotation of ours": (metadata(annotations={"fdl.dev/other": "y"}), "only the annotation fdl.dev/report"),
    "cordon": ({"spec": {"unschedulable": True}}, "may not change a Node's spec"),
    "taints removed": ({"spec": {"taints": None}}, "may not change a Node's spec"),
    "a taint of its own": (
        {"spec": {"taints": [{"key": "gpu", "effect": "NoSchedule"}, {"key": "fdl.dev/x", "effect": "NoExecute"}]}},
        "may not change a Node's spec",
    ),
    "a provider": ({"spec": {"providerID": "other://x"}}, "may not change a Node's spec"),
    "a foreign label beside an own one": (
        metadata(labels={"fdl.dev/ready": "true", "team": "b"}),
        "only labels that begin with fdl.dev/",
    ),
    "an own label as an annotation": (metadata(annotations={"fdl.dev/ready": "true"}), "only the annotation"),
    "a finalizer": (metadata(finalizers=["fdl.dev/x"]), "may not change a Node's spec, finalizers"),
    "an owner": (
        metadata(ownerReferences=[{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "u"}]),
        "may not change a Node's spec, finalizers or owners",
    ),
}


@pytest.mark.parametrize("story", REFUSED)
def test_everything_else_is_refused_with_a_sentence(installed: Installed, story: str) -> None:
    change, sentence = REFUSED[story]
    before = installed.node(installed.own)
    answer = installed.write(change)
    assert answer.code == 403, answer.message
    assert sentence in answer.message
    assert installed.node(installed.own) == before


def test_another_node_is_refused_by_name(installed: Installed) -> None:
    answer = installed.write(metadata(labels={"fdl.dev/ready": "true"}), installed.other)
    assert answer.code == 403
    assert f"may write only the node that it runs on ({installed.own}), not {installed.other}" in answer.message


def test_a_token_that_names_no_node_writes_nothing(installed: Installed) -> None:
    """A stolen token of the account that was made outside of a pod."""
    loose = Installed(
        **(vars(installed) | {"prober": ApiServer(**(vars(installed.admin) | {"token": installed.token()}))})
    )
    answer = loose.write(metadata(labels={"fdl.dev/ready": "true"}))
    assert answer.code == 403
    assert "its token names none" in answer.message


@pytest.mark.parametrize("content_type", [MERGE, APPLY, "application/strategic-merge-patch+json"])
def test_no_kind_of_patch_gets_around_it(installed: Installed, content_type: str) -> None:
    body = {"apiVersion": "v1", "kind": "Node"} | metadata(name=installed.own, labels={"team": "b"})
    answer = installed.write(body, content_type=content_type)
    assert answer.code == 403
    assert "only labels that begin with fdl.dev/" in answer.message


def test_a_right_that_somebody_adds_opens_no_way_to_a_nodes_status(installed: Installed) -> None:
    """The policy holds by itself: here the account may patch and update everything about nodes."""
    name, rbac = f"{installed.namespace}-more", "/apis/rbac.authorization.k8s.io/v1"
    rules = [{"apiGroups": [""], "resources": ["nodes", "nodes/status"], "verbs": ["get", "patch", "update"]}]
    subject = {"kind": "ServiceAccount", "name": installed.account, "namespace": installed.namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    binding = metadata(name=name) | {"roleRef": reference, "subjects": [subject]}
    paths = [f"{rbac}/clusterroles", f"{rbac}/clusterrolebindings"]
    status, other = f"/api/v1/nodes/{installed.own}/status", f"/api/v1/nodes/{installed.other}"
    try:
        assert installed.admin.request("POST", paths[0], metadata(name=name) | {"rules": rules}).code == 201
        assert installed.admin.request("POST", paths[1], binding).code == 201
        deadline = time.monotonic() + ACTIVE_LIMIT_S
        answer = installed.prober.request("PATCH", status, {"status": {"phase": "Running"}}, MERGE)
        while "may not change a Node's status" not in answer.message:
            assert answer.code == 403 and time.monotonic() < deadline, answer.message
            time.sleep(0.1)
            answer = installed.prober.request("PATCH", status, {"status": {"phase": "Running"}}, MERGE)
        put = installed.prober.request("PUT", other, installed.node(installed.other) | {"spec": {}})
        assert put.code == 403 and "only the node that it runs on" in put.message
    finally:
        for path in paths:
            installed.admin.request("DELETE", f"{path}/{name}")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", "/api/v1/nodes/{own}"),
        ("POST", "/api/v1/nodes"),
        ("POST", "/api/v1/namespaces/default/pods/x/eviction"),
        ("PATCH", "/api/v1/nodes/{own}/status"),
        ("DELETE", "/api/v1/nodes/{own}"),
        ("GET", "/api/v1/nodes"),
        ("GET", "/api/v1/secrets"),
        ("GET", "/api/v1/pods"),
        ("GET", "/api/v1/namespaces/default/pods"),
        ("GET", "/apis/fdl.dev/v1alpha1/fdlruns"),
        ("PATCH", "/apis/fdl.dev/v1alpha1/fdlclusters/default"),
    ],
)
def test_no_other_right_is_given(installed: Installed, method: str, path: str) -> None:
    body: dict[str, Any] | None = {} if method in ("PATCH", "PUT", "POST") else None
    kind = MERGE if method == "PATCH" else "application/json"
    assert installed.prober.request(method, path.format(own=installed.own), body, kind).code == 403


def test_a_node_that_does_not_exist_is_not_made_by_applying_it(installed: Installed) -> None:
    name = f"{installed.namespace}-new"
    body = {"apiVersion": "v1", "kind": "Node"} | metadata(name=name, labels={"fdl.dev/ready": "true"})
    assert installed.write(body, name, APPLY).code == 403
    assert installed.admin.request("GET", f"/api/v1/nodes/{name}").code == 404


def test_other_writers_of_nodes_are_not_concerned(installed: Installed) -> None:
    change = metadata(labels={"team": "b"})
    assert installed.admin.request("PATCH", f"/api/v1/nodes/{installed.other}", change, MERGE).code == 200


def daemon_sets(manifests: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Pod specs of the two DaemonSets, by component."""
    found = [manifest for manifest in manifests if manifest["kind"] == "DaemonSet"]
    return {
        item["metadata"]["labels"]["app.kubernetes.io/component"]: item["spec"]["template"]["spec"] for item in found
    }


def test_the_hosts_processes_are_shared_only_when_asked_and_only_on_nodes_with_devices(crds: ApiServer) -> None:
    assert not any("hostPID" in pod for pod in daemon_sets(rendered(crds.bin, "r")).values())
    asked = daemon_sets(rendered(crds.bin, "r", "prober.staleProcesses=true"))
    assert (asked["prober-gpu"].get("hostPID"), "hostPID" in asked["prober"]) == (True, False)
    (container,) = asked["prober-gpu"]["containers"]
    assert {"name": "FDL_STALE_PROCESSES", "value": "true"} in container["env"]


def test_volumes_are_mounted_as_they_are_used(crds: ApiServer) -> None:
    values = ("prober.volumes[0].claim=d", "prober.volumes[1].claim=c", "prober.volumes[1].kind=checkpoints")
    for pod in daemon_sets(rendered(crds.bin, "r", *values)).values():
        (container,) = pod["containers"]
        told = {entry["name"]: entry.get("value") for entry in container["env"]}
        assert (told["FDL_DATA_FOLDERS"], told["FDL_CHECKPOINT_FOLDERS"]) == ("/volumes/0", "/volumes/1")
        mounts = {mount["mountPath"]: mount.get("readOnly") for mount in container["volumeMounts"]}
        assert (mounts["/volumes/0"], mounts["/volumes/1"]) == (True, False)
        claims = {volume["name"]: volume.get("persistentVolumeClaim") for volume in pod["volumes"]}
        # Not read-only there: of a claim that is in two volumes of a pod, the kubelet takes either word for both.
        assert (claims["volume-0"], claims["volume-1"]) == ({"claimName": "d"}, {"claimName": "c"})


# --- the prober -----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def running(release: Installed, tmp_path: Path, **settings: Any) -> AsyncIterator[Prober]:
    """The prober with its own token, on a machine without devices."""
    token = tmp_path / "token"
    token.write_text(release.prober.token)
    access = Access(release.prober.url, Path(release.prober.ca_file), token)
    values: dict[str, Any] = {"driver_roots": (), "sysfs_root": tmp_path, "dev_root": tmp_path} | settings
    own = Settings(node=release.own, namespace=release.namespace, **values)
    prober = Prober(own, Server(access, release.own, release.namespace))
    await prober.start()
    yield prober


def fdl_labels(node: dict[str, Any]) -> dict[str, str]:
    labels: dict[str, str] = node["metadata"]["labels"]
    return {key: value for key, value in labels.items() if key.startswith("fdl.dev/")}


@pytest.fixture
def cluster(installed: Installed) -> Iterator[str]:
    where = "/apis/fdl.dev/v1alpha1/fdlclusters/default"
    body = {
        "apiVersion": "fdl.dev/v1alpha1",
        "kind": "FdlCluster",
        "metadata": {"name": "default"},
        "spec": {"variants": [{"name": "cpu", "vendor": "cpu", "image": CPU_IMAGE}]},
    }
    answer = installed.admin.apply(where, body)
    assert answer.code == 201, answer.message
    yield where
    installed.admin.request("DELETE", where)


async def test_the_node_gets_labels_and_a_report_and_keeps_the_rest(
    installed: Installed, cluster: str, tmp_path: Path
) -> None:
    before = installed.node(installed.own)
    async with running(installed, tmp_path) as prober:
        assert await prober.step()
    node = installed.node(installed.own)
    assert fdl_labels(node) == {
        "fdl.dev/gpu-vendor": "none",
        "fdl.dev/ready": "false",  # no interface below this sysfs
        "fdl.dev/vendor.cpu": "true",
        "fdl.dev/variant.cpu": "covers",
        "fdl.dev/libtorch-coverage": "full",
    }
    assert before["metadata"]["labels"].items() <= node["metadata"]["labels"].items()
    assert node["metadata"]["annotations"]["note"] == "x"
    assert node["spec"] == before["spec"]
    report = of_node(node["metadata"]["annotations"])
    assert report is not None
    assert report.node == installed.own
    assert report.host.clock_offset_seconds is not None
    assert abs(report.host.clock_offset_seconds) < 5
    assert [want.image for want in report.deep_wanted] == [CPU_IMAGE]
    owners = {entry["manager"]: entry for entry in node["metadata"]["managedFields"]}
    fields = owners["fdl-prober"]["fieldsV1"]["f:metadata"]
    assert owners["fdl-prober"]["operation"] == "Apply"
    assert all(key == "f:fdl.dev/report" for key in fields["f:annotations"])
    assert all(key.startswith("f:fdl.dev/") for key in fields["f:labels"])


async def test_nothing_new_is_not_written_and_costs_no_call(installed: Installed, cluster: str, tmp_path: Path) -> None:
    async with running(installed, tmp_path) as prober:
        assert await prober.step()
        version = installed.node(installed.own)["metadata"]["resourceVersion"]
        prober.state.report = (
            prober.state.report.model_copy(update={"deep_wanted": ()}) if prober.state.report else None
        )
        calls = prober_calls(installed)
        assert not await prober.step()
        assert not await prober.step()
        assert prober_calls(installed) == calls
    assert installed.node(installed.own)["metadata"]["resourceVersion"] == version


def prober_calls(release: Installed) -> int:
    """Requests of the prober's account, counted by the server."""
    user = f"system:serviceaccount:{release.namespace}:{release.account}"
    lines = (json.loads(line) for line in release.admin.audit_log.read_text().splitlines())
    # A request that was turned away before anybody knew whose it was has no user.
    return sum(line["user"].get("username") == user and line["stage"] == "ResponseComplete" for line in lines)


async def test_an_old_report_is_renewed(installed: Installed, cluster: str, tmp_path: Path) -> None:
    async with running(installed, tmp_path, refresh_seconds=0) as prober:
        assert await prober.step()
        assert await prober.step()


async def test_labels_of_things_that_went_are_removed_and_only_those(
    installed: Installed, cluster: str, tmp_path: Path
) -> None:
    installed.admin.request("PATCH", f"/api/v1/nodes/{installed.own}", metadata(labels={"fdl.dev/mine": "x"}), MERGE)
    async with running(installed, tmp_path) as prober:
        await prober.step()
        body = {"spec": {"variants": [{"name": "cpu2", "vendor": "cpu", "image": CPU_IMAGE}]}}
        assert installed.admin.request("PATCH", cluster, body, MERGE).code == 200
        await prober.step()
        assert "fdl.dev/variant.cpu2" not in fdl_labels(installed.node(installed.own)), "it asks now and then only"
        prober.look_soon()
        await prober.step()
    labels = fdl_labels(installed.node(installed.own))
    assert "fdl.dev/variant.cpu" not in labels
    assert labels["fdl.dev/variant.cpu2"] == "covers"
    assert labels["fdl.dev/mine"] == "x"


async def test_a_cluster_object_that_was_made_anew_is_read_anew(
    installed: Installed, cluster: str, tmp_path: Path
) -> None:
    async with running(installed, tmp_path) as prober:
        await prober.step()
        assert installed.admin.request("DELETE", cluster).code == 200
        variant = {"name": "other", "vendor": "cpu", "image": CPU_IMAGE}
        body = {"apiVersion": "fdl.dev/v1alpha1", "kind": "FdlCluster", "metadata": {"name": "default"}}
        answer = installed.admin.apply(cluster, body | {"spec": {"variants": [variant]}})
        assert answer.code == 201, answer.message
        prober.look_soon()
        await prober.step()
    assert fdl_labels(installed.node(installed.own))["fdl.dev/variant.other"] == "covers"


async def test_labels_stay_when_the_prober_goes_and_a_new_one_goes_on(
    installed: Installed, cluster: str, tmp_path: Path
) -> None:
    stop = asyncio.Event()
    async with running(installed, tmp_path) as prober:
        task = asyncio.create_task(prober.run(stop))
        deadline = time.monotonic() + 60
        while not fdl_labels(installed.node(installed.own)):
            assert time.monotonic() < deadline
            await asyncio.sleep(0.05)
        stop.set()
        await asyncio.wait_for(task, 60)
    before = fdl_labels(installed.node(installed.own))
    assert before
    async with running(installed, tmp_path) as prober:
        assert prober.state.report is not None
        await prober.step()
    assert fdl_labels(installed.node(installed.own)) == before


async def test_simulated_hardware_is_found_and_the_mark_stays(
    installed: Installed, cluster: str, tmp_path: Path
) -> None:
    mark = metadata(labels={"fdl.dev/simulated": "true"})
    installed.admin.request("PATCH", f"/api/v1/nodes/{installed.own}", mark, MERGE)
    (tmp_path / "amd").symlink_to(REPOSITORY / "tests/unit/prober/data/mi300x")
    async with running(installed, tmp_path, simulated_root=tmp_path) as prober:
        await prober.step()
        labels = fdl_labels(installed.node(installed.own))
        assert (labels["fdl.dev/gpu-vendor"], labels["fdl.dev/count.amd"]) == ("amd", "8")
        assert labels["fdl.dev/arch.gfx942"] == "true"
        assert labels["fdl.dev/simulated"] == "true"
        assert not await prober.changed()
        (tmp_path / "amd").unlink()
        (tmp_path / "amd").symlink_to(REPOSITORY / "tests/unit/prober/data/radeon")
        assert await prober.changed()
        await prober.step()
    labels = fdl_labels(installed.node(installed.own))
    assert (labels["fdl.dev/count.amd"], labels["fdl.dev/gpu-arch"]) == ("1", "gfx1100")
    assert "fdl.dev/arch.gfx942" not in labels
    assert labels["fdl.dev/simulated"] == "true"


async def test_the_node_asks_for_a_look(installed: Installed, tmp_path: Path) -> None:
    """With the prober's own token and rights, over a real watch."""
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    token = tmp_path / "token"
    token.write_text(installed.prober.token)
    access = Access(installed.prober.url, Path(installed.prober.ca_file), token)
    watch = NodeWatch(access, installed.own, lambda _, wants: loop.call_soon_threadsafe(asked.set) if wants else None)
    watch.start()
    try:
        deadline = loop.time() + 30
        while not asked.is_set() and loop.time() < deadline:  # the first events only say how things are
            note = metadata(annotations={"fdl.dev/probe-now": uuid.uuid4().hex})
            answer = await asyncio.to_thread(
                installed.admin.request, "PATCH", f"/api/v1/nodes/{installed.own}", note, MERGE
            )
            assert answer.code == 200, answer.message
            await asyncio.sleep(0.1)
        assert asked.is_set()
        asked.clear()
        offered = {"status": {"allocatable": {"nvidia.com/gpu": "3"}, "capacity": {"nvidia.com/gpu": "3"}}}
        path = f"/api/v1/nodes/{installed.own}/status"
        answer = await asyncio.to_thread(installed.admin.request, "PATCH", path, offered, MERGE)
        assert answer.code == 200, answer.message
        await asyncio.wait_for(asked.wait(), 30)
    finally:
        watch.stop()


async def test_a_finished_deep_check_verifies_the_variant(installed: Installed, cluster: str, tmp_path: Path) -> None:
    async with running(installed, tmp_path) as prober:
        await prober.step()
        report = of_node(installed.node(installed.own)["metadata"]["annotations"])
        assert report is not None
        (want,) = report.deep_wanted
        name = deep_pod_name(installed.own, want)
        role = {"fdl.dev/role": "deep-check"}
        make_pod(installed.admin, installed.namespace, name, installed.own, labels=role, image=want.image)
        await prober.step()
        assert fdl_labels(installed.node(installed.own))["fdl.dev/variant.cpu"] == "covers"
        facts = DeepFacts(variant="cpu", vendor="cpu", torch_version="2.6.0", devices=(DeepDevice(index=0, ok=True),))
        ended = {"exitCode": 0, "message": facts.render(), "startedAt": None, "finishedAt": None}
        container = {"name": "c", "image": want.image, "imageID": "", "ready": False, "restartCount": 0}
        status = {"phase": "Succeeded", "containerStatuses": [container | {"state": {"terminated": ended}}]}
        path = f"/api/v1/namespaces/{installed.namespace}/pods/{name}/status"
        answer = installed.admin.request("PATCH", path, {"status": status}, MERGE)
        assert answer.code == 200, answer.message
        assert await prober.step()
    labels = fdl_labels(installed.node(installed.own))
    assert labels["fdl.dev/variant.cpu"] == "verified"
    assert labels["fdl.dev/libtorch-version"] == "2.6.0"
    report = of_node(installed.node(installed.own)["metadata"]["annotations"])
    assert report is not None
    assert report.deep_wanted == ()
    async with running(installed, tmp_path) as successor:
        await successor.step()
    assert fdl_labels(installed.node(installed.own))["fdl.dev/variant.cpu"] == "verified"


async def test_without_a_cluster_object_the_node_is_described_all_the_same(
    installed: Installed, tmp_path: Path
) -> None:
    async with running(installed, tmp_path) as prober:
        await prober.step()
        assert prober.state.waits == 1
    node = installed.node(installed.own)
    assert fdl_labels(node)["fdl.dev/vendor.cpu"] == "true"
    report = of_node(node["metadata"]["annotations"])
    assert report is not None
    assert [check.name for check in report.checks if check.severity == "warn"] == ["variant-metadata"]


async def test_a_server_that_cannot_be_reached_takes_no_variant_label_away(
    installed: Installed, cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(installed, tmp_path) as prober:
        await prober.step()
    before = fdl_labels(installed.node(installed.own))
    async with running(installed, tmp_path) as prober:
        monkeypatch.setattr("fdl_prober.server.TIMEOUT_SECONDS", 1e-9)
        with pytest.raises(ServerError):
            await prober.step()
    assert fdl_labels(installed.node(installed.own)) == before
