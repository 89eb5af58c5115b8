"""Whether the nodes that an NCCL cohort could span fit together, by their reports laid side by side."""

from collections.abc import Callable, Mapping, Sequence

from fdl_api import labels
from fdl_api.checks.machine import HOST_SURVEY
from fdl_api.cluster import FdlClusterSpec, SocketInterface
from fdl_api.fabric import group_of
from fdl_api.reasons import ClusterReason
from fdl_operator.plan.findings import Finding, Seen, compared, devices, listed

Groups = Mapping[str, SocketInterface | None]


def fabric_known(spec: FdlClusterSpec, seen: Sequence[Seen]) -> Finding:
    """Whether each node that an NCCL cohort could share with another has a network interface that is there and up, and
    whether those of one vendor have it with one MTU and have the same RDMA devices.
    """
    cohorts = [own for vendor in labels.GPU_VENDORS if len(own := _with_devices(seen, vendor)) > 1]
    nodes = {each.row.name: each for own in cohorts for each in own}
    if not nodes:
        return Finding(True, ClusterReason.NOT_NEEDED, "no two nodes have devices of one vendor")
    groups = {name: group_of(each.node.labels, spec.fabric.groups) for name, each in sorted(nodes.items())}
    fresh = {name: each for name, each in nodes.items() if each.report is not None and each.node.interfaces is not None}
    unknown = [name for name, group in groups.items() if group is not None and name not in fresh]
    found = _not_named(groups) or _down(groups, fresh)
    for own in cohorts:
        known = [each for each in own if each.row.name in fresh]
        found = found or _mtu_differs(groups, known) or _rdma_differs(known)
    if found is not None:
        return found
    if unknown:
        return Finding(None, ClusterReason.INTERFACE_UNKNOWN, f"no fresh report lists interfaces of {listed(unknown)}")
    return Finding(True, ClusterReason.AS_EXPECTED, f"all {len(nodes)} nodes with devices have their interface")


def _with_devices(seen: Sequence[Seen], vendor: str) -> list[Seen]:
    return [each for each in seen if devices(each.node, vendor)]


def _not_named(groups: Groups) -> Finding | None:
    unnamed = [name for name, group in groups.items() if group is None]
    if not unnamed:
        return None
    sentence = f"spec.fabric.groups names no network interface for {listed(unnamed)}"
    return Finding(False, ClusterReason.INTERFACE_NOT_NAMED, sentence)


def _down(groups: Groups, fresh: Mapping[str, Seen]) -> Finding | None:
    down: list[str] = []
    for name, group in groups.items():
        present = (fresh[name].node.interfaces or ()) if name in fresh else ()
        if group is not None and name in fresh and group.socket_interface not in present:
            down.append(
                f"{name} ({group.socket_interface} of group {group.name}; it has {', '.join(present) or 'none'})"
            )
    if not down:
        return None
    sentence = f"pods do not have the interface that spec.fabric.groups names, or it is down, on {listed(down)}"
    return Finding(False, ClusterReason.INTERFACE_DOWN, sentence)


def _mtu_differs(groups: Groups, own: Sequence[Seen]) -> Finding | None:
    """An interface of another MTU than its peers': what the larger one sends may be lost on the way, and hang."""
    sides = _sides(own, lambda each: _mtu(each, groups[each.row.name]))
    if len(sides) < 2:
        return None
    sentence = f"the interfaces for collectives have different MTUs: {compared(sides)}"
    return Finding(False, ClusterReason.MTU_DIFFERS, sentence)


def _mtu(each: Seen, group: SocketInterface | None) -> str:
    """In bytes; empty where it is not known."""
    interfaces = each.report.host.interfaces if each.report is not None else ()
    name = group.socket_interface if group is not None else ""
    return next((f"{item.mtu}" for item in interfaces if item.name == name and item.mtu), "")


def _rdma_differs(own: Sequence[Seen]) -> Finding | None:
    """RDMA devices that only some have: NCCL would choose InfiniBand on some ranks and sockets on others."""
    sides = _sides(own, _rdma)
    if len(sides) < 2:
        return None
    sentence = f"nodes of one vendor have different RDMA devices: {compared(sides)}"
    return Finding(False, ClusterReason.RDMA_DIFFERS, sentence)


def _rdma(each: Seen) -> str:
    """By name; empty where it is not known."""
    if each.report is None or any(
        check.name == HOST_SURVEY.name and check.subject in ("host", "rdma") for check in each.report.checks
    ):
        return ""
    found = each.report.host.rdma
    return ", ".join(sorted(device.name for device in found if device.active_ports)) or "none"


def _sides(own: Sequence[Seen], value_of: Callable[[Seen], str]) -> dict[str, list[str]]:
    """Names of nodes by a value that is known of them."""
    sides: dict[str, list[str]] = {}
    for each in own:
        if value := value_of(each):
            sides.setdefault(value, []).append(each.row.name)
    return sides
