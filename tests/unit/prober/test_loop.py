"""What the loop takes from the cluster's word: the interface of a node's group."""

import pytest

from fdl_api.cluster import FabricSpec, SocketInterface
from fdl_prober.loop import socket_interface

FABRIC = FabricSpec(
    groups=(
        SocketInterface(name="fast", node_selector={"zone": "a", "net": "ib"}, socket_interface="ib0"),
        SocketInterface(name="rest", socket_interface="eth0"),
    )
)


@pytest.mark.parametrize(
    ("labels", "name"),
    [({"zone": "a", "net": "ib", "x": "y"}, "ib0"), ({"zone": "a"}, "eth0"), ({}, "eth0")],
)
def test_the_first_group_whose_labels_a_node_has(labels: dict[str, str], name: str) -> None:
    assert socket_interface(FABRIC, labels) == name


def test_no_group_names_no_interface() -> None:
    assert socket_interface(None, {}) == ""
    assert socket_interface(FabricSpec(groups=FABRIC.groups[:1]), {"zone": "a"}) == ""
