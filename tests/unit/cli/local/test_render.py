"""Configuration files."""

import json
import tomllib
from decimal import Decimal
from pathlib import Path

import pytest
import yaml

from fdl_cli.local import holders, kind, programs, render
from fdl_cli.local.errors import LocalError
from fdl_cli.local.nodespec import NodeSpec, parse_node
from fdl_cli.local.render import Machine, Site
from fdl_cli.local.subnets import Subnets

SITE = Site("c", Subnets(201), Path("/cache/bin"), Path("/s/pki"), Path("/s/log"), Path("/s"))
MACHINE = Machine(2, 8 * 2**30)


def test_reservation_leaves_just_the_nodes_size_allocatable() -> None:
    kept = render.reserved(NodeSpec("n", Decimal("0.5"), 2 * 2**30), MACHINE)
    assert kept["cpu"] == "1500m"
    assert MACHINE.memory - int(kept["memory"]) - render.EVICTION_MEMORY == 2 * 2**30
    assert render.reserved(NodeSpec("n"), MACHINE) == {}


def test_the_kubelet_works_on_both_cgroup_versions_with_short_periods() -> None:
    config = yaml.safe_load(render.kubelet(SITE, NodeSpec("n", Decimal("0.5")), MACHINE))
    assert config["failCgroupV1"] is False
    assert config["cgroupRoot"] == "/fdl.c/n/pods"
    assert config["cpuCFSQuotaPeriod"] == "10ms"
    assert config["featureGates"] == {"CustomCPUCFSQuotaPeriod": True}
    assert config["clusterDNS"] == ["10.201.16.10"]


def test_containerd_reads_as_toml_and_does_not_need_to_lower_oom_scores() -> None:
    config = tomllib.loads(render.containerd(Path("/cache/bin")))
    runtime = config["plugins"]["io.containerd.cri.v1.runtime"]
    assert runtime["restrict_oom_score_adj"] is True
    assert runtime["cni"]["bin_dirs"] == ["/cache/bin/cni"]
    assert config["grpc"]["address"] == render.CONTAINERD_SOCKET


def test_pods_get_addresses_of_their_nodes_range() -> None:
    network = json.loads(render.cni("10.201.130.0/24"))
    assert network["plugins"][0]["ipam"]["ranges"] == [[{"subnet": "10.201.130.0/24"}]]


def test_a_simulated_node_is_labelled_and_a_plain_one_is_not() -> None:
    simulated = render.node_object(parse_node("name=a,amd=1:gfx942"), "10.201.128.0/24")
    assert simulated["metadata"]["labels"]["fdl.dev/simulated"] == "true"
    assert simulated["spec"]["podCIDR"] == "10.201.128.0/24"
    for text in ("name=a", "name=a,amd=0"):
        assert "fdl.dev/simulated" not in render.node_object(parse_node(text), "x")["metadata"]["labels"]


def test_the_audit_policy_writes_one_line_a_request() -> None:
    policy = yaml.safe_load(render.AUDIT_POLICY)
    assert policy["rules"] == [{"level": "Metadata"}]
    assert "RequestReceived" in policy["omitStages"]


def test_dns_is_served_at_the_address_that_pods_are_told() -> None:
    objects = {(o["kind"], o["metadata"]["name"]): o for o in render.addons(SITE.subnets)}
    assert objects["Service", "kube-dns"]["spec"]["clusterIP"] == SITE.subnets.dns_service
    assert objects["EndpointSlice", "kube-dns"]["endpoints"][0]["addresses"] == [SITE.subnets.control]
    assert "selector" not in objects["Service", "kube-dns"]["spec"]


def test_the_storage_class_is_the_default_one_only_where_there_is_no_other() -> None:
    key = "storageclass.kubernetes.io/is-default-class"
    assert render.storage_class(default=True)["metadata"]["annotations"] == {key: "true"}
    assert render.storage_class(default=False)["metadata"]["annotations"] == {}


def test_a_kubeconfig_names_its_cluster() -> None:
    config = yaml.safe_load(render.kubeconfig("https://10.201.1.2:6443", "a", "c", "k", "fdl-c"))
    assert config["current-context"] == "fdl-c"
    assert config["clusters"][0]["cluster"]["server"] == "https://10.201.1.2:6443"
    assert config["users"][0]["user"] == {"client-certificate-data": "c", "client-key-data": "k"}


def test_every_program_is_called_by_its_path_and_only_once() -> None:
    for listed in (programs.control_programs(SITE), programs.node_programs(SITE, "n", "10.201.0.11")):
        assert all(p.argv[0] == f"/cache/bin/{p.name}" for p in listed)
        assert len({p.name for p in listed}) == len(listed)


def test_a_nodes_own_var_is_mounted_before_what_lies_in_it() -> None:
    folder = Path("/s/members/n")
    described = holders.description(SITE, "n", [], procs=[], binds=holders.node_binds(folder))
    targets = [b["target"] for b in described["binds"]]
    assert targets[0] == "/var"
    assert described["root"] == "/s/members/n/root"


def test_kind_gets_a_worker_for_each_node_and_shared_volumes() -> None:
    config = yaml.safe_load(kind.config({"kind": "Cluster"}, [NodeSpec("a"), NodeSpec("b")], Path("/v")))
    assert [n["role"] for n in config["nodes"]] == ["control-plane", "worker", "worker"]
    assert all(n["extraMounts"] == [{"hostPath": "/v", "containerPath": "/v"}] for n in config["nodes"])


@pytest.mark.parametrize("text", ["cpu=0.5", "memory=1Gi", "nvidia=1:sm_90"])
def test_kind_refuses_what_it_cannot_give(text: str) -> None:
    with pytest.raises(LocalError, match="--provider native"):
        kind.config({}, [parse_node(text)], Path("/v"))
