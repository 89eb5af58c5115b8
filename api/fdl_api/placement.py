"""Where a cohort's new members may go, and with which image.

A pod's image is fixed before it is scheduled, so the variant is chosen here and pinned by node affinity. Labels
are an input for new pods only: a pod that runs is not touched when a label flaps (case N7). The operator places by
these rules, and ``fdl explain`` tells what they say.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from fdl_api import labels
from fdl_api.cluster import NcclBridge
from fdl_api.fitting import (
    COVERING,
    Candidate,
    Cluster,
    Fit,
    Required,
    Variant,
    candidates,
    lack,
    lacks,
    report_problem,
    sift,
    withheld_problem,
)
from fdl_api.nodes import NodeRecord, devices
from fdl_api.reasons import Progress
from fdl_api.run import Cohort, TrainerSpec, Vendor
from fdl_api.ways import Communicator, Way, ways

__all__ = [
    "COVERING",
    "Candidate",
    "Cluster",
    "Communicator",
    "Placement",
    "Unplaced",
    "Variant",
    "candidates",
    "has_plain_node",
    "lack",
    "lacks",
    "options",
    "place",
    "report_problem",
    "withheld_problem",
]

MAX_NODES_NAMED = 8


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a cohort's new pods may go, and with which image."""

    variant: str
    image: str
    required: Required = ()
    excluded: tuple[str, ...] = ()
    """Names of nodes that have these labels and must not be taken: quarantine, an old report, another interface."""
    nccl: str = ""
    """NCCL or RCCL major.minor of the cohort in NCCL modes, where it is known."""
    simulated: bool = False
    bridge: NcclBridge | None = None
    """The library to preload, where the image's own has another version than ``nccl``."""
    interface: str = ""
    """Network interface for collectives, where FdlCluster names one."""
    room: int | None = None
    """Members that the nodes' devices are enough for, other runs left aside; ``None`` where devices do not limit it."""

    @property
    def digest(self) -> str:
        """Short hash, for comparing with the one that a pod was built from."""
        parts = (self.variant, self.image, self.required, self.excluded, self.nccl, self.simulated)
        text = repr(parts if not (self.bridge or self.interface) else (*parts, self.bridge, self.interface))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Unplaced:
    """Nothing fits: the reason of the condition Placeable, and a sentence with what each node lacks."""

    reason: str
    message: str


def place(
    cohort: Cohort,
    trainer: TrainerSpec,
    cluster: Cluster,
    *,
    keep: str = "",
    communicator: Communicator | None = None,
) -> Placement | Unplaced:
    """The first of :func:`options`."""
    found = options(cohort, trainer, cluster, keep=keep, communicator=communicator)
    return found if isinstance(found, Unplaced) else found[0]


def options(
    cohort: Cohort,
    trainer: TrainerSpec,
    cluster: Cluster,
    *,
    keep: str = "",
    communicator: Communicator | None = None,
) -> tuple[Placement, ...] | Unplaced:
    """The ways to place a cohort's new members, best first; together they reach every node that fits.

    There is more than one where nodes need different images (``variant: auto`` picks per node), a bridged NCCL on
    some, or different network interfaces: a pod's image and environment are fixed before its node is.

    Args:
        cohort: the cohort.
        trainer: the run's trainer, for its image.
        cluster: nodes and variants as they are now.
        keep: variant of the members that the cohort has already; taken again while it fits anywhere.
        communicator: what an NCCL mode asks of the nodes; ``None`` in other modes.
    """
    choices = candidates(cohort, trainer, cluster)
    if not choices:
        return Unplaced(Progress.NO_FITTING_NODE, _no_variant(cohort, cluster))
    problems: dict[str, str] = {}
    reason = Progress.NO_FITTING_NODE
    for simulated in (False, True):
        fits = [sift(choice, cohort, cluster) for choice in choices if choice.simulated is simulated]
        found = ways(fits, cohort, cluster, communicator)
        if found.ways:
            image = cohort.image or trainer.image or ""
            return tuple(_placement(way, image, cohort, cluster) for way in _ordered(found.ways, keep))
        problems = problems or _problems(fits) | found.problems
        reason = Progress.FABRIC_UNKNOWN if found.fabric_unknown else reason
    if problems and all("older than" in text for text in problems.values()):
        reason = Progress.REPORT_TOO_OLD
    return Unplaced(reason, _sentence(cohort, problems))


