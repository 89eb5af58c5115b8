"""``--node`` and the names and sizes of nodes."""

from decimal import Decimal

import pytest

from fdl_cli.local.errors import LocalError
from fdl_cli.local.nodespec import (
    Accelerators,
    NodeSpec,
    check_cluster_name,
    check_fits,
    parse_cpu,
    parse_memory,
    parse_node,
    plan_nodes,
)


def test_all_keys_are_read() -> None:
    node = parse_node("name=big, cpu=1.5,memory=2Gi,nvidia=2:sm_90,amd=1:gfx942")
    devices = (Accelerators("nvidia", 2, "sm_90"), Accelerators("amd", 1, "gfx942"))
    assert node == NodeSpec("big", Decimal("1.5"), 2 * 2**30, devices)
    assert node.simulated


@pytest.mark.parametrize(("text", "cores"), [("0.5", "0.5"), ("500m", "0.5"), ("2", "2"), ("0.05", "0.05")])
def test_cores(text: str, cores: str) -> None:
    assert parse_cpu(text) == Decimal(cores)


@pytest.mark.parametrize("text", ["", "x", "0", "-1", "0.04", "0.0005", "inf", "nan", "m"])
def test_bad_cores_are_refused_by_name(text: str) -> None:
    with pytest.raises(LocalError, match=f"cpu={text}"):
        parse_cpu(text)


def test_memory_is_in_bytes() -> None:
    assert parse_memory("512Mi") == 512 * 2**20
    assert parse_memory("65536Ki") == 64 * 2**20


@pytest.mark.parametrize("text", ["2", "2G", "1.5Gi", "-1Gi", "63Mi", ""])
def test_bad_memory_is_refused_by_name(text: str) -> None:
    with pytest.raises(LocalError, match=f"memory={text}"):
        parse_memory(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "empty"),
        ("gpu=1", "'gpu=1' is not understood"),
        ("cpu", "'cpu' is not understood"),
        ("cpu=1,cpu=2", "cpu is given twice"),
        ("name=control", "cannot name a node"),
        ("name=Upper", "cannot name a node"),
        ("name=" + "x" * 31, "cannot name a node"),
        ("nvidia=2", "no architecture"),
        ("nvidia=2:gfx942", "no architecture"),
        ("amd=1:sm_90", "no architecture"),
        ("nvidia=65:sm_90", "no count"),
        ("nvidia=-1:sm_90", "no count"),
    ],
)
def test_bad_nodes_are_refused_with_the_reason(text: str, said: str) -> None:
    with pytest.raises(LocalError, match=said):
        parse_node(text)


def test_no_devices_can_be_asked_for() -> None:
    assert parse_node("nvidia=0").accelerators == (Accelerators("nvidia", 0, ""),)
    assert not parse_node("nvidia=0").simulated


@pytest.mark.parametrize(
    ("given", "count", "names"),
    [
        ((), None, ["node1", "node2", "node3"]),
        ((), 1, ["node1"]),
        ((NodeSpec("a"),), None, ["a"]),
        ((NodeSpec("a"), NodeSpec()), 3, ["a", "node2", "node3"]),
        ((NodeSpec(), NodeSpec()), 1, ["node1", "node2"]),
    ],
)
def test_nodes_are_filled_up_and_named_by_place(
    given: tuple[NodeSpec, ...], count: int | None, names: list[str]
) -> None:
    assert [n.name for n in plan_nodes(given, count)] == names


def test_two_nodes_of_one_name_are_refused() -> None:
    with pytest.raises(LocalError, match="called node2"):
        plan_nodes((NodeSpec("node2"), NodeSpec()), None)


@pytest.mark.parametrize("count", [0, -1, 61])
def test_the_number_of_nodes_is_bounded(count: int) -> None:
    with pytest.raises(LocalError, match="1 to 60"):
        plan_nodes((), count)


def test_a_node_larger_than_the_machine_is_refused() -> None:
    check_fits((NodeSpec("a", Decimal(2), 2**30),), 2, 2 * 2**30)
    with pytest.raises(LocalError, match="cpu=3 is more"):
        check_fits((NodeSpec("a", Decimal(3)),), 2, 2**40)
    with pytest.raises(LocalError, match="memory=2048Mi is more"):
        check_fits((NodeSpec("a", None, 2 * 2**30),), 2, 2 * 2**30)


@pytest.mark.parametrize("name", ["", "1a", "a_b", "-a", "a-", "a/b", "..", "a" * 21])
def test_bad_cluster_names_are_refused(name: str) -> None:
    with pytest.raises(LocalError, match="cluster's name"):
        check_cluster_name(name)
