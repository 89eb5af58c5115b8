"""Members that are alive and make no progress: the run goes on without them, and takes them back."""

from collections.abc import Iterator

from fdl_api.reasons import Progress
from fdl_api.wire import EpochCause, EpochMember, Phase, member_of
from fdl_coordinator import stalling
from fdl_coordinator.runstate import ENDED, Send
from fdl_coordinator.seats import RankSeat, Seat, SeatState
from fdl_coordinator.succession import Succession

LONG_PHASES = frozenset({Phase.LOAD, Phase.COMPILE, Phase.CHECKPOINT, Phase.EVALUATE})


class Suspension(Succession):
    """Suspensions by the rule of :mod:`fdl_coordinator.stalling`, and returns."""

    def _suspend_stalled(self, now: float) -> list[Send]:
        """Make the next epoch without those who keep all others waiting."""
        if self.epochs.current is None or self.rebuild_until is not None or self.outcome in ENDED:
            return []
        floor, usual = self.config.stall_seconds, self.window_times.usual
        uids = stalling.stalled(list(self._sights(now)), usual, floor, self.config.join.min_members)
        seats = [seat for uid in sorted(uids) if (seat := self.seats.get(uid)) is not None]
        return self._suspend(seats, now) if seats else []

    def _sights(self, now: float) -> Iterator[stalling.Sight]:
        planned, current = self.epochs.planned, self.epochs.current
        assert current is not None
        target = planned.epoch.epoch if planned is not None and planned.confirmed else current.epoch
        members: dict[str, EpochMember] = {m.uid: m for m in (*current.members, *self.epochs.successors())}
        for uid in members:
            rank = self.seats.rank(uid)
            heard = rank is not None and not rank.finished and self._heard(rank, now)
            seconds = now - rank.progressed_at if rank is not None and heard else 0.0
            yield stalling.Sight(
                member=member_of(uid),
                waiting=rank is not None and heard and _waits(rank, target),
                seconds=seconds,
                slow=rank is None or not rank.seasoned or rank.phase in LONG_PHASES,
            )

    def _note_silence(self, now: float) -> None:
        """Note that nobody who trains is heard. It is told and not judged: see :meth:`Engine._believed_dead`."""
        ranks = [rank for uid in self.epochs.uids() if (rank := self.seats.rank(uid)) is not None and not rank.finished]
        counts = self.rebuild_until is None and self.outcome not in ENDED
        last = stalling.unheard_since([(self._heard(rank, now), rank.last_heard) for rank in ranks]) if counts else None
        self.progress.heard(None if last is None else now - last)

    def _suspend(self, seats: list[Seat], now: float) -> list[Send]:
        for seat in seats:
            busy = [rank for rank in seat.ranks.values() if rank.phase not in (Phase.REDUCE, Phase.WAIT)]
            stuck = min(busy or seat.ranks.values(), key=lambda rank: rank.progressed_at)
            idle = now - stuck.progressed_at
            seat.stalls = 1 if now - seat.suspended_at > stalling.FORGIVEN_SECONDS else seat.stalls + 1
            seat.suspended_at = now
            seat.welcome_at = now + stalling.penance(seat.stalls, self.config.stall_seconds)
            if seat.state is not SeatState.LEAVING:
                seat.state, seat.reason = SeatState.SUSPENDED, Progress.STALLED
                seat.message = (
                    f"Its rank {stuck.hello.local_rank} was alive and finished no batch for {idle:.0f} s while all "
                    "others waited for it: the run goes on without the member, and takes it back as a joiner when it "
                    "goes on. If its script hangs, delete its pod: a successor takes its place."
                )
        self.progress.suspensions += len(seats)
        out = self._after_death([rank.uid for seat in seats for rank in seat.ranks.values()], now, EpochCause.SUSPEND)
        return out + [send for seat in seats for send in self._tell_suspended(seat)]

    def _tell_suspended(self, seat: Seat) -> list[Send]:
        """Tell a suspended member's ranks of the epoch without them, so that they train no further."""
        current = self.epochs.current
        if seat.state is not SeatState.SUSPENDED or current is None:
            return []
        told = current.model_copy(update={"cause": EpochCause.SUSPEND})
        return [(rank.uid, told) for rank in seat.ranks.values()]

    def _welcome_back(self, now: float) -> None:
        """Let those join who were suspended and stand by now: all their ranks have left their batch and wait."""
        for seat in self.seats.in_state(SeatState.SUSPENDED):
            standing_by = all(rank.phase is Phase.WAIT and self._heard(rank, now) for rank in seat.ranks.values())
            if now >= seat.welcome_at and seat.complete and standing_by:
                seat.state, seat.reason, seat.message = SeatState.READY, "", ""


def _waits(rank: RankSeat, target: int) -> bool:
    """Whether a rank waits for the others: in a reduce, or for the first operation of the epoch that it goes to."""
    return rank.phase is Phase.REDUCE or (rank.phase is Phase.WAIT and rank.epoch < target)
