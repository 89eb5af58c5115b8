"""Addresses of clusters."""

import ipaddress
from itertools import combinations

import pytest

from fdl_cli.local.errors import LocalError
from fdl_cli.local.network import control_batch, host_link, node_batch
from fdl_cli.local.nodespec import plan_nodes
from fdl_cli.local.subnets import BLOCKS, Subnets, choose


def test_ranges_of_a_plan_lie_in_it_and_do_not_overlap() -> None:
    plan = Subnets(201)
    whole = ipaddress.IPv4Network(plan.whole)
    parts = [ipaddress.IPv4Network(p) for p in ("10.201.0.0/24", "10.201.1.0/30", plan.services, plan.pods)]
    assert all(p.subnet_of(whole) for p in parts)
    assert not any(a.overlaps(b) for a, b in combinations(parts, 2))


def test_every_node_has_its_own_address_and_pods() -> None:
    plan = Subnets(201)
    nodes = range(len(plan_nodes((), 60)))
    assert len({plan.node(i) for i in nodes}) == 60
    assert all(ipaddress.ip_address(plan.node(i)) in ipaddress.IPv4Network("10.201.0.0/24") for i in nodes)
    pods = [ipaddress.IPv4Network(plan.node_pods(i)) for i in nodes]
    assert all(p.subnet_of(ipaddress.IPv4Network(plan.pods)) for p in pods)
    assert len(set(pods)) == 60


def test_well_known_services_lie_in_the_service_range() -> None:
    plan = Subnets(230)
    services = ipaddress.IPv4Network(plan.services)
    assert ipaddress.ip_address(plan.kubernetes_service) == services[1]
    assert ipaddress.ip_address(plan.dns_service) in services


def test_a_taken_block_is_skipped() -> None:
    assert choose([]).block == 201
    assert choose(["10.201.0.0/16", "10.202.7.9/32"]).block == 203
    assert choose(["0.0.0.0/0", "fe80::/64", "192.168.0.0/24"]).block == 201


def test_a_covered_range_is_refused_with_the_remedy() -> None:
    with pytest.raises(LocalError, match="fdl local down"):
        choose(["10.0.0.0/8"])
    assert choose([Subnets(b).whole for b in BLOCKS if b != 250]).block == 250


@pytest.mark.parametrize("name", ["fdl", "a-much-longer-name-x", "a-much-longer-name-y"])
def test_a_link_name_fits_the_kernel(name: str) -> None:
    assert len(host_link(name)) <= 15


def test_long_names_differ() -> None:
    assert host_link("a-much-longer-name-x") != host_link("a-much-longer-name-y")


def test_a_nodes_gateway_is_the_bridge() -> None:
    plan = Subnets(205)
    assert "addr add 10.205.0.1/24 dev nodes0" in control_batch(plan)
    assert "addr add 10.205.0.13/24 dev eth0" in node_batch(plan, 2)
    assert "route add default via 10.205.0.1" in node_batch(plan, 2)