def has_plain_node(nodes: Iterable[NodeRecord]) -> bool:
    """Whether pods without tolerations may go to a node that has no device."""
    keys = [labels.vendor(vendor) for vendor in labels.GPU_VENDORS]
    return any(not lack(node, ()) for node in nodes if not any(key in node.labels for key in keys))


def _problems(fits: list[Fit]) -> dict[str, str]:
    """What each node lacks, by the first candidate; nodes that suit one but for something else, by that."""
    problems: dict[str, str] = {}
    for fit in fits:
        problems = problems or dict(fit.lacking)
        problems |= fit.withheld
    return problems


def _ordered(found: Iterable[Way], keep: str) -> list[Way]:
    """The fewest ways that reach all nodes: each next one is that which adds most, with the kept variant first."""
    open_nodes = {name for way in found for name in way.nodes}
    chosen: list[Way] = []
    while open_nodes:
        rest = [way for way in found if open_nodes & set(way.nodes)]
        best = max(
            rest,
            key=lambda way: (way.choice.variant.name == keep, way.bridge is None, len(open_nodes & set(way.nodes))),
        )
        chosen.append(best)
        open_nodes -= set(best.nodes)
    return chosen


def _placement(way: Way, image: str, cohort: Cohort, cluster: Cluster) -> Placement:
    return Placement(
        variant=way.choice.variant.name,
        image=image or way.choice.variant.image,
        required=way.required,
        excluded=way.excluded,
        nccl=way.nccl,
        simulated=way.choice.simulated,
        bridge=way.bridge,
        interface=way.interface,
        room=_room(way, cohort, cluster),
    )


def _room(way: Way, cohort: Cohort, cluster: Cluster) -> int | None:
    """Members that the devices of a way's nodes are enough for; ``None`` where nothing counts them."""
    counts = [devices(cluster.nodes[name].labels, cohort.vendor) for name in way.nodes]
    known = [count for count in counts if count is not None]
    if cohort.device_resource or len(known) < len(counts):
        return None
    return sum(count // max(1, cohort.devices_per_replica) for count in known)


def _no_variant(cohort: Cohort, cluster: Cluster) -> str:
    have = ", ".join(f"{variant.name} ({variant.vendor})" for variant in cluster.variants) or "none"
    wanted = ((labels.vendor(cohort.vendor), ("true",)),) if cohort.vendor is not Vendor.CPU else ()
    lacking = {name: lack(node, wanted) for name, node in sorted(cluster.nodes.items())}
    if wanted and all(text.startswith("lacks label") for text in lacking.values()):
        # An image would not help: what no image can mend is said first.
        return (
            f"{_sentence(cohort, lacking)}; nor has FdlCluster/default spec.variants an image for it (it has: {have})"
        )
    if cohort.variant == "auto":
        return (
            f"cohort {cohort.name}: FdlCluster/default spec.variants has no image for vendor {cohort.vendor} "
            f"(it has: {have}); add a variant or set spec.trainer.image"
        )
    return (
        f"cohort {cohort.name}: FdlCluster/default spec.variants has no variant {cohort.variant!r} of vendor "
        f"{cohort.vendor} (it has: {have}); add it or set spec.cohorts[].variant to auto"
    )


def _sentence(cohort: Cohort, problems: Mapping[str, str]) -> str:
    if not problems:
        return f"cohort {cohort.name}: the cluster has no node"
    alike: dict[str, list[str]] = {}
    for name, text in list(problems.items())[:MAX_NODES_NAMED]:
        alike.setdefault(text, []).append(name)
    named = [f"node {name} {text}{_likewise(others)}" for text, (name, *others) in alike.items()]
    more = len(problems) - MAX_NODES_NAMED
    tail = f"; and {more} more" if more > 0 else ""
    return f"cohort {cohort.name} (vendor {cohort.vendor}) fits no node: {'; '.join(named)}{tail}"


def _likewise(names: list[str]) -> str:
    """Others of which the same is true, so that a fault and its remedy are said once."""
    return f" (likewise {', '.join(names)})" if names else ""
