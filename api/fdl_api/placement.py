"""Where a cohort's new members may go, and with which image.

A pod's image is fixed before it is scheduled, so the variant is chosen here and pinned by node affinity. Labels
are an input for new pods only: a pod that runs is not touched when a label flaps (case N7). The operator places by
these rules, and ``fdl explain`` tells what they say.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fdl_api import clock, labels
from fdl_api.nodes import NodeRecord
from fdl_api.reasons import Progress
from fdl_api.run import Cohort, Toleration, TrainerSpec, Vendor

COVERING = ("covers", "verified")
MAX_NODES_NAMED = 8


@dataclass(frozen=True, slots=True)
class Variant:
    """A trainer image that cohorts may use (FdlCluster spec.variants)."""

    name: str
    vendor: str
    image: str
    archs: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Placement:
    """Where a cohort's new pods may go, and with which image."""

    variant: str
    image: str
    required: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Node labels and the values of which each must have one."""
    excluded: tuple[str, ...] = ()
    """Names of nodes that would fit but have no fresh report."""
    nccl: str = ""
    simulated: bool = False

    @property
    def digest(self) -> str:
        """Short hash, for comparing with the one that a pod was built from."""
        text = repr((self.variant, self.image, self.required, self.excluded, self.nccl, self.simulated))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Unplaced:
    """Nothing fits: the reason of the condition Placeable, and a sentence with what each node lacks."""

    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Cluster:
    """What placement looks at.

    Attributes:
        nodes: all nodes, by name.
        variants: trainer images, in their listed order.
        report_age: seconds after which a node's report is too old.
        now: seconds since 1970.
    """

    nodes: Mapping[str, NodeRecord]
    variants: Sequence[Variant]
    report_age: float
    now: float

    @property
    def probed(self) -> bool:
        """Whether a prober has ever labelled a node here."""
        return any(labels.READY in node.labels for node in self.nodes.values())


@dataclass(frozen=True, slots=True)
class Candidate:
    """A variant that a cohort may use.

    Attributes:
        variant: the variant; one without a name where the cohort brings its own image.
        simulated: whether members would run on simulated devices, with the CPU image.
        required: node labels and the values of which each must have one.
    """

    variant: Variant
    simulated: bool
    required: tuple[tuple[str, tuple[str, ...]], ...]


def place(cohort: Cohort, trainer: TrainerSpec, cluster: Cluster, *, keep: str = "") -> Placement | Unplaced:
    """Choose variant and nodes for a cohort's new members.

    Args:
        cohort: the cohort.
        trainer: the run's trainer, for its image.
        cluster: nodes and variants as they are now.
        keep: variant of the members that the cohort has already; taken again while it fits anywhere.
    """
    image = cohort.image or trainer.image
    choices = candidates(cohort, trainer, cluster)
    if not choices:
        return Unplaced(Progress.NO_FITTING_NODE, _no_variant(cohort, cluster))
    best: tuple[tuple[bool, int], Placement] | None = None
    problems: dict[str, str] = {}
    for choice in choices:
        variant, simulated = choice.variant, choice.simulated
        fitting, stale, lacking = _sift(choice.required, cohort, cluster)
        problems = problems or lacking
        if not fitting:
            problems |= {name: text for name, text in stale.items() if name not in problems or text}
            continue
        placement = Placement(
            variant=variant.name,
            image=image or variant.image,
            required=choice.required,
            excluded=tuple(sorted(stale)),
            simulated=simulated,
        )
        rank = (variant.name == keep, len(fitting))
        if best is None or (not simulated and best[1].simulated) or (simulated == best[1].simulated and rank > best[0]):
            best = (rank, placement)
        if not simulated and best is not None and best[0][0]:
            break
    if best is not None:
        return best[1]
    only_old = bool(problems) and all("older than" in text for text in problems.values())
    reason = Progress.REPORT_TOO_OLD if only_old else Progress.NO_FITTING_NODE
    return Unplaced(reason, _sentence(cohort, problems))


def has_plain_node(nodes: Iterable[NodeRecord]) -> bool:
    """Whether pods without tolerations may go to a node that has no device."""
    devices = [labels.vendor(vendor) for vendor in labels.GPU_VENDORS]
    return any(not lack(node, ()) for node in nodes if not any(key in node.labels for key in devices))


def candidates(cohort: Cohort, trainer: TrainerSpec, cluster: Cluster) -> list[Candidate]:
    """Variants to try for a cohort, in their listed order, those on simulated devices last."""
    image = cohort.image or trainer.image
    named = [variant for variant in cluster.variants if cohort.variant in ("auto", variant.name)]
    own = [(variant, False) for variant in named if variant.vendor == cohort.vendor]
    if not own and image and cohort.variant == "auto":
        own = [(Variant(name="", vendor=cohort.vendor, image=image), False)]
    if cohort.allow_simulated and cohort.vendor is not Vendor.CPU:
        cpu = next((variant for variant in cluster.variants if variant.vendor == "cpu"), None)
        stand_in = image or (cpu.image if cpu else "")
        if stand_in:
            own += [(Variant(name=variant.name, vendor=variant.vendor, image=stand_in), True) for variant, _ in own[:]]
    return [Candidate(variant, fake, _required(cohort, variant, fake, cluster.probed)) for variant, fake in own]


def _required(
    cohort: Cohort, variant: Variant, simulated: bool, probed: bool
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    wants: list[tuple[str, tuple[str, ...]]] = []
    if cohort.vendor is Vendor.CPU:
        if probed:
            wants.append((labels.READY, ("true",)))
    else:
        wants.append((labels.vendor(cohort.vendor), ("true",)))
        wants.append((labels.READY, ("true",)))
        if simulated:
            wants.append((labels.SIMULATED, ("true",)))
        if variant.name:
            values = ("simulated", *COVERING) if simulated else COVERING
            wants.append((labels.variant(variant.name), values))
    wants.extend((key, (value,)) for key, value in sorted(cohort.node_selector.items()))
    return tuple(wants)


def _sift(
    required: Iterable[tuple[str, tuple[str, ...]]], cohort: Cohort, cluster: Cluster
) -> tuple[list[str], dict[str, str], dict[str, str]]:
    """Names of the nodes that fit, those that would but for the age of their report, and what each other one lacks."""
    fitting: list[str] = []
    stale: dict[str, str] = {}
    lacking: dict[str, str] = {}
    for name, node in sorted(cluster.nodes.items()):
        if problem := lack(node, required, cohort.tolerations, gpu=cohort.vendor is not Vendor.CPU):
            lacking[name] = problem
        elif cluster.probed and labels.READY in node.labels and (old := report_problem(node, cluster)):
            stale[name] = old
        else:
            fitting.append(name)
    return fitting, stale, lacking


def report_problem(node: NodeRecord, cluster: Cluster) -> str:
    """Why a node's report cannot be trusted, or an empty text."""
    if node.report_at is None:
        return f"has no readable annotation {labels.REPORT}"
    if cluster.now - node.report_at > cluster.report_age:
        at = clock.render(node.report_at)
        return f"has a report of {at}, older than {int(cluster.report_age)} s; see the log of its prober pod"
    return ""


