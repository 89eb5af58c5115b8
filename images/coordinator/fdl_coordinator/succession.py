"""How a run goes on without members that died, and without an earlier coordinator."""

import math
from collections.abc import Iterable

from fdl_api.reasons import Ended, Progress, Refusal
from fdl_api.wire import RECONNECT_GRACE_SECONDS, EpochCause, EpochMember, Outcome, RankHello, member_of
from fdl_coordinator import forming, gate, report
from fdl_coordinator.ending import Ending
from fdl_coordinator.runstate import Send, in_order
from fdl_coordinator.seats import Seat, SeatState

EXPECTED_GRACE_SECONDS = 10.0
"""Further time to come back for ranks whose pods the operator sees alive: a dial into the void fails only slowly."""

_APART = (SeatState.SUSPENDED, SeatState.READY)
"""Members outside of the present epoch. Those of them who have been in one may hold a state of the running training."""


class Succession(Ending):
    """Deaths, re-formed groups, and the state that ranks echo to a restarted coordinator."""

    def _lost(self, seats: Iterable[Seat], reason: str, message: str, now: float) -> list[Send]:
        """Members fell silent. Who takes part is dead; who only waits may dial again, so nothing is held against it."""
        training = [seat for seat in seats if self._in_epoch(seat) or self._in_confirmed_plan(seat)]
        out: list[Send] = []
        for seat in seats:
            if seat in training:
                continue
            if self.epochs.planned is not None and self._in_plan(seat):
                out += self._cancel(self.epochs.planned)
            seat.ranks = {local: rank for local, rank in seat.ranks.items() if self._heard(rank, now)}
            seat.state = SeatState.JOINING
            if not seat.agent_connected and not seat.ranks:
                del self.seats.by_uid[seat.uid]
        return out + (self._dead(training, reason, message, now) if training else [])

    def _dead(self, seats: Iterable[Seat], reason: str, message: str, now: float) -> list[Send]:
        """Give members up and go on without them."""
        gone: list[str] = []
        out: list[Send] = []
        for seat in seats:
            was_training = self._in_epoch(seat) or self._in_plan(seat)
            seat.state, seat.reason, seat.message = SeatState.DEAD, reason, message
            fenced = gate.refuse(Refusal.FENCED, f"member {seat.hello.member} was given up: {message.rstrip('.')}.")
            out += [(uid, fenced) for uid in [seat.uid, *(rank.uid for rank in seat.ranks.values())]]
            if was_training:
                gone += [rank.uid for rank in seat.ranks.values()]
        if not gone:
            return out
        self.progress.died(len(gone), now)
        planned = self.epochs.planned
        if not any(uid in gone for uid in self.epochs.uids()) and planned is not None and not planned.confirmed:
            return out + self._cancel(planned)
        return out + self._after_death(gone, now)

    def _after_death(self, gone: list[str], now: float, cause: EpochCause = EpochCause.DEATH) -> list[Send]:
        """The next epoch, of those who are left."""
        survivors = [member for member in self.epochs.successors() if member.uid not in gone] or self._heirs()
        stranded = [seat for seat in self.seats.in_state(SeatState.LEAVING) if not self._among(seat, survivors)]
        out = [send for seat in stranded for send in self._dismiss(seat, SeatState.FINISHED)]
        planned = self.epochs.planned
        if planned is not None and not planned.confirmed:
            out += self._cancel(planned)
        self.reduce_failed_at = None
        if not survivors:
            behind = [seat for seat in self.seats.in_state(*_APART) if any(rank.epoch for rank in seat.ranks.values())]
            out += self._dead(behind, Ended.FENCED, "all others are gone, and a checkpoint has more than it holds", now)
            self._start_over(now)
            if self.stop is not None:
                return out + self._stopped(now)
            return out
        for seat in self.seats.in_state(*_APART):
            if self._among(seat, survivors):
                seat.state, seat.reason, seat.message = SeatState.ACTIVE, "", ""
        if self.outcome is Outcome.TRAINING:
            self.outcome = Outcome.RECOVERING
        for member in survivors:
            if (rank := self.seats.rank(member.uid)) is not None:
                rank.finished = False  # the dead one may have been the writer of the last checkpoint
        out += self._announce(self.epochs.begin(survivors, cause, gone))
        if self.stop is not None:
            out += [(member.uid, self.stop) for member in survivors]
        return out + self._settle(now) + self._maybe_done(now)

    def _heirs(self) -> list[EpochMember]:
        """Suspended members that go on when all others have died, unless a checkpoint has more than they hold."""
        if self.stop is not None:
            return []
        seats = [seat for seat in self.seats.in_state(*_APART) if seat.complete]
        ranks = [rank for seat in seats for rank in in_order(seat) if rank.epoch > 0]
        held = max((rank.window for rank in ranks), default=0)
        if not ranks or held < self.progress.durable:
            return []
        self.progress.fell_back(held)
        self.window_times.restarted()
        self.settled = min(self.settled, held)
        return [rank.as_member() for rank in ranks]

    def _reform(self, now: float) -> list[Send]:
        """A reduce failed and nobody is dead: the same members form a new group, as often as the budget allows."""
        self.reduce_failed_at = None
        budget = self.config.failure_policy.budgets.infrastructure
        if self.stop is None and forming.exceeds(self.group_failures, budget):
            return self._fail(Ended.MAX_FAILURES, forming.given_up(report.problem(self), budget))
        members = self.epochs.successors()
        return self._announce(self.epochs.begin(members, EpochCause.REFORM)) if members else []

    def _echo(self, hello: RankHello, now: float) -> list[Send]:
        """A rank that is training tells what it knows."""
        echo = hello.echo
        assert echo is not None
        if self.expected is None:
            self.expected = hello
            self.progress.total_samples = hello.total_samples
        rank = self.seats.rank(f"{hello.member_uid}/{hello.local_rank}")
        assert rank is not None
        rank.epoch, rank.formed = echo.epoch, max(rank.formed, echo.epoch)
        self.progress.resumed(echo)
        current = self.epochs.current
        if current is None or (self.rebuild_until is not None and echo.epoch > current.epoch):
            self.epochs.adopt(echo.epoch, echo.members, echo.max_epoch)
            if self.rebuild_until is None:
                self.rebuild_until = now + RECONNECT_GRACE_SECONDS
                self.outcome = Outcome.TRAINING
        self.epochs.newest = max(self.epochs.newest, echo.max_epoch)
        out = self._rebuild(now)
        self._know_suspended(now)
        return out

    def _know_suspended(self, now: float) -> None:
        """Learn from the echoes who was suspended under an earlier coordinator: else such a member would be planned in
        as a late joiner, and keep all others waiting until it was suspended anew.
        """
        if self.rebuild_until is not None:
            return
        for seat in self.seats.in_state(SeatState.READY, SeatState.JOINING):
            echoes = [rank.hello.echo for rank in seat.ranks.values() if rank.hello.echo is not None]
            told = any(echo.suspended and echo.generation < self.generation for echo in echoes)
            if not told or seat.suspended_at > -math.inf or self._in_epoch(seat) or self._in_plan(seat):
                continue
            seat.state, seat.reason, seat.stalls, seat.suspended_at = SeatState.SUSPENDED, Progress.STALLED, 1, now
            seat.message = (
                "It was suspended under an earlier coordinator: alive, without progress while all others waited. The "
                "run takes it back as a joiner when it goes on."
            )

    def _rebuild(self, now: float) -> list[Send]:
        """Wait for the members of the newest epoch; those who do not come back are dead."""
        if self.rebuild_until is None:
            return []
        present = {uid for uid in self.epochs.uids() if (rank := self.seats.rank(uid)) is not None and rank.connected}
        missing = [uid for uid in self.epochs.uids() if uid not in present]
        alive = set(self.hint.expected) if self.hint is not None else set()
        awaited = any(member_of(uid) in alive for uid in missing)
        if missing and now < self.rebuild_until + (EXPECTED_GRACE_SECONDS if awaited else 0.0):
            return []
        self.rebuild_until = None
        for uid in present:
            seat = self.seats.get(member_of(uid))
            if seat is not None and seat.state in (SeatState.READY, SeatState.JOINING):
                seat.state = SeatState.ACTIVE
        self._know_suspended(now)
        out = self._settle(now)
        if not missing:
            return out
        for seat in (seat for uid in missing if (seat := self.seats.get(member_of(uid))) is not None):
            seat.state, seat.reason, seat.message = SeatState.DEAD, Ended.HEARTBEAT_LOST, "it did not come back"
        self.progress.died(len(missing), now)
        return out + self._after_death(missing, now)
