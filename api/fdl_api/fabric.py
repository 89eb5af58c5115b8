"""Which network interface carries a node's collectives, by FdlCluster ``spec.fabric``. Pure."""

from collections.abc import Mapping, Sequence

from fdl_api.cluster import SocketInterface


def group_of(node_labels: Mapping[str, str], groups: Sequence[SocketInterface]) -> SocketInterface | None:
    """The first group whose selector a node's labels satisfy; ``None`` when it is in none."""
    return next(
        (group for group in groups if all(node_labels.get(key) == value for key, value in group.node_selector.items())),
        None,
    )
