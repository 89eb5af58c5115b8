"""Which group an epoch's ranks get, and making it.

==============  =======================================================================================
mode            group
==============  =======================================================================================
``cpu-*``       Gloo over all ranks; works with devices of any vendor, and without
``nccl-*``      NCCL over all ranks of one domain; two tiers when the ranks are of several
==============  =======================================================================================

A *domain* is what can be in one communicator: a vendor and a major.minor of NCCL. Two versions in one communicator hang
while it is made, and only the ranks know what they load; so they tell each other in the rendezvous first.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from fdl_api.run import Mode
from fdl_api.runconfig import CohortConfig
from fdl_trainer.groups.contract import CollectiveFailedError, Group, Interrupt, LocalGroup
from fdl_trainer.groups.gloo import new_gloo
from fdl_trainer.groups.nccl import new_nccl
from fdl_trainer.groups.reaper import Reaper
from fdl_trainer.groups.tiered import TieredGroup
from fdl_trainer.store import EpochStore, StoreTransport
from fdl_trainer.transport import seen_ways, watch_ways

log = logging.getLogger(__name__)

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Fabric:
    """What a run's groups are made of.

    Attributes:
        mode: the run's mode.
        device: this rank's device.
        domains: what the run says of a cohort's domain, by its name.
        version: NCCL's major.minor that this rank loads; empty in other modes.
    """

    mode: Mode = Mode.CPU_CADENCE
    device: torch.device = _CPU
    domains: Mapping[str, str] = field(default_factory=dict)
    version: str = ""

    @classmethod
    def of(
        cls, mode: Mode, device: torch.device, cohorts: Sequence[CohortConfig], version: Sequence[int] = ()
    ) -> "Fabric":
        """From the resolved run, and the NCCL version that this rank loads."""
        domains = {cohort.name: f"{cohort.vendor} {cohort.nccl or ''}".strip() for cohort in cohorts}
        return cls(mode, device, domains, ".".join(map(str, version[:2])))


@dataclass(frozen=True)
class Place:
    """One rank in an epoch's group.

    Attributes:
        epoch: number of the membership epoch.
        rank: this rank's place in its member list.
        cohorts: name of the cohort of each rank, in order.
        address: IP address at which the others reach this rank.
    """

    epoch: int
    rank: int
    cohorts: Sequence[str]
    address: str

    @property
    def size(self) -> int:
        """Ranks in the epoch."""
        return len(self.cohorts)


def tiers(domains: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """(number of the domain, rank inside it) of each rank; domains count from 0 in the order of their lowest ranks."""
    order = list(dict.fromkeys(domains))
    counts = dict.fromkeys(order, 0)
    places = []
    for domain in domains:
        places.append((order.index(domain), counts[domain]))
        counts[domain] += 1
    return tuple(places)


def tell_domains(store: EpochStore, place: Place, fabric: Fabric) -> list[str]:
    """The domain of each rank, as they tell each other: the run's word for the cohort, and the NCCL that is loaded.

    Raises:
        StoreClosedError: the epoch was cancelled, or a peer did not come.
    """
    keys = [str(rank) for rank in range(place.size)]
    store.set(keys[place.rank], fabric.version)
    store.wait(keys)
    versions = [store.get(key).decode() for key in keys]
    words = zip(place.cohorts, versions, strict=True)
    return [f"{fabric.domains.get(cohort, '')} NCCL {version}".strip() for cohort, version in words]


def form(transport: StoreTransport, place: Place, fabric: Fabric, reaper: Reaper, interrupt: Interrupt) -> Group:
    """Form the group of an epoch and prove it with a one-element all-reduce.

    Args:
        transport: carries the rendezvous.
        place: this rank's.
        fabric: what the run's groups are made of.
        reaper: keeps operations that are abandoned later.
        interrupt: true once the group is not wanted any more.

    Raises:
        RuntimeError: a peer did not come, the epoch was cancelled, or the backend failed.
    """
    if place.size == 1:
        return LocalGroup()
    started = time.monotonic()
    maker = _Maker(transport, place, fabric, reaper)
    group = maker.gloo() if not fabric.mode.is_nccl else maker.accelerated()
    _prove(group, place, interrupt)
    log.info("epoch %d: %s, formed in %.2f s", place.epoch, maker.description(), time.monotonic() - started)
    return group


def _prove(group: Group, place: Place, interrupt: Interrupt) -> None:
    proof = torch.ones(1)
    group.all_reduce(proof, interrupt)
    if int(proof.item()) != place.size:
        group.close()
        raise CollectiveFailedError(
            f"The group of epoch {place.epoch} counts {int(proof.item())} ranks instead of {place.size}."
        )


class _Maker:
    """Makes the groups of one epoch, each with keys of its own in the rendezvous."""

    def __init__(self, transport: StoreTransport, place: Place, fabric: Fabric, reaper: Reaper) -> None:
        self._transport = transport
        self._place = place
        self._fabric = fabric
        self._reaper = reaper
        self._kind = "Gloo"
        self._log_size: int | None = None

    def description(self) -> str:
        """The group in a few words, once it has done an operation: NCCL connects only then."""
        ways = seen_ways(self._log_size) if self._log_size is not None else ""
        return f"{self._kind} over {self._place.size} ranks{ways}"

    def gloo(self) -> Group:
        """One Gloo group over all."""
        return self._gloo("", self._place.rank, self._place.size)

    def accelerated(self) -> Group:
        """One communicator over all, or two tiers."""
        domains = tell_domains(self._store("version/"), self._place, self._fabric)
        names = list(dict.fromkeys(domains))
        self._log_size = watch_ways()
        if len(names) == 1:
            self._kind = "NCCL"
            return self._nccl("", self._place.rank, self._place.size)
        self._kind = f"NCCL inside each of {len(names)} domains ({'; '.join(names)}) and Gloo between them"
        return self._tiered(tiers(domains), len(names))

    def _tiered(self, places: tuple[tuple[int, int], ...], domains: int) -> Group:
        domain, inside = places[self._place.rank]
        size = sum(1 for other, _ in places if other == domain)
        alone = size == 1
        inner: Group = LocalGroup() if alone else self._nccl(f"inner{domain}/", inside, size)
        word: Group = LocalGroup() if alone else self._gloo(f"word{domain}/", inside, size)
        outer = self._gloo("outer/", domain, domains) if inside == 0 else None
        return TieredGroup(self._place.rank, inner, outer, word, places)

    def _gloo(self, prefix: str, rank: int, size: int) -> Group:
        return new_gloo(self._store(prefix), rank, size, self._place.address, self._reaper)

    def _nccl(self, prefix: str, rank: int, size: int) -> Group:
        name = f"fdl-epoch-{self._place.epoch}-{prefix.rstrip('/')}".rstrip("-")
        return new_nccl(
            self._store(prefix),
            name=name,
            rank=rank,
            size=size,
            device=self._fabric.device,
            address=self._place.address,
            reaper=self._reaper,
        )

    def _store(self, prefix: str) -> EpochStore:
        return EpochStore(self._transport, self._place.epoch, prefix)
