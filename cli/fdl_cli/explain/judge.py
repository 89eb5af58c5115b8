"""Per node, what each cohort of a run finds or misses there: by the operator's own rules. Pure."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

from fdl_api import labels
from fdl_api.fitting import sift
from fdl_api.network import cluster_of, communicator
from fdl_api.nodes import NodeRecord
from fdl_api.placement import (
    Candidate,
    Cluster,
    Communicator,
    Placement,
    Unplaced,
    candidates,
    lacks,
    options,
    withheld_problem,
)
from fdl_api.run import Cohort, FdlRunSpec, FdlRunStatus, MemberStatus, Vendor
from fdl_api.ways import ways
from fdl_cli.explain import resources
from fdl_cli.explain.resources import Amounts, Space
from fdl_cli.explain.speed import Speed, speeds
from fdl_cli.fdlcluster import Found

Fits = Literal["yes", "full", "no"]
BEHIND: Final = "would suit, but nodes with real devices come first"


@dataclass(frozen=True, slots=True)
class Run:
    """A run.

    Attributes:
        namespace: its namespace.
        name: its name.
        spec: its spec.
        status: its status.
        unknown: fields of its spec that this release of fdl does not know.
    """

    namespace: str
    name: str
    spec: FdlRunSpec
    status: FdlRunStatus
    unknown: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a cohort finds on a node.

    Attributes:
        node: the node.
        fits: yes; full, it fits but has not enough left; or no.
        why: all that keeps a member off, as ends of sentences that begin with the node's name.
        variant: the variant that a member would get there.
        room: members more that it can take; ``None`` when it is not known.
        members: the cohort's members there.
        speed: speed of a rank there, measured or predicted.
    """

    node: str
    fits: Fits
    why: tuple[str, ...]
    variant: str = ""
    room: int | None = None
    members: tuple[MemberStatus, ...] = ()
    speed: Speed | None = None


@dataclass(frozen=True, slots=True)
class CohortView:
    """A cohort and all nodes.

    Attributes:
        cohort: its spec.
        wanted: members that it should have.
        ready: members that take part.
        nccl: NCCL or RCCL major.minor of its members, in NCCL modes where it is known.
        sentence: why no node fits; empty where one does.
        verdicts: the nodes, in the order in which they were given.
    """

    cohort: Cohort
    wanted: int
    ready: int
    nccl: str
    sentence: str
    verdicts: tuple[Verdict, ...]


def context(nodes: Mapping[str, NodeRecord], cluster: Found | None, now: float) -> Cluster:
    """What placement looks at, as the operator sees it.

    Args:
        nodes: the nodes by name.
        cluster: FdlCluster/default; ``None`` when it does not exist.
        now: seconds since 1970.
    """
    found = cluster or Found()
    return cluster_of(found.spec, found.status.quarantine, nodes, now)


def view(run: Run, cohort: Cohort, cluster: Cluster, names: Iterable[str], space: Callable[[str], Space]) -> CohortView:
    """Judge nodes for a cohort.

    Args:
        run: the run.
        cohort: one of its cohorts.
        cluster: all nodes, variants and fabric.
        names: the nodes to judge.
        space: what a node has; asked only of nodes that fit otherwise.
    """
    row = next((each for each in run.status.cohorts if each.name == cohort.name), None)
    kept = row.variant if row is not None else ""
    wish = asked(run, cohort)
    found = options(cohort, run.spec.trainer, cluster, keep=kept, communicator=wish)
    wanted = resources.need(cohort, run.spec.trainer)
    chosen = list(names)
    known = speeds(run.status, cohort.name, cohort.vendor, cluster.nodes, chosen)
    reach = () if isinstance(found, Unplaced) else found
    misses = _Misses(run, cohort, cluster, wish)
    verdicts = []
    for name in chosen:
        variant = next((each for each in reach if _reaches(each, cluster.nodes[name], cohort, cluster)), None)
        here = tuple(member for member in run.status.members if member.cohort == cohort.name and member.node == name)
        if variant is None:
            verdicts.append(Verdict(name, "no", misses.of(name), members=here, speed=known.get(name) if here else None))
            continue
        verdict = _fitting(name, variant, wanted, space(name))
        verdicts.append(replace(verdict, members=here, speed=known.get(name)))
    return CohortView(
        cohort=cohort,
        wanted=row.wanted if row is not None else cohort.replicas,
        ready=row.ready if row is not None else 0,
        nccl=row.nccl if row is not None else "",
        sentence=misses.sentence(found) if isinstance(found, Unplaced) else "",
        verdicts=tuple(verdicts),
    )


