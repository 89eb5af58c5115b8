"""Records of the members and ranks that the coordinator knows."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from fdl_api.runconfig import CohortConfig
from fdl_api.wire import AgentHello, Device, EpochMember, PairsTested, Phase, RankHello
from fdl_coordinator.forming import Failures


class SeatState(StrEnum):
    """Where a member stands. The values are those of :class:`fdl_api.wire.MemberState`."""

    JOINING = "joining"
    READY = "ready"
    ACTIVE = "active"
    LEAVING = "leaving"
    SUSPENDED = "suspended"
    """Alive without progress: the epoch goes on without it, and it comes back as a joiner."""
    DEAD = "dead"
    REFUSED = "refused"
    FINISHED = "finished"


GONE = frozenset({SeatState.DEAD, SeatState.REFUSED, SeatState.FINISHED})
"""States out of which no member comes back; its UID is fenced."""


@dataclass
class RankSeat:
    """One rank of a member, from its Hello on."""

    uid: str
    hello: RankHello
    last_heard: float
    connected: bool = True
    phase: Phase = Phase.LOAD
    progress: int = 0
    progressed_at: float = 0.0
    batches: int = 0
    epoch: int = 0
    window: int = 0
    """Newest window that the rank reported as committed."""
    formed: int = 0
    """Newest epoch whose group the rank has formed."""
    seasoned: bool = False
    """Whether it has committed a window that it trained for: its first batch, and compilation, are behind it."""
    final: bool = False
    finished: bool = False
    number: int = -1
    """Number of its seat in the run (:func:`seat_number`)."""
    device: Device | None = None
    tested: PairsTested | None = None
    """Its newest word on its ways to the others."""

    def as_member(self) -> EpochMember:
        """The rank's entry in an epoch's member list."""
        hello = self.hello
        return EpochMember(
            uid=self.uid,
            member=hello.member,
            address=hello.address,
            cohort=hello.cohort,
            seat=self.number,
            device=self.device,
            reach=hello.reach,
        )


@dataclass
class Seat:
    """One incarnation of a member, identified by its UID."""

    hello: AgentHello
    state: SeatState = SeatState.JOINING
    agent_connected: bool = True
    ranks: dict[int, RankSeat] = field(default_factory=dict)
    reason: str = ""
    message: str = ""
    stalls: int = 0
    """How often it was suspended lately."""
    suspended_at: float = -math.inf
    welcome_at: float = 0.0
    """Time before which it is not taken back."""
    failures: Failures = field(default_factory=Failures)
    """Of the epochs by which it was to come or to go."""

    @property
    def uid(self) -> str:
        """The member UID."""
        return self.hello.member_uid

    @property
    def place(self) -> tuple[str, int]:
        """(cohort, ordinal): the same for all incarnations of a member."""
        return (self.hello.cohort, self.hello.ordinal)

    @property
    def complete(self) -> bool:
        """Whether every rank of the member has said Hello and is connected."""
        wanted = max(1, len(self.hello.devices))
        return len(self.ranks) == wanted and all(rank.connected for rank in self.ranks.values())


def seat_number(cohorts: Sequence[CohortConfig], place: tuple[str, int], local_rank: int) -> int:
    """Number of a rank's seat in the run, the same for all holders; -1 when the spec wants no such seat.

    Args:
        cohorts: in the order of the spec.
        place: cohort and ordinal of the rank's member.
        local_rank: number of the rank in its member.
    """
    before = 0
    for cohort in cohorts:
        if cohort.name == place[0]:
            inside = place[1] * cohort.ranks_per_replica + local_rank
            fits = 0 <= inside < cohort.wanted_ranks and local_rank < cohort.ranks_per_replica
            return before + inside if fits else -1
        before += cohort.wanted_ranks
    return -1


class SeatBook:
    """All members by UID, in order of admission."""

    def __init__(self) -> None:
        self.by_uid: dict[str, Seat] = {}

    def add(self, hello: AgentHello) -> Seat:
        """Give a new member its seat."""
        seat = Seat(hello=hello)
        self.by_uid[hello.member_uid] = seat
        return seat

    def get(self, member_uid: str) -> Seat | None:
        """The seat of a member, living or gone."""
        return self.by_uid.get(member_uid)

    def holder(self, place: tuple[str, int]) -> Seat | None:
        """The living incarnation on a (cohort, ordinal), if any."""
        return next((seat for seat in self.living() if seat.place == place), None)

    def newest_incarnation(self, place: tuple[str, int]) -> int:
        """Highest incarnation ever admitted on a (cohort, ordinal); 0 when none was."""
        return max((seat.hello.incarnation for seat in self.by_uid.values() if seat.place == place), default=0)

    def living(self) -> Iterator[Seat]:
        """Seats that may still take part."""
        return (seat for seat in self.by_uid.values() if seat.state not in GONE)

    def in_state(self, *states: SeatState) -> list[Seat]:
        """Seats in one of the states, ordered by cohort and ordinal."""
        return sorted((seat for seat in self.by_uid.values() if seat.state in states), key=lambda seat: seat.place)

    def rank(self, rank_uid: str) -> RankSeat | None:
        """The rank of a UID ``<member UID>/<local rank>``."""
        member_uid, _, local = rank_uid.rpartition("/")
        seat = self.by_uid.get(member_uid)
        return seat.ranks.get(int(local)) if seat is not None and local.isdecimal() else None
