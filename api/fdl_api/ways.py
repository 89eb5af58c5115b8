"""The ways to start a cohort's members: image, NCCL version, bridge and network interface, each with its nodes. Pure.

Outside of NCCL modes a way is a variant. In NCCL modes all members of a cohort load one major.minor of NCCL (cases N11,
N12): nodes whose image brings another one are reached with a bridged library, and members that may be on several nodes
need to know the interface to use.
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from fdl_api import labels
from fdl_api.cluster import NcclBridge, SocketInterface
from fdl_api.fabric import group_of
from fdl_api.fitting import Candidate, Cluster, Fit, Required
from fdl_api.nccl import common_version, major_minor
from fdl_api.run import Cohort

NO_INTERFACE: Final = (
    "is in no group of FdlCluster/default spec.fabric, which names the network interface that an NCCL mode needs when "
    "members can be on several nodes; add a group, set NCCL_SOCKET_IFNAME in spec.trainer.env, or use a cpu mode"
)


@dataclass(frozen=True, slots=True)
class Communicator:
    """What an NCCL mode asks of the nodes.

    Attributes:
        version: major.minor of the members that the cohort has already; empty when it is free.
        spans: whether the members of this vendor may be on more than one node.
        interface_given: whether the run names the network interface itself.
    """

    version: str = ""
    spans: bool = True
    interface_given: bool = False


@dataclass(frozen=True, slots=True)
class Way:
    """One way to start a member.

    Attributes:
        choice: variant and image.
        required: labels of the nodes that it is for.
        nodes: their names.
        excluded: nodes with these labels that it is not for.
        nccl: major.minor that a member loads; empty where it is not known.
        bridge: the library to preload for that.
        interface: network interface for collectives; empty where none is named.
    """

    choice: Candidate
    required: Required
    nodes: tuple[str, ...]
    excluded: tuple[str, ...]
    nccl: str = ""
    bridge: NcclBridge | None = None
    interface: str = ""


@dataclass(frozen=True, slots=True)
class Ways:
    """What was found: the ways, and why nodes that suit a variant are in none, as ends of sentences by name."""

    ways: tuple[Way, ...]
    problems: dict[str, str] = field(default_factory=dict)
    fabric_unknown: bool = False
    """Whether nothing but an interface is missing."""


def ways(fits: Sequence[Fit], cohort: Cohort, cluster: Cluster, communicator: Communicator | None) -> Ways:
    """All ways to start a member.

    Args:
        fits: the candidates with the nodes that suit them.
        cohort: the cohort.
        cluster: nodes and fabric.
        communicator: what an NCCL mode asks; ``None`` in other modes.
    """
    plain = tuple(
        Way(fit.choice, fit.choice.required, fit.fitting, tuple(sorted(fit.withheld))) for fit in fits if fit.fitting
    )
    if communicator is None or not plain:
        return Ways(plain)
    versioned, problems = _by_version(plain, cluster, communicator.version)
    if not versioned:
        return Ways((), problems)
    found, unnamed = _by_interface(versioned, cohort, cluster, communicator)
    return Ways(tuple(found), problems | unnamed, fabric_unknown=not found)


def _by_version(plain: Iterable[Way], cluster: Cluster, kept: str) -> tuple[list[Way], dict[str, str]]:
    """The ways that load one version, and what the nodes in none of them load."""
    own = {(way.choice.variant.name, name): _own(way, name, cluster) for way in plain for name in way.nodes}
    offers: dict[str, set[str]] = {}
    for way in plain:
        for name in way.nodes:
            version = own[way.choice.variant.name, name]
            offers.setdefault(name, set()).update(_loadable(way, version) if version else ())
    wanted = common_version(offers, kept)
    if not wanted:
        return list(plain), {}
    found: list[Way] = []
    for way in plain:
        key = labels.nccl(way.choice.variant.name)
        versions = {name: own[way.choice.variant.name, name] for name in way.nodes}
        same = tuple(name for name, version in versions.items() if version == wanted)
        if same:
            found.append(replace(way, required=(*way.required, (key, (wanted,))), nodes=same, nccl=wanted))
        others = {name: version for name, version in versions.items() if version not in ("", wanted)}
        bridge = way.choice.variant.bridge
        if others and bridge is not None and major_minor(bridge.version) == wanted:
            pin = (key, tuple(sorted(set(others.values()))))
            bridged = replace(way, required=(*way.required, pin), nodes=tuple(others), nccl=wanted, bridge=bridge)
            found.append(bridged)
    reached = {name for way in found for name in way.nodes}
    problems = {
        name: _other_version(sorted(versions), wanted) for name, versions in offers.items() if name not in reached
    }
    return found, problems


def _own(way: Way, node: str, cluster: Cluster) -> str:
    return cluster.nodes[node].labels.get(labels.nccl(way.choice.variant.name), "")


def _loadable(way: Way, version: str) -> set[str]:
    bridge = way.choice.variant.bridge
    return {version} if bridge is None else {version, major_minor(bridge.version)}


def _other_version(versions: Sequence[str], wanted: str) -> str:
    if not versions:
        return f"has no label fdl.dev/nccl.* of its NCCL version yet, and the cohort runs {wanted}"
    return (
        f"loads NCCL {' or '.join(versions)} and the cohort runs {wanted}; an ncclBridge to {wanted} in "
        "FdlCluster/default spec.variants would make it fit"
    )


def _by_interface(
    found: Iterable[Way], cohort: Cohort, cluster: Cluster, communicator: Communicator
) -> tuple[list[Way], dict[str, str]]:
    """The ways split by the node groups of spec.fabric, and what is wrong with nodes in none of them."""
    nodes = {name: group_of(cluster.nodes[name].labels, cluster.fabric) for way in found for name in way.nodes}
    free = not communicator.spans or communicator.interface_given or len(nodes) == 1
    split: list[Way] = []
    problems: dict[str, str] = {}
    for way in found:
        members: dict[str, list[str]] = {}
        groups: dict[str, SocketInterface] = {}
        for name in way.nodes:
            group = nodes[name]
            if problem := _interface_problem(name, group, cohort, cluster, free=free):
                problems[name] = problem
                continue
            if group is not None:
                groups[group.name] = group
            members.setdefault(group.name if group is not None else "", []).append(name)
        split.extend(_in_group(way, groups.get(key), tuple(names), cluster, problems) for key, names in members.items())
    return split, problems


def _interface_problem(
    name: str, group: SocketInterface | None, cohort: Cohort, cluster: Cluster, *, free: bool
) -> str:
    if group is None:
        return "" if free else NO_INTERFACE
    present = cluster.nodes[name].interfaces
    # A template may bring the pod other networks than the prober's pod has.
    if present is None or cohort.pod_template or group.socket_interface in present:
        return ""
    return (
        f"has no interface {group.socket_interface} that is up (group {group.name} of FdlCluster/default spec.fabric); "
        f"pods there have {', '.join(present) or 'none'}"
    )


def _in_group(
    way: Way, group: SocketInterface | None, names: tuple[str, ...], cluster: Cluster, problems: Container[str]
) -> Way:
    """A way kept to the nodes of one group; nodes that labels alone would let in are excluded by name."""
    selector = () if group is None else tuple((key, (value,)) for key, value in sorted(group.node_selector.items()))
    required = (*way.required, *(entry for entry in selector if entry not in way.required))
    out = {
        name
        for name, node in cluster.nodes.items()
        if name not in names
        and all(node.labels.get(key) in values for key, values in required)
        and (name in way.excluded or name in problems or group_of(node.labels, cluster.fabric) is not group)
    }
    interface = group.socket_interface if group is not None else ""
    return replace(way, required=required, nodes=names, excluded=tuple(sorted(out)), interface=interface)
