"""How a run starts, and how its membership changes by plan."""

from fdl_api.reasons import Ended
from fdl_api.wire import RECONNECT_GRACE_SECONDS, EpochCause, Outcome, Stop
from fdl_coordinator import formation, gate
from fdl_coordinator.epochs import Planned
from fdl_coordinator.runstate import ENDED, Send, in_order
from fdl_coordinator.seats import Seat, SeatState
from fdl_coordinator.suspension import Suspension

PLAN_LIMIT_SECONDS = 30.0
"""Time in which a planned epoch must be formed by all its members."""


class Opening(Suspension):
    """The start of the cohort and the planned epochs after it."""

    def _advance(self, now: float) -> list[Send]:
        """Start, or plan the next epoch, when it is time."""
        if self.outcome in ENDED or self.rebuild_until is not None:
            return []
        if self.epochs.current is None:
            return [] if self.stop is not None else self._maybe_start(now)
        return self._maybe_plan(now)

    def _maybe_start(self, now: float) -> list[Send]:
        if self.first_dial is None or (self.generation > 1 and now - self.first_dial < RECONNECT_GRACE_SECONDS):
            return []
        ready = self.seats.in_state(SeatState.READY)
        elapsed, starting = now - self.first_dial, self._starting()
        verdict = formation.decide(len(ready), self._target(), elapsed, self.config.join, starting=starting)
        if verdict is formation.Verdict.WAIT:
            return []
        out: list[Send] = []
        if ready and self.expected is None:
            out = self._fix_signature(ready)
            if out:
                return out + self._maybe_start(now)
        if verdict is formation.Verdict.FAIL:
            return out + self._fail(
                Ended.BELOW_MINIMUM,
                f"{len(ready)} of at least {self.config.join.min_members} members were ready within "
                f"join.capSeconds ({self.config.join.cap_seconds} s).",
            )
        without = self._without_checkpoint(ready)
        if without is not None:
            return out + without
        members = [rank.as_member() for seat in ready for rank in in_order(seat)]
        for seat in ready:
            seat.state = SeatState.ACTIVE
        self.outcome = Outcome.TRAINING
        ranks = [rank for seat in ready for rank in seat.ranks.values()]
        self.progress.restarted(max((rank.hello.committed for rank in ranks), key=lambda held: held.order).window)
        self.window_times.restarted()
        self.settled = self.progress.window
        for rank in ranks:
            # The newest checkpoint is given to all; that of a part that was cut off is not it.
            rank.window = self.settled
        return out + self._announce(self.epochs.begin(members, EpochCause.START))

    def _target(self) -> int:
        wanted = self.hint.wanted_members if self.hint is not None else sum(c.max_replicas for c in self.config.cohorts)
        target = self.config.join.target_members or wanted
        refused = len({seat.place for seat in self.seats.in_state(SeatState.REFUSED)})
        return max(1, min(target, wanted) - refused)

    def _starting(self) -> int:
        """Members that have dialled and load, or that the operator sees on a node and that have not dialled yet."""
        loading = self.seats.in_state(SeatState.JOINING)
        placed = self.hint.placed if self.hint is not None else []
        return len(loading) + sum(1 for uid in placed if self.seats.get(uid) is None)

    def _fix_signature(self, ready: list[Seat]) -> list[Send]:
        """Take the majority's model and data as the run's; refuse the others."""
        self.expected = gate.majority([rank.hello for seat in ready for rank in in_order(seat)])
        self.progress.total_samples = self.expected.total_samples
        out: list[Send] = []
        for seat in ready:
            refusals = [gate.check_signature(rank.hello, self.expected) for rank in seat.ranks.values()]
            wrong = next((refusal for refusal in refusals if refusal is not None), None)
            if wrong is not None:
                self.progress.refused(wrong)
                out += self._refuse_seat(seat, wrong)
        return out

    def _without_checkpoint(self, ready: list[Seat]) -> list[Send] | None:
        progressed = self.config.must_resume or (self.progress.window > 0 and not self.config.allow_fresh_start)
        hellos = [rank.hello for seat in ready for rank in seat.ranks.values()]
        if not progressed or any(hello.committed.window > 0 for hello in hellos):
            return None
        error = next((hello.checkpoint_error for hello in hellos if hello.checkpoint_error), "none was found")
        dead = [seat for seat in self.seats.by_uid.values() if seat.state is SeatState.DEAD and seat.message]
        last = f" The last one who trained, {dead[-1].hello.member}, ended so: {dead[-1].message[:400]}" if dead else ""
        return self._fail(
            Ended.NO_CHECKPOINT,
            f"The run has progress but no member can load a checkpoint ({error}). Restore the checkpoint volume, "
            f"or set runPolicy.allowFreshStart to train from the start.{last}",
        )

    def _maybe_plan(self, now: float) -> list[Send]:
        """Plan an epoch with the joiners and without the leavers."""
        current = self.epochs.current
        assert current is not None
        if self.epochs.planned is not None or self.stop is not None or self.unformed() or self._any_final():
            return []
        leavers, joiners = self._due(now)
        if not leavers and not joiners:
            return []
        going = {rank.uid for seat in leavers for rank in seat.ranks.values()}
        members = [member for member in current.members if member.uid not in going]
        members += [rank.as_member() for seat in joiners for rank in in_order(seat)]
        if not members:
            return self._stop(Stop(save=True, reason=Ended.LEFT, message="all members were asked to leave"), now)
        cause = EpochCause.JOIN if joiners else EpochCause.LEAVE
        planned = self.epochs.plan(members, cause, sorted(going), now)
        self.store.open(planned.epoch.epoch)
        return [(uid, planned.epoch) for uid in [*(member.uid for member in members), *planned.leavers]]

    def _due(self, now: float) -> tuple[list[Seat], list[Seat]]:
        """Who leaves and who joins in the next epoch.

        Whoever's epochs failed again and again waits between two tries, and then joins alone, so that it keeps neither
        other joiners out nor leavers in.
        """
        due = [
            seat for seat in self.seats.in_state(SeatState.LEAVING, SeatState.READY) if seat.failures.again_at <= now
        ]
        leavers = [seat for seat in due if seat.state is SeatState.LEAVING and self._in_epoch(seat)]
        joiners = [seat for seat in due if seat.state is SeatState.READY]
        fresh = [seat for seat in joiners if not seat.failures.telling]
        return leavers, fresh if fresh or leavers else joiners[:1]

    def _plan_failed(self, rank_uid: str, text: str, now: float) -> None:
        """Book that the planned epoch could not be formed, with those for whom it was made."""
        planned = self.epochs.planned
        assert planned is not None
        for seat in self.seats.in_state(SeatState.READY, SeatState.LEAVING):
            if self._in_plan(seat) != self._in_epoch(seat):
                seat.failures.report(seat.uid, planned.epoch.epoch, rank_uid, text, now)

    def _plan_expired(self, planned: Planned, now: float) -> list[Send]:
        """Drop a planned epoch that some of its members have not formed in time."""
        late = [member.uid for member in planned.epoch.members if self._formed(member.uid) < planned.epoch.epoch]
        for uid in late:
            self._plan_failed(uid, f"(nothing: its group did not stand within {PLAN_LIMIT_SECONDS:.0f} s)", now)
        return self._cancel(planned)

    def _maybe_switched(self, now: float) -> list[Send]:
        planned = self.epochs.planned
        if planned is None or not planned.confirmed:
            return []
        ranks = [self.seats.rank(member.uid) for member in planned.epoch.members]
        if not all(rank is not None and rank.epoch >= planned.epoch.epoch for rank in ranks):
            return []
        self.epochs.switch()
        for seat in self.seats.in_state(SeatState.READY):
            if self._in_epoch(seat):
                seat.state = SeatState.ACTIVE
                seat.failures.clear()
        return [*self.store.close_below(planned.epoch.epoch), *self._release_leavers(now)]