def lack(
    node: NodeRecord,
    required: Iterable[tuple[str, tuple[str, ...]]],
    tolerations: Sequence[Toleration] = (),
    *,
    gpu: bool = False,
) -> str:
    """What first keeps a member off a node, as the end of a sentence that begins with its name; empty when nothing."""
    return next(lacks(node, required, tolerations, gpu=gpu), "")


def lacks(
    node: NodeRecord,
    required: Iterable[tuple[str, tuple[str, ...]]],
    tolerations: Sequence[Toleration] = (),
    *,
    gpu: bool = False,
) -> Iterator[str]:
    """All that keeps a member off a node, each as the end of a sentence that begins with the node's name."""
    for key, values in required:
        have = node.labels.get(key)
        if have in values:
            continue
        want = " or ".join(values)
        yield f"lacks label {key}={want}" if have is None else f"has label {key}={have}, not {want}"
    if node.unschedulable:
        yield "is cordoned"
    if not node.ready:
        yield "is not ready"
    for key, value, effect in node.taints:
        if effect not in ("NoSchedule", "NoExecute") or key.startswith("node.kubernetes.io/"):
            continue
        if gpu and key in ("nvidia.com/gpu", "amd.com/gpu"):
            continue
        if not any(_tolerates(toleration, key, value, effect) for toleration in tolerations):
            yield f"has taint {key}{'=' + value if value else ''}:{effect}, which the cohort does not tolerate"


def _tolerates(toleration: Toleration, key: str, value: str, effect: str) -> bool:
    if toleration.effect is not None and toleration.effect != effect:
        return False
    if toleration.key is None:
        return toleration.operator == "Exists"
    if toleration.key != key:
        return False
    return toleration.operator == "Exists" or (toleration.value or "") == value


def _no_variant(cohort: Cohort, cluster: Cluster) -> str:
    have = ", ".join(f"{variant.name} ({variant.vendor})" for variant in cluster.variants) or "none"
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
    named = [f"node {name} {text}" for name, text in list(problems.items())[:MAX_NODES_NAMED]]
    more = len(problems) - len(named)
    tail = f"; and {more} more" if more > 0 else ""
    return f"cohort {cohort.name} (vendor {cohort.vendor}) fits no node: {'; '.join(named)}{tail}"
