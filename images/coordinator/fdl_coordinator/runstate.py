"""What the coordinator knows of a run, and the small steps that every decision is made of."""

from collections.abc import Iterable

from fdl_api.exitcodes import PodExit
from fdl_api.reasons import Ended
from fdl_api.runconfig import RunConfig
from fdl_api.termination import Saved
from fdl_api.wire import (
    HEARTBEAT_LIMIT_SECONDS,
    Done,
    Epoch,
    EpochCancelled,
    Hint,
    Message,
    Outcome,
    PairsTested,
    RankHello,
    Refuse,
    Stop,
    member_of,
)
from fdl_coordinator import pairs
from fdl_coordinator.epochs import EpochBook, Planned
from fdl_coordinator.forming import SLOW_SECONDS, Failures
from fdl_coordinator.rendezvous import Rendezvous
from fdl_coordinator.report import Progress
from fdl_coordinator.seats import GONE, RankSeat, Seat, SeatBook, SeatState
from fdl_coordinator.stalling import WindowTimes

ENDED = (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.SUSPENDED)
"""Outcomes after which nothing of this attempt comes back."""

Send = tuple[str, Message]
"""(rank UID or member UID of an agent, message)."""


def in_order(seat: Seat) -> list[RankSeat]:
    return [seat.ranks[local] for local in sorted(seat.ranks)]


