"""The conditions of FdlCluster: what only shows when all nodes are looked at together.

Each says True, False, or, where it cannot be known, Unknown with the reason. Messages name nodes and what to do, and
have neither times nor figures that move by themselves, so that nothing is written while nothing changes.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from fdl_api import labels
from fdl_api.checks.conditions import finding as known
from fdl_api.checks.conditions import joined, seen_in
from fdl_api.cluster import FdlClusterSpec, Variant
from fdl_api.coverage import smallest_cover
from fdl_api.nccl import major_minor, order
from fdl_api.reasons import ClusterCondition, ClusterReason
from fdl_api.run import Condition
from fdl_operator import clock
from fdl_operator.model import EventNote
from fdl_operator.plan.clocks import clocks_agree
from fdl_operator.plan.fabric import fabric_known
from fdl_operator.plan.findings import Finding, Seen, compared, devices, listed

MAX_MESSAGE = 4000
"""Characters of what was seen; the remedy comes on top."""
LIBRARY = {"nvidia": "NCCL", "amd": "RCCL"}


def judge(
    spec: FdlClusterSpec,
    seen: Sequence[Seen],
    old: Iterable[Condition],
    generation: int,
    now: float,
    *,
    policies: Mapping[str, bool],
    mark: str = "",
) -> tuple[Condition, ...]:
    """All conditions, in the order of their names in :class:`ClusterCondition`.

    Args:
        spec: FdlCluster/default.
        seen: the nodes with a report, by name.
        old: the conditions as they were; one whose status stays keeps its transition time.
        generation: metadata.generation of the spec.
        now: seconds since 1970.
        policies: nodes on which a NetworkPolicy was tried since this operator began, with whether it was in force.
        mark: what reports say that were made by this spec; empty when it is not known.
    """
    before = {condition.type: condition for condition in old}
    findings = {
        ClusterCondition.NODES_READY: nodes_ready(seen),
        ClusterCondition.NCCL_CONSISTENT: nccl_consistent(spec, seen),
        ClusterCondition.VARIANT_COVERAGE: variant_coverage(spec, seen, mark),
        ClusterCondition.SHARED_VOLUME_CONSISTENT: shared_volume_consistent(seen),
        ClusterCondition.FABRIC_KNOWN: fabric_known(spec, seen),
        ClusterCondition.CLOCKS_AGREE: clocks_agree(seen),
        ClusterCondition.NETWORK_POLICY_ENFORCED: policy_enforced(
            policies, before.get(ClusterCondition.NETWORK_POLICY_ENFORCED)
        ),
    }
    return tuple(_condition(kind, findings[kind], before.get(kind), generation, now) for kind in ClusterCondition)


def transitions(old: Iterable[Condition], new: Iterable[Condition]) -> tuple[EventNote, ...]:
    """Events for conditions whose status changed. What was never told and is well, or not known yet, is no news."""
    before = {condition.type: condition.status for condition in old}
    notes = []
    for condition in new:
        was = before.get(condition.type)
        if was == condition.status or (was is None and condition.status != "False"):
            continue
        text = f"{condition.type} is {condition.status}: {condition.message or condition.reason}"
        notes.append(EventNote(condition.reason, text, warning=condition.status == "False"))
    return tuple(notes)


def nodes_ready(seen: Sequence[Seen]) -> Finding:
    """Whether new members may be placed on every node that has a prober."""
    if not seen:
        return Finding(None, ClusterReason.NO_REPORTS, "no node has a report")
    causes: dict[str, list[str]] = {}
    for each in seen:
        if not each.row.ready:
            causes.setdefault(_why_not_ready(each), []).append(each.row.name)
    if not causes:
        return Finding(True, ClusterReason.AS_EXPECTED, f"all {len(seen)} nodes with a prober are ready")
    told = "; ".join(f"{listed(names)}: {cause}" for cause, names in causes.items())
    return Finding(False, ClusterReason.NODES_NOT_READY, f"new members are kept off {told}")


def _why_not_ready(each: Seen) -> str:
    if not each.node.ready:
        return "the kubelet is not ready"
    if each.node.unschedulable:
        return "cordoned"
    first = next((problem for problem in each.row.problems if problem.severity == "error"), None)
    return first.message.rstrip(".") if first is not None else f"its label {labels.READY} is not true"


def nccl_consistent(spec: FdlClusterSpec, seen: Sequence[Seen]) -> Finding:
    """Whether all nodes of a vendor can load one major.minor of NCCL (RCCL), so that one cohort can span them."""
    told = [finding for vendor in labels.GPU_VENDORS if (finding := _one_version(spec, seen, vendor)) is not None]
    if not told:
        return Finding(True, ClusterReason.NO_DEVICES, "no node has devices")
    worst = next((each for each in told if each.holds is False), None) or next(
        (each for each in told if each.holds is None), told[0]
    )
    same = [each.message for each in told if each.holds is worst.holds]
    return Finding(worst.holds, worst.reason, "; ".join(same))


def _one_version(spec: FdlClusterSpec, seen: Sequence[Seen], vendor: str) -> Finding | None:
    """The finding for one vendor; ``None`` where no node has its devices."""
    library = LIBRARY[vendor]
    offers = {each.row.name: _versions(spec, each, vendor) for each in seen if devices(each.node, vendor)}
    if not offers:
        return None
    known = {name: offer for name, offer in offers.items() if offer}
    common = set.intersection(*(set(offer) for offer in known.values())) if known else set()
    if known and not common:
        sides: dict[str, list[str]] = {}
        for name, offer in known.items():
            sides.setdefault(", ".join(sorted(f"{version} ({offer[version]})" for version in offer)), []).append(name)
        sentence = (
            f"{vendor} nodes load different {library}: {compared(sides)}; no NCCL cohort can span nodes that differ"
        )
        return Finding(False, ClusterReason.VERSION_SKEW, sentence)
    unknown = [name for name, offer in offers.items() if not offer]
    if unknown:
        sentence = f"the {library} of {vendor} node {listed(unknown)} is not known"
        return Finding(None, ClusterReason.VERSION_UNKNOWN, sentence)
    version = max(common, key=order)
    bridged = [name for name, offer in offers.items() if offer[version].endswith(", bridged")]
    tail = f", bridged on {listed(bridged)}" if bridged else ""
    return Finding(True, ClusterReason.AS_EXPECTED, f"{library} {version} on all {len(offers)} {vendor} nodes{tail}")


def _versions(spec: FdlClusterSpec, each: Seen, vendor: str) -> dict[str, str]:
    """The versions that a node can load, each with the first variant that brings it, bridged ones last."""
    found: dict[str, str] = {}
    covering = [variant for variant in _covering(spec, each, vendor) if each.row.nccl.get(variant.name)]
    for variant in covering:
        found.setdefault(each.row.nccl[variant.name], variant.name)
    for variant in covering:
        if variant.nccl_bridge is not None:
            found.setdefault(major_minor(variant.nccl_bridge.version), f"{variant.name}, bridged")
    return found


def variant_coverage(spec: FdlClusterSpec, seen: Sequence[Seen], mark: str = "") -> Finding:
    """Whether each node has a variant for what it computes on, and the fewest variants that do it for all."""
    if not seen:
        return Finding(None, ClusterReason.NO_REPORTS, "no node has a report")
    covering: list[tuple[str, ...]] = []
    gaps: list[str] = []
    waiting: list[str] = []
    for each, vendor in _parts_of(seen):
        names = tuple(variant.name for variant in _covering(spec, each, vendor))
        if names:
            covering.append(names)
        elif not _judged(spec, each, vendor, mark):
            waiting.append(each.row.name)
        else:
            archs = ", ".join(arch for arch in each.row.archs) if vendor != "cpu" else "no device"
            gaps.append(f"{each.row.name} ({vendor}: {archs or 'architecture unknown'})")
    fewest = ", ".join(smallest_cover(covering, [variant.name for variant in spec.variants])) or "none"
    if gaps:
        sentence = f"no variant covers {listed(gaps)}; the smallest set that covers the others: {fewest}"
        return Finding(False, ClusterReason.NOT_COVERED, sentence)
    if waiting:
        sentence = f"the probers have not judged the variants on {listed(waiting)} yet"
        return Finding(None, ClusterReason.NOT_JUDGED, sentence)
    sentence = f"every node is covered; the smallest set of variants that does it: {fewest}"
    return Finding(True, ClusterReason.AS_EXPECTED, sentence)


def _parts_of(seen: Sequence[Seen]) -> Iterator[tuple[Seen, str]]:
    """Each node with each vendor that it has devices of; with cpu where it has none."""
    for each in seen:
        vendors = [vendor for vendor in labels.GPU_VENDORS if devices(each.node, vendor)]
        for vendor in vendors or ["cpu"]:
            yield each, vendor


def _judged(spec: FdlClusterSpec, each: Seen, vendor: str, mark: str) -> bool:
    """Whether the node's prober has said something about every variant of a vendor (or there is none to judge), and by
    the spec as it is now.
    """
    if each.report is not None and each.report.is_outdated(mark):
        return False
    return all(
        labels.variant(variant.name) in each.node.labels for variant in spec.variants if variant.vendor == vendor
    )


def shared_volume_consistent(seen: Sequence[Seen]) -> Finding:
    """Whether all nodes see the same content of the shared volume, by the sentinel that each prober reads."""
    files = {each.row.name: each.report.sentinel for each in seen if each.report and each.report.sentinel}
    if not files:
        return Finding(None, ClusterReason.NO_SENTINEL, "no fresh report has a sentinel")
    contents: dict[str, list[str]] = {}
    errors: dict[str, list[str]] = {}
    for name, sentinel in files.items():
        if sentinel.sha256:
            contents.setdefault(sentinel.sha256[:12], []).append(name)
        else:
            errors.setdefault(sentinel.error or "no reason given", []).append(name)
    problems = [f"the sentinel cannot be read on {listed(names)} ({error})" for error, names in sorted(errors.items())]
    if len(contents) > 1:
        problems.append(f"nodes see different contents of the sentinel: {compared(contents)}")
        return Finding(False, ClusterReason.CONTENT_DIFFERS, "; ".join(problems))
    if problems:
        return Finding(False, ClusterReason.SENTINEL_UNREADABLE, "; ".join(problems))
    return Finding(True, ClusterReason.AS_EXPECTED, f"{len(files)} nodes see the same content")


def policy_enforced(tried: Mapping[str, bool], old: Condition | None) -> Finding:
    """Whether the network enforces NetworkPolicies where coordinators of runs have been.

    An operator that has just begun has tried nothing: what an earlier one found stays until something newer is known.
    """
    open_on = sorted(name for name, closed in tried.items() if not closed)
    if open_on:
        sentence = f"a port that the NetworkPolicy of a run closes to the operator is open to it on {listed(open_on)}"
        return Finding(False, ClusterReason.POLICY_NOT_ENFORCED, sentence)
    if tried:
        sentence = (
            "a port that the NetworkPolicy of a run closes to the operator was closed on every node where it was tried"
        )
        return Finding(True, ClusterReason.AS_EXPECTED, sentence)
    if old is not None and old.status != "Unknown":
        return Finding(
            old.status == "True",
            old.reason,  # as it stands: a newer release may have had others
            seen_in(old.message, known(ClusterCondition.NETWORK_POLICY_ENFORCED, old.reason)),
        )
    return Finding(None, ClusterReason.POLICY_NOT_TRIED, "no run with a NetworkPolicy has had a coordinator yet")


def _covering(spec: FdlClusterSpec, each: Seen, vendor: str) -> list[Variant]:
    return [variant for variant in spec.variants if variant.vendor == vendor and variant.name in each.row.variants]


def _condition(
    kind: ClusterCondition, finding: Finding, old: Condition | None, generation: int, now: float
) -> Condition:
    status = {True: "True", False: "False", None: "Unknown"}[finding.holds]
    at = old.last_transition_time if old is not None and old.status == status else clock.render(now)
    return Condition.model_validate(
        {
            "type": str(kind),
            "status": status,
            "observedGeneration": generation,
            "lastTransitionTime": at,
            "reason": str(finding.reason),
            "message": joined(finding.message[:MAX_MESSAGE], known(kind, finding.reason)),
        }
    )
