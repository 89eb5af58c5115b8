"""The coordinator's state machine: events in, messages out.

No I/O and no clock: the server calls one method an event with the time in seconds (any monotonic clock) and
sends what the method returned. docs/protocol.md says why each step is safe; the rules themselves are in
:mod:`gate`, :mod:`formation` and :mod:`epochs`.
"""

from collections.abc import Iterable

from fdl_api.exitcodes import PodExit
from fdl_api.reasons import Ended, Refusal
from fdl_api.runconfig import RunConfig
from fdl_api.termination import Cause
from fdl_api.wire import (
    HEARTBEAT_LIMIT_SECONDS,
    RECONNECT_GRACE_SECONDS,
    Accept,
    AgentHello,
    CheckpointFailed,
    CheckpointSaved,
    Done,
    Epoch,
    EpochCancelled,
    EpochCause,
    EpochFailed,
    EpochFormed,
    Evaluated,
    Finished,
    Heartbeat,
    Hint,
    Leave,
    Message,
    Outcome,
    RankExited,
    RankHello,
    ReduceFailed,
    Refuse,
    Save,
    Settled,
    Stop,
    StoreGet,
    StoreSet,
    WindowCommitted,
)
from fdl_coordinator import formation, gate
from fdl_coordinator.epochs import EpochBook, Planned
from fdl_coordinator.rendezvous import Answer, Rendezvous
from fdl_coordinator.report import Progress
from fdl_coordinator.seats import GONE, RankSeat, Seat, SeatBook, SeatState

REFORM_SECONDS = HEARTBEAT_LIMIT_SECONDS + 0.5
"""Time in which a death may explain a failed reduce; after it the group is made anew."""
PLAN_LIMIT_SECONDS = 30.0
"""Time in which a planned epoch must be formed by all its members."""

Send = tuple[str, Message]
"""(rank UID or member UID of an agent, message)."""


