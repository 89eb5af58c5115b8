"""A cluster as pods and people see it."""

from collections.abc import Iterator

import pytest

from fdl_cli.local import Cluster

from .helpers import create, eventually, execute, fetches, phase, pod, reaches, remove

pytestmark = pytest.mark.e2e


@pytest.fixture(autouse=True)
def tidy(cluster: Cluster) -> Iterator[None]:
    """Leaves no pod to the next test."""
    yield
    remove(cluster, "networkpolicy", "pod", "pvc", "service")


def service(name: str) -> dict[str, object]:
    """A service for the pods labelled ``app: <name>``."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80, "targetPort": 8080}]},
    }


def test_nodes_have_the_sizes_that_were_asked_for(cluster: Cluster) -> None:
    sizes = {s.spec.name: (s.cpu, s.memory) for s in cluster.status()}
    assert sizes["slow"] == ("500m", "1Gi")
    assert sizes["plain"][0] != "500m"
    assert all(s.ready and s.condition == "running" for s in cluster.status())


def test_half_a_core_is_half_a_core(cluster: Cluster) -> None:
    create(cluster, pod("burner", "slow", "burn", "4"))
    eventually("the burner has ended", lambda: phase(cluster, "burner") == "Succeeded")
    share = float(cluster.kubectl().run("logs", "burner").split()[0])
    assert 0.3 < share < 0.56


def test_names_and_services_work_across_nodes_and_from_the_same_node(cluster: Cluster) -> None:
    create(cluster, service("web"), pod("web", "plain", "serve", "hello", labels={"app": "web"}))
    create(cluster, pod("far", "slow", "serve", ""), pod("near", "plain", "serve", ""))
    for name in ("far", "near", "web"):
        reaches(cluster, name, "http://web.default.svc")
    assert execute(cluster, "far", "fetch", "http://web") == "hello"


def test_a_network_policy_is_enforced_on_both_sides_of_a_node(cluster: Cluster) -> None:
    create(
        cluster,
        service("web"),
        pod("web", "plain", "serve", "hello", labels={"app": "web"}),
        pod("friend", "slow", "serve", "", labels={"may": "enter"}),
        pod("stranger", "slow", "serve", ""),
        pod("neighbour", "plain", "serve", ""),
    )
    for name in ("friend", "stranger", "neighbour"):
        reaches(cluster, name, "http://web")
    policy = {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": "web"},
        "spec": {
            "podSelector": {"matchLabels": {"app": "web"}},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"may": "enter"}}}]}],
        },
    }
    create(cluster, policy)
    eventually("the stranger is kept out", lambda: not fetches(cluster, "stranger", "http://web"))
    eventually("the neighbour is kept out", lambda: not fetches(cluster, "neighbour", "http://web"))
    assert fetches(cluster, "friend", "http://web")


def test_a_claim_is_provisioned_for_all_nodes_and_removed_with_its_folder(cluster: Cluster) -> None:
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data"},
        "spec": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}},
    }
    as_anybody = {"securityContext": {"runAsUser": 4711, "runAsNonRoot": True}}
    create(cluster, claim, pod("writer", "plain", "write", "/data/x", "kept", claim="data", container=as_anybody))
    eventually("the writer has ended", lambda: phase(cluster, "writer") == "Succeeded")
    create(cluster, pod("reader", "slow", "read", "/data/x", claim="data"))
    eventually("the reader has ended", lambda: phase(cluster, "reader") == "Succeeded")
    assert cluster.kubectl().run("logs", "reader") == "kept"
    assert [p.name for p in cluster.paths.volumes.glob("*/x")] == ["x"]
    remove(cluster, "pod", "pvc")
    eventually("the folder is gone", lambda: not list(cluster.paths.volumes.iterdir()))


def test_the_audit_log_names_user_and_verb(cluster: Cluster) -> None:
    cluster.kubectl().run("get", "configmaps", "-n", "kube-system")
    eventually(
        "the call is in the log",
        lambda: any(
            '"verb":"list"' in line and '"kubernetes-admin"' in line and '"configmaps"' in line
            for line in cluster.audit_log.read_text().splitlines()
        ),
    )


def test_simulated_devices_are_offered_and_change_while_pods_run(cluster: Cluster) -> None:
    kubectl = cluster.kubectl()

    def offered() -> dict[str, str]:
        sizes = kubectl.json("get", "node", "sim")["status"]["allocatable"]
        return {k: v for k, v in sizes.items() if k.endswith("/gpu")}

    assert offered() == {"nvidia.com/gpu": "2", "amd.com/gpu": "1"}
    assert kubectl.json("get", "node", "sim")["metadata"]["labels"]["fdl.dev/simulated"] == "true"
    assert "fdl.dev/simulated" not in kubectl.json("get", "node", "plain")["metadata"]["labels"]
    limits = {"resources": {"limits": {"nvidia.com/gpu": "2"}}}
    create(cluster, pod("taker", "sim", "serve", "", container=limits))
    kubectl.apply([pod("late", "sim", "serve", "", container=limits)])
    eventually(
        "the second pod finds no device left",
        lambda: "Insufficient nvidia.com/gpu" in str(kubectl.json("get", "pod", "late")["status"]),
    )
    driver = cluster.node_path("sim", "/run/fdl/driver")
    assert "arch 9.0" in (driver / "nvidia/etc/fdl-fake-nvml.conf").read_text()
    assert "gfx_target_version 90402" in (driver / "amd/sys/class/kfd/kfd/topology/nodes/1/properties").read_text()