class RunState:
    """Members, epochs, store and figures of one run."""

    def __init__(self, config: RunConfig, generation: int) -> None:
        self.config = config
        self.generation = generation
        self.seats = SeatBook()
        self.epochs = EpochBook(generation, sum(cohort.wanted_ranks for cohort in config.cohorts))
        self.store = Rendezvous()
        self.progress = Progress(config, generation)
        self.outcome = Outcome.WAITING
        self.reason = ""
        self.message = ""
        self.expected: RankHello | None = None
        self.hint: Hint | None = None
        self.first_dial: float | None = None
        self.rebuild_until: float | None = None
        self.reduce_failed_at: float | None = None
        self.group_failures = Failures()
        self.broken_epoch = 0
        """Newest epoch of whose members one does not reach another."""
        self.announced_at: float | None = None
        self.ticked_at: float | None = None
        self.stop: Stop | None = None
        self.save_asked = ""
        self.settled = 0
        self.window_times = WindowTimes()
        self.unsaved = False

    def _announce(self, epoch: Epoch) -> list[Send]:
        closed: list[Send] = list(self.store.close_below(epoch.epoch))
        self.store.open(epoch.epoch)
        self.announced_at = self.ticked_at
        return closed + [(member.uid, epoch) for member in epoch.members]

    def _cancel(self, planned: Planned) -> list[Send]:
        number = planned.epoch.epoch
        self.epochs.planned = None
        told = [*(member.uid for member in planned.epoch.members), *planned.leavers]
        living = [uid for uid in told if (seat := self.seats.get(member_of(uid))) and seat.state not in GONE]
        return [*self.store.close(number), *((uid, EpochCancelled(epoch=number)) for uid in living)]

    def _refuse_seat(self, seat: Seat, refusal: Refuse) -> list[Send]:
        seat.state, seat.reason, seat.message = SeatState.REFUSED, refusal.reason, refusal.message
        return [(uid, refusal) for uid in [*(rank.uid for rank in seat.ranks.values()), seat.uid]]

    def _dismiss(self, seat: Seat, state: SeatState) -> list[Send]:
        """Tell a member that it may go, without fault."""
        seat.state = state
        reason = seat.reason or Ended.LEFT
        goes_on = any(self._in_epoch(other) for other in self.seats.living() if other is not seat)
        done = Done(
            exit_code=PodExit.LEFT,
            reason=reason,
            message="its work is counted; it was asked to leave",
            saved=self._kept(seat, goes_on=goes_on),
        )
        return [(uid, done) for uid in [*(rank.uid for rank in seat.ranks.values()), seat.uid]]

    def _dismiss_all(self, code: PodExit, reason: str, message: str, state: SeatState) -> list[Send]:
        out: list[Send] = []
        for seat in list(self.seats.living()):
            seat.state = state
            done = Done(exit_code=code, reason=reason, message=message, saved=self._kept(seat, goes_on=False))
            out += [(uid, done) for uid in [*(rank.uid for rank in seat.ranks.values()), seat.uid]]
        return out

    def _kept(self, seat: Seat, *, goes_on: bool) -> Saved:
        """What became of a member's work: in a durable checkpoint, held by those who go on, or in neither."""
        last = max((rank.window for rank in seat.ranks.values()), default=0)
        if last == 0:
            return Saved.NOTHING
        if self.progress.durable >= last:
            return Saved.SAVED
        return Saved.COMMITTED if goes_on else Saved.INCOMPLETE

    def _silent(self, seat: Seat, now: float) -> bool:
        return any(not rank.finished and not self._heard(rank, now) for rank in seat.ranks.values())

    @staticmethod
    def _heard(rank: RankSeat, now: float) -> bool:
        return rank.connected and now - rank.last_heard <= HEARTBEAT_LIMIT_SECONDS

    def _formed(self, uid: str) -> int:
        rank = self.seats.rank(uid)
        return rank.formed if rank is not None else 0

    def slow_minutes(self) -> int:
        """Whole minutes since the present epoch was announced; 0 while that is not long."""
        if self.announced_at is None or self.ticked_at is None:
            return 0
        seconds = self.ticked_at - self.announced_at
        return int(seconds // 60) if seconds > SLOW_SECONDS else 0

    def unformed(self) -> list[str]:
        """Ranks of the present epoch that have not said that its group stands."""
        current = self.epochs.current
        return [uid for uid in self.epochs.uids() if current is not None and self._formed(uid) < current.epoch]

    def stands(self) -> bool:
        """Whether the present epoch's group can work: all ranks have formed it, and no two of them are apart.

        A group comes to stand by small packets alone. Where large ones are lost, its first collective hangs.
        """
        current = self.epochs.current
        tests = self.tests(current.epoch) if current is not None else {}
        return not self.unformed() and not any(pairs.apart(tests, uid) for uid in tests)

    def tests(self, since: int = 0) -> dict[str, PairsTested]:
        """What living ranks said last of their ways to others, by UID; of this epoch and later ones; by seats."""
        ranks = (rank for seat in sorted(self.seats.living(), key=lambda seat: seat.place) for rank in in_order(seat))
        return {rank.uid: rank.tested for rank in ranks if rank.tested is not None and rank.tested.epoch >= since}

    def stuck_pairs(self) -> list[pairs.Pair]:
        """The broken pairs of a present epoch whose group does not come to stand; none before it has had some time."""
        current, at, now = self.epochs.current, self.announced_at, self.ticked_at
        if current is None or current.epoch != self.broken_epoch or at is None or now is None:
            return []
        return pairs.of(self.tests(current.epoch)) if now - at >= pairs.STAND_SECONDS and self.unformed() else []

    def _any_final(self) -> bool:
        ranks = (self.seats.rank(uid) for uid in self.epochs.uids())
        return any(rank is not None and rank.final for rank in ranks)

    def _in_epoch(self, seat: Seat) -> bool:
        return self._among(seat, self.epochs.members())

    def _in_confirmed_plan(self, seat: Seat) -> bool:
        planned = self.epochs.planned
        return planned is not None and planned.confirmed and self._among(seat, planned.epoch.members)

    def _in_plan(self, seat: Seat) -> bool:
        return self.epochs.planned is not None and self._among(seat, self.epochs.planned.epoch.members)

    @staticmethod
    def _among(seat: Seat, members: Iterable[object]) -> bool:
        uids = {getattr(member, "uid", None) for member in members}
        return any(f"{seat.uid}/{local}" in uids for local in range(max(1, len(seat.hello.devices))))