class Engine:
    """One run's membership, from the first dial to the last Done."""

    def __init__(self, config: RunConfig, generation: int) -> None:
        self.config = config
        self.generation = generation
        self.seats = SeatBook()
        self.epochs = EpochBook(generation)
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
        self.stop: Stop | None = None
        self.settled = 0

    # --- agents -----------------------------------------------------------------------------------------

    def agent_hello(self, hello: AgentHello, now: float) -> list[Send]:
        """A member's agent dials."""
        refusal = gate.check_agent(hello, self.config, self.seats)
        if refusal is None and self.outcome in (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.SUSPENDED):
            refusal = gate.refuse(
                Refusal.RUN_FINISHED, f"member {hello.member} is late: the run has ended ({self.outcome})."
            )
        if refusal is not None:
            self.progress.refused(refusal)
            return [(hello.member_uid, refusal)]
        self.first_dial = now if self.first_dial is None else self.first_dial
        out: list[Send] = []
        stale = self.seats.holder((hello.cohort, hello.ordinal))
        if stale is not None and stale.uid != hello.member_uid:
            out += self._dead([stale], Ended.FENCED, f"{hello.member} took its place", now)
        known = self.seats.get(hello.member_uid)
        if known is None:
            self.seats.add(hello)
        else:
            known.agent_connected = True
        out.append((hello.member_uid, Accept(generation=self.generation)))
        return out

    def agent_lost(self, member_uid: str, now: float) -> list[Send]:
        """An agent's connection closed. Its ranks speak for themselves; without any, the seat is free again."""
        seat = self.seats.get(member_uid)
        if seat is None or seat.state in GONE:
            return []
        seat.agent_connected = False
        if any(rank.connected for rank in seat.ranks.values()):
            return []
        return self._lost([seat], Ended.CONNECTION_LOST, "its agent's connection closed", now)

    def rank_exited(self, report: RankExited, now: float) -> list[Send]:
        """An agent saw a rank end."""
        seat = self.seats.get(report.member_uid)
        if seat is None or seat.state in GONE:
            return []
        rank = seat.ranks.get(report.local_rank)
        if rank is not None and rank.finished:
            return self._maybe_done(now)
        if report.cause is Cause.COMPLETE and self.outcome is Outcome.SUCCEEDED:
            return []
        return self._dead([seat], report.reason, report.message, now)

    # --- ranks ------------------------------------------------------------------------------------------

    def rank_hello(self, hello: RankHello, now: float) -> list[Send]:
        """A rank dials; its member's agent has been admitted before."""
        uid = f"{hello.member_uid}/{hello.local_rank}"
        seat = self.seats.get(hello.member_uid)
        if seat is None:
            return [(uid, _unknown_member(hello))]
        refusal = gate.check_rank(hello, self.config, seat)
        if refusal is None and self.expected is not None:
            refusal = gate.check_signature(hello, self.expected)
        if refusal is not None:
            self.progress.refused(refusal)
            mismatch = refusal.reason in (Refusal.MODEL_MISMATCH, Refusal.DATASET_MISMATCH)
            return self._refuse_seat(seat, refusal) if mismatch else [(uid, refusal)]
        known = seat.ranks.get(hello.local_rank)
        rank = RankSeat(uid=uid, hello=hello, last_heard=now, progressed_at=now)
        if known is not None:
            rank.finished, rank.window, rank.formed, rank.final = (
                known.finished,
                known.window,
                known.formed,
                known.final,
            )
        rank.window = max(rank.window, hello.committed.window)
        seat.ranks[hello.local_rank] = rank
        out: list[Send] = [(uid, Accept(generation=self.generation))]
        out += self._settle_state(seat)
        if hello.echo is not None:
            out += self._echo(hello, now)
        if self.stop is not None:
            out.append((uid, self.stop))
        return out + self._advance(now)

    def rank_lost(self, rank_uid: str, now: float) -> list[Send]:
        """A rank's connection closed."""
        rank = self.seats.rank(rank_uid)
        seat = self.seats.get(rank_uid.rpartition("/")[0])
        if rank is None or seat is None or not rank.connected or seat.state in GONE:
            return []
        rank.connected = False
        if rank.finished:
            return self._maybe_done(now)
        if self.rebuild_until is not None:
            return []
        return self._lost([seat], Ended.CONNECTION_LOST, "its connection closed", now)

    def heartbeat(self, rank_uid: str, beat: Heartbeat, now: float) -> list[Send]:
        """A rank is alive."""
        rank = self.seats.rank(rank_uid)
        if rank is None:
            return []
        if beat.progress != rank.progress or beat.phase != rank.phase:
            rank.progressed_at = now
        rank.last_heard, rank.phase, rank.progress, rank.batches = now, beat.phase, beat.progress, beat.batches
        if beat.epoch == rank.epoch:
            return []
        rank.epoch = beat.epoch
        return self._maybe_switched(now)

    def formed(self, rank_uid: str, report: EpochFormed, now: float) -> list[Send]:
        """A rank's group of an epoch stands."""
        rank = self.seats.rank(rank_uid)
        if rank is None:
            return []
        rank.formed = max(rank.formed, report.epoch)
        planned = self.epochs.planned
        if planned is None or planned.confirmed or report.epoch != planned.epoch.epoch:
            return self._advance(now)
        if not all(self._formed(member.uid) >= planned.epoch.epoch for member in planned.epoch.members):
            return []
        confirmed = self.epochs.confirm()
        return [(uid, confirmed) for uid in [*(member.uid for member in confirmed.members), *planned.leavers]]

    def forming_failed(self, rank_uid: str, report: EpochFailed, now: float) -> list[Send]:
        """A rank could not form a group. Nobody is blamed: a planned epoch is dropped, a present one made anew."""
        planned = self.epochs.planned
        if planned is not None and planned.epoch.epoch == report.epoch:
            return self._cancel(planned) if not planned.confirmed else []
        if self.epochs.current is not None and self.epochs.current.epoch == report.epoch:
            self.reduce_failed_at = self.reduce_failed_at or now
        return []

    def committed(self, rank_uid: str, report: WindowCommitted, now: float) -> list[Send]:
        """A rank committed a window."""
        rank = self.seats.rank(rank_uid)
        if rank is None:
            return []
        rank.window = max(rank.window, report.window)
        rank.final = rank.final or report.final
        rank.epoch = max(rank.epoch, report.epoch)
        self.progress.committed(report, now)
        if self.epochs.current is not None and report.epoch >= self.epochs.current.epoch:
            self.reduce_failed_at = None
            if self.outcome is Outcome.RECOVERING:
                self.outcome = Outcome.TRAINING
        out = self._maybe_switched(now)
        return out + self._settle(now) + self._release_leavers(now)

    def reduce_failed(self, rank_uid: str, report: ReduceFailed, now: float) -> list[Send]:
        """A reduce failed at a rank; it names nobody."""
        current = self.epochs.current
        if current is not None and report.epoch == current.epoch and self.reduce_failed_at is None:
            self.reduce_failed_at = now
        return []

    def leave(self, member_uid: str, request: Leave, now: float) -> list[Send]:
        """A member was asked to go (SIGTERM)."""
        seat = self.seats.get(member_uid)
        if seat is None or seat.state in GONE or seat.state is SeatState.LEAVING:
            return []
        seat.reason = request.reason
        planned = self.epochs.planned
        if not self._in_epoch(seat) and not self._in_confirmed_plan(seat):
            out = self._cancel(planned) if planned is not None and self._in_plan(seat) else []
            return out + self._dismiss(seat, SeatState.FINISHED)
        seat.state = SeatState.LEAVING
        return self._advance(now)

    def saved(self, rank_uid: str, report: CheckpointSaved, now: float) -> list[Send]:
        """A checkpoint is durable."""
        self.progress.saved(report)
        return []

    def save_failed(self, rank_uid: str, report: CheckpointFailed, now: float) -> list[Send]:
        """A checkpoint could not be written."""
        self.progress.save_failed(report)
        if report.final and self.outcome not in (Outcome.FAILED, Outcome.SUSPENDED):
            self.reason, self.message = report.reason, report.message
        return []

    def evaluated(self, rank_uid: str, report: Evaluated, now: float) -> list[Send]:
        """The final model was evaluated."""
        self.progress.metrics = dict(report.metrics)
        return []

    def finished(self, rank_uid: str, report: Finished, now: float) -> list[Send]:
        """A rank has nothing left to do."""
        rank = self.seats.rank(rank_uid)
        if rank is None:
            return []
        rank.finished = True
        return self._maybe_done(now)

    def store_set(self, rank_uid: str, request: StoreSet) -> list[Answer]:
        """Rendezvous store: set."""
        return self.store.set(rank_uid, request)

    def store_get(self, rank_uid: str, request: StoreGet, now: float) -> list[Answer]:
        """Rendezvous store: get."""
        return self.store.get(rank_uid, request, now)

    # --- operator and time ------------------------------------------------------------------------------

    def hinted(self, hint: Hint, now: float) -> list[Send]:
        """The operator says what it sees and wants."""
        self.hint = hint
        out: list[Send] = []
        lost = [seat for uid in hint.gone if (seat := self.seats.get(uid)) is not None and seat.state not in GONE]
        if lost:
            out += self._dead(lost, Ended.POD_DELETED, "its pod is gone", now)
        if self.stop is None and self.outcome not in (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.SUSPENDED):
            if hint.give_up:
                out += self._stop(Stop(save=True, reason=hint.give_up, message="the operator gave the run up"), now)
            elif hint.suspend:
                out += self._stop(
                    Stop(save=True, reason="SuspendedByUser", message="spec.runPolicy.suspend is true"), now
                )
        return out + self._advance(now)

    def save_now(self) -> list[Send]:
        """Ask for a checkpoint at the next boundary."""
        return [(uid, Save()) for uid in self.epochs.uids()]

    def tick(self, now: float) -> list[Send]:
        """Everything that happens because time passes. Called every CLOCK_TICK_SECONDS."""
        out: list[Send] = list(self.store.expire(now))
        if self.rebuild_until is not None:
            out += self._rebuild(now)
        silent = [seat for seat in self.seats.living() if self._silent(seat, now)]
        if silent and self.rebuild_until is None:
            out += self._lost(silent, Ended.HEARTBEAT_LOST, f"no heartbeat for {HEARTBEAT_LIMIT_SECONDS:.0f} s", now)
        planned = self.epochs.planned
        if planned is not None and not planned.confirmed and now - planned.made_at > PLAN_LIMIT_SECONDS:
            out += self._cancel(planned)
        if self.reduce_failed_at is not None and now - self.reduce_failed_at > REFORM_SECONDS:
            out += self._reform(now)
        return out + self._advance(now)

    # --- decisions --------------------------------------------------------------------------------------

    def _advance(self, now: float) -> list[Send]:
        """Start, or plan the next epoch, when it is time."""
        if self.outcome in (Outcome.SUCCEEDED, Outcome.FAILED, Outcome.SUSPENDED) or self.rebuild_until is not None:
            return []
        if self.epochs.current is None:
            return [] if self.stop is not None else self._maybe_start(now)
        return self._maybe_plan(now)

    def _maybe_start(self, now: float) -> list[Send]:
        if self.first_dial is None or (self.generation > 1 and now - self.first_dial < RECONNECT_GRACE_SECONDS):
            return []
        ready = self.seats.in_state(SeatState.READY)
        verdict = formation.decide(len(ready), self._target(), now - self.first_dial, self.config.join)
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
        members = [rank.as_member() for seat in ready for rank in _in_order(seat)]
        for seat in ready:
            seat.state = SeatState.ACTIVE
        self.outcome = Outcome.TRAINING
        self.progress.restarted(max(rank.hello.committed.window for seat in ready for rank in seat.ranks.values()))
        self.settled = self.progress.window
        return out + self._announce(self.epochs.begin(members, EpochCause.START))

    def _target(self) -> int:
        wanted = self.hint.wanted_members if self.hint is not None else sum(c.max_replicas for c in self.config.cohorts)
        target = self.config.join.target_members or wanted
        refused = len({seat.place for seat in self.seats.in_state(SeatState.REFUSED)})
        return max(1, min(target, wanted) - refused)

    def _fix_signature(self, ready: list[Seat]) -> list[Send]:
        """Take the majority's model and data as the run's; refuse the others."""
        self.expected = gate.majority([rank.hello for seat in ready for rank in _in_order(seat)])
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
        return self._fail(
            Ended.NO_CHECKPOINT,
            f"The run has progress but no member can load a checkpoint ({error}). Restore the checkpoint volume, "
            "or set runPolicy.allowFreshStart to train from the start.",
        )

    def _maybe_plan(self, now: float) -> list[Send]:
        """Plan an epoch with the joiners and without the leavers."""
        current = self.epochs.current
        assert current is not None
        settled = all(self._formed(uid) >= current.epoch for uid in self.epochs.uids())
        if self.epochs.planned is not None or self.stop is not None or not settled or self._any_final():
            return []
        leavers = [seat for seat in self.seats.in_state(SeatState.LEAVING) if self._in_epoch(seat)]
        joiners = self.seats.in_state(SeatState.READY)
        if not leavers and not joiners:
            return []
        going = {rank.uid for seat in leavers for rank in seat.ranks.values()}
        members = [member for member in current.members if member.uid not in going]
        members += [rank.as_member() for seat in joiners for rank in _in_order(seat)]
        if not members:
            return self._stop(Stop(save=True, reason=Ended.LEFT, message="all members were asked to leave"), now)
        cause = EpochCause.JOIN if joiners else EpochCause.LEAVE
        planned = self.epochs.plan(members, cause, sorted(going), now)
        self.store.open(planned.epoch.epoch)
        return [(uid, planned.epoch) for uid in [*(member.uid for member in members), *planned.leavers]]

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
        return self._closed(planned.epoch.epoch) + self._release_leavers(now)

    def _release_leavers(self, now: float) -> list[Send]:
        """Let leavers go whose last window all remaining members have committed too."""
        out: list[Send] = []
        remaining = [rank for uid in self.epochs.uids() if (rank := self.seats.rank(uid)) is not None]
        for seat in self.seats.in_state(SeatState.LEAVING):
            last = max((rank.window for rank in seat.ranks.values()), default=0)
            if not self._in_epoch(seat) and all(rank.window >= last for rank in remaining):
                out += [(rank.uid, Settled(window=last)) for rank in seat.ranks.values()]
                out += self._dismiss(seat, SeatState.FINISHED)
        return out

    def _settle(self, now: float) -> list[Send]:
        """Tell the ranks of windows that all of them have."""
        ranks = [rank for uid in self.epochs.uids() if (rank := self.seats.rank(uid)) is not None]
        if not ranks:
            return []
        lowest = min(rank.window for rank in ranks)
        if lowest <= self.settled:
            return []
        self.settled = lowest
        all_need_it = self.stop is not None or self._any_final()
        return [(rank.uid, Settled(window=lowest)) for rank in (ranks if all_need_it else ranks[:1])]

    def _maybe_done(self, now: float) -> list[Send]:
        """End the run once every present member has finished."""
        ranks = [rank for uid in self.epochs.uids() if (rank := self.seats.rank(uid)) is not None]
        if not ranks or not all(rank.finished for rank in ranks):
            return []
        if self.stop is not None:
            return self._stopped(now)
        if self.reason:
            return self._fail(self.reason, self.message)
        self.outcome, self.reason, self.message = Outcome.SUCCEEDED, Ended.COMPLETED, "all samples are committed"
        return self._dismiss_all(PodExit.DONE, Ended.COMPLETED, self.message, SeatState.FINISHED)

    def _stop(self, stop: Stop, now: float) -> list[Send]:
        self.stop = stop
        if self.epochs.current is None:
            return self._stopped(now)
        self.outcome = Outcome.STOPPING
        self.reason, self.message = stop.reason, stop.message
        waiting = self.seats.in_state(SeatState.JOINING, SeatState.READY)
        out = [send for seat in waiting for send in self._dismiss(seat, SeatState.FINISHED)]
        return out + [(uid, stop) for uid in self.epochs.uids()]

    def _stopped(self, now: float) -> list[Send]:
        """All have stopped: suspended, given up, or (when all members left) waiting for new ones."""
        stop = self.stop
        assert stop is not None
        if stop.reason == Ended.LEFT:
            out = self._dismiss_all(PodExit.LEFT, stop.reason, stop.message, SeatState.FINISHED)
            self.stop = None
            self._start_over(now)
            return out
        if self.hint is not None and self.hint.give_up:
            return self._fail(self.hint.give_up, stop.message)
        self.outcome, self.reason, self.message = Outcome.SUSPENDED, stop.reason, stop.message
        return self._dismiss_all(PodExit.LEFT, stop.reason, stop.message, SeatState.FINISHED)

    def _fail(self, reason: str, message: str) -> list[Send]:
        self.outcome, self.reason, self.message = Outcome.FAILED, reason, message
        return self._dismiss_all(PodExit.BELOW_MINIMUM, reason, message, SeatState.FINISHED)

    def _start_over(self, now: float) -> None:
        """Nobody is left; whoever comes next resumes from the newest checkpoint."""
        self.epochs.end()
        self.outcome = Outcome.RECOVERING
        self.first_dial = now
        self.settled = 0
        self.reduce_failed_at = None

    # --- deaths -----------------------------------------------------------------------------------------

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
            fenced = gate.refuse(Refusal.FENCED, f"member {seat.hello.member} was given up: {message}.")
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

    def _after_death(self, gone: list[str], now: float) -> list[Send]:
        survivors = [member for member in self.epochs.successors() if member.uid not in gone]
        stranded = [seat for seat in self.seats.in_state(SeatState.LEAVING) if not self._among(seat, survivors)]
        out = [send for seat in stranded for send in self._dismiss(seat, SeatState.FINISHED)]
        planned = self.epochs.planned
        if planned is not None and not planned.confirmed:
            out += self._cancel(planned)
        self.reduce_failed_at = None
        if not survivors:
            self._start_over(now)
            if self.stop is not None:
                return out + self._stopped(now)
            return out
        for seat in self.seats.in_state(SeatState.READY):
            if self._among(seat, survivors):
                seat.state = SeatState.ACTIVE
        if self.outcome is Outcome.TRAINING:
            self.outcome = Outcome.RECOVERING
        out += self._announce(self.epochs.begin(survivors, EpochCause.DEATH, gone))
        if self.stop is not None:
            out += [(member.uid, self.stop) for member in survivors]
        return out + self._settle(now) + self._maybe_done(now)

    def _reform(self, now: float) -> list[Send]:
        """A reduce failed and nobody is dead: the same members form a new group."""
        self.reduce_failed_at = None
        members = self.epochs.successors()
        return self._announce(self.epochs.begin(members, EpochCause.REFORM)) if members else []

    def _cancel(self, planned: Planned) -> list[Send]:
        number = planned.epoch.epoch
        self.epochs.planned = None
        told = [*(member.uid for member in planned.epoch.members), *planned.leavers]
        living = [uid for uid in told if (seat := self.seats.get(uid.rpartition("/")[0])) and seat.state not in GONE]
        return [*self.store.close(number), *((uid, EpochCancelled(epoch=number)) for uid in living)]

    # --- a restarted coordinator ------------------------------------------------------------------------

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
        return self._rebuild(now)

    def _rebuild(self, now: float) -> list[Send]:
        """Wait for the members of the newest epoch; those who do not come back are dead."""
        if self.rebuild_until is None:
            return []
        present = {uid for uid in self.epochs.uids() if (rank := self.seats.rank(uid)) is not None and rank.connected}
        missing = [uid for uid in self.epochs.uids() if uid not in present]
        if missing and now < self.rebuild_until:
            return []
        self.rebuild_until = None
        for uid in present:
            seat = self.seats.get(uid.rpartition("/")[0])
            if seat is not None and seat.state in (SeatState.READY, SeatState.JOINING):
                seat.state = SeatState.ACTIVE
        out = self._settle(now)
        if not missing:
            return out
        for seat in (seat for uid in missing if (seat := self.seats.get(uid.rpartition("/")[0])) is not None):
            seat.state, seat.reason, seat.message = SeatState.DEAD, Ended.HEARTBEAT_LOST, "it did not come back"
        self.progress.died(len(missing), now)
        return out + self._after_death(missing, now)

    # --- small helpers ----------------------------------------------------------------------------------

    def _announce(self, epoch: Epoch) -> list[Send]:
        closed = self._closed(epoch.epoch)
        self.store.open(epoch.epoch)
        return closed + [(member.uid, epoch) for member in epoch.members]

    def _closed(self, below: int) -> list[Send]:
        return list(self.store.close_below(below))

    def _settle_state(self, seat: Seat) -> list[Send]:
        if seat.state is SeatState.JOINING and seat.complete:
            seat.state = SeatState.ACTIVE if self._in_epoch(seat) else SeatState.READY
        return []

    def _refuse_seat(self, seat: Seat, refusal: Refuse) -> list[Send]:
        seat.state, seat.reason, seat.message = SeatState.REFUSED, refusal.reason, refusal.message
        return [(uid, refusal) for uid in [*(rank.uid for rank in seat.ranks.values()), seat.uid]] or [
            (seat.uid, refusal)
        ]

    def _dismiss(self, seat: Seat, state: SeatState) -> list[Send]:
        """Tell a member that it may go, without fault."""
        seat.state = state
        reason = seat.reason or Ended.LEFT
        done = Done(exit_code=PodExit.LEFT, reason=reason, message="its work is counted; it was asked to leave")
        return [(uid, done) for uid in [*(rank.uid for rank in seat.ranks.values()), seat.uid]]

    def _dismiss_all(self, code: PodExit, reason: str, message: str, state: SeatState) -> list[Send]:
        done = Done(exit_code=code, reason=reason, message=message)
        out: list[Send] = []
        for seat in list(self.seats.living()):
            seat.state = state
            out += [(uid, done) for uid in [*(rank.uid for rank in seat.ranks.values()), seat.uid]]
        return out

    def _silent(self, seat: Seat, now: float) -> bool:
        return any(not rank.finished and not self._heard(rank, now) for rank in seat.ranks.values())

    @staticmethod
    def _heard(rank: RankSeat, now: float) -> bool:
        return rank.connected and now - rank.last_heard <= HEARTBEAT_LIMIT_SECONDS

    def _formed(self, uid: str) -> int:
        rank = self.seats.rank(uid)
        return rank.formed if rank is not None else 0

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


def _in_order(seat: Seat) -> list[RankSeat]:
    return [seat.ranks[local] for local in sorted(seat.ranks)]


def _unknown_member(hello: RankHello) -> Refuse:
    return Refuse(
        reason=Refusal.BAD_REQUEST,
        message=f"rank {hello.local_rank} of {hello.member} dialled before its agent was admitted; it will try again.",
        permanent=False,
    )
