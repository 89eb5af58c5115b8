"""What a node lacks for a member, and which variants a cohort may use. Pure; :mod:`fdl_api.placement` decides by it."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fdl_api import clock, labels
from fdl_api.cluster import NcclBridge, SocketInterface
from fdl_api.nodes import NodeRecord, age_fault
from fdl_api.run import Cohort, Toleration, TrainerSpec, Vendor

COVERING = ("covers", "verified")
Required = tuple[tuple[str, tuple[str, ...]], ...]
"""Node labels and the values of which each must have one."""


@dataclass(frozen=True, slots=True)
class Variant:
    """A trainer image that cohorts may use (FdlCluster spec.variants)."""

    name: str
    vendor: str
    image: str
    archs: tuple[str, ...] = ()
    bridge: NcclBridge | None = None
    """A library to preload where the variant's own has another version than the cohort runs."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """What placement looks at.

    Attributes:
        nodes: all nodes, by name.
        variants: trainer images, in their listed order.
        report_age: seconds after which a node's report is too old.
        now: seconds since 1970.
        quarantined: nodes that get no new member, each with why.
        fabric: network interfaces of groups of nodes.
        tolerations: taints that all members tolerate, besides those of their cohort.
    """

    nodes: Mapping[str, NodeRecord]
    variants: Sequence[Variant]
    report_age: float
    now: float
    quarantined: Mapping[str, str] = field(default_factory=dict)
    fabric: Sequence[SocketInterface] = ()
    tolerations: Sequence[Toleration] = ()

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
    required: Required


@dataclass(frozen=True, slots=True)
class Fit:
    """The nodes by how they suit a candidate.

    Attributes:
        choice: the candidate.
        fitting: names of the nodes that suit it.
        withheld: nodes that have its labels, but must be kept out by name: each with why.
        lacking: all others, each with what it first lacks.
    """

    choice: Candidate
    fitting: tuple[str, ...]
    withheld: Mapping[str, str]
    lacking: Mapping[str, str]


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
            own += [(replace(variant, image=stand_in), True) for variant, _ in own[:]]
    return [Candidate(variant, fake, _required(cohort, variant, fake, cluster.probed)) for variant, fake in own]


def _required(cohort: Cohort, variant: Variant, simulated: bool, probed: bool) -> Required:
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


def sift(choice: Candidate, cohort: Cohort, cluster: Cluster) -> Fit:
    """Judge every node for a candidate. Sentences begin with the node's name."""
    fitting: list[str] = []
    withheld: dict[str, str] = {}
    lacking: dict[str, str] = {}
    tolerations = (*cohort.tolerations, *cluster.tolerations)
    for name, node in sorted(cluster.nodes.items()):
        if problem := lack(node, choice.required, tolerations, gpu=cohort.vendor is not Vendor.CPU):
            # The taint of a quarantine says less than its reason.
            reason = withheld_problem(node, cluster) if labels.QUARANTINE in problem else ""
            lacking[name] = reason or problem
        elif problem := withheld_problem(node, cluster):
            withheld[name] = problem
        else:
            fitting.append(name)
    return Fit(choice, tuple(fitting), withheld, lacking)


def withheld_problem(node: NodeRecord, cluster: Cluster) -> str:
    """Why a node gets no new member though its labels may suit one: quarantine, an old report; empty when nothing."""
    if node.name in cluster.quarantined:
        return f"is in quarantine: {cluster.quarantined[node.name]}"
    if cluster.probed and labels.READY in node.labels:
        return report_problem(node, cluster)
    return ""


def report_problem(node: NodeRecord, cluster: Cluster) -> str:
    """Why a node's report cannot be trusted, or an empty text."""
    fault = age_fault(node.report_at, cluster.now, cluster.report_age)
    if fault is None:
        return ""
    if node.report_at is None:
        return f"has no readable annotation {labels.REPORT}"
    made = f"has a report of {clock.render(node.report_at)}"
    if fault == "ahead":
        return f"{made}, more than {int(cluster.report_age)} s ahead; run a time service on it"
    return f"{made}, older than {int(cluster.report_age)} s; see the log of its prober pod"


def lack(
    node: NodeRecord,
    required: Required,
    tolerations: Sequence[Toleration] = (),
    *,
    gpu: bool = False,
) -> str:
    """What first keeps a member off a node, as the end of a sentence that begins with its name; empty when nothing."""
    return next(lacks(node, required, tolerations, gpu=gpu), "")


def lacks(
    node: NodeRecord,
    required: Required,
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
        if gpu and key in labels.DEVICE_RESOURCES.values():
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