def _fitting(name: str, placement: Placement, wanted: Amounts, have: Space) -> Verdict:
    small = resources.too_small(wanted, have)
    short = [] if small else resources.short(wanted, have)
    fits: Fits = "no" if small else "full" if short else "yes"
    variant = placement.variant + (" (bridged)" if placement.bridge else " (simulated)" if placement.simulated else "")
    return Verdict(name, fits, tuple(small or short), variant, resources.room(wanted, have))


def _reaches(placement: Placement, record: NodeRecord, cohort: Cohort, cluster: Cluster) -> bool:
    if record.name in placement.excluded or withheld_problem(record, cluster):
        return False
    tolerations = (*cohort.tolerations, *cluster.tolerations)
    return not any(lacks(record, placement.required, tolerations, gpu=cohort.vendor is not Vendor.CPU))


class _Misses:
    """What nodes miss that are in no way to place a cohort."""

    def __init__(self, run: Run, cohort: Cohort, cluster: Cluster, wish: Communicator | None) -> None:
        self._cohort = cohort
        self._cluster = cluster
        self._wish = wish
        self._choices = candidates(cohort, run.spec.trainer, cluster)

    @cached_property
    def _problems(self) -> dict[str, str]:
        """What keeps off nodes that lack nothing. Sifts all nodes for each candidate, which few pages need."""
        found: dict[str, str] = {}
        for simulated in (False, True):
            choices = [choice for choice in self._choices if choice.simulated is simulated]
            fits = [sift(choice, self._cohort, self._cluster) for choice in choices]
            found |= ways(fits, self._cohort, self._cluster, self._wish).problems
        return found

    def of(self, name: str) -> tuple[str, ...]:
        """All that a node misses, by the candidate of which it misses least."""
        record = self._cluster.nodes[name]
        held = withheld_problem(record, self._cluster)
        tail = [held] if held else []
        if not self._choices:
            return (*self._device(record), "has no variant that the cohort could use", *tail)
        fewest = min((self._lacks(choice, record) for choice in self._choices), key=len)
        return (*fewest, *tail) or (self._problems.get(name, BEHIND),)

    def sentence(self, found: Unplaced) -> str:
        """Why no node fits, without what the nodes say themselves."""
        return found.message.partition(": node ")[0] if self._choices else found.message

    def _device(self, record: NodeRecord) -> Iterable[str]:
        """Whether there is a device at all, which no variant can mend."""
        if self._cohort.vendor is Vendor.CPU:
            return ()
        return lacks(record, ((labels.vendor(self._cohort.vendor), ("true",)),), self._cohort.tolerations, gpu=True)

    def _lacks(self, choice: Candidate, record: NodeRecord) -> list[str]:
        tolerations = (*self._cohort.tolerations, *self._cluster.tolerations)
        return list(lacks(record, choice.required, tolerations, gpu=self._cohort.vendor is not Vendor.CPU))


def asked(run: Run, cohort: Cohort) -> Communicator | None:
    """What an NCCL mode asks of the nodes; a cohort that runs keeps its version."""
    row = next((each for each in run.status.cohorts if each.name == cohort.name), None)
    running = run.status.attempt_start_time is not None
    return communicator(run.spec, cohort, version=row.nccl if running and row is not None else "")
