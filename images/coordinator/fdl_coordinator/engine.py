"""The coordinator's state machine: events in, messages out.

No I/O and no clock: the server calls one method an event with the time in seconds (any monotonic clock) and
sends what the method returned. docs/protocol.md says why each step is safe. The class is built in
layers, each a module: :mod:`runstate` (records and small steps), :mod:`ending`, :mod:`succession`,
:mod:`suspension`, :mod:`opening`, :mod:`hearing`, and here who comes and goes, the operator's word, and time.
"""

from dataclasses import replace

from fdl_api.reasons import Ended, Refusal
from fdl_api.termination import Cause
from fdl_api.wire import (
    HEARTBEAT_LIMIT_SECONDS,
    HEARTBEAT_SECONDS,
    Accept,
    AgentHello,
    Echo,
    Hint,
    Leave,
    Outcome,
    RankExited,
    RankHello,
    Refuse,
    Save,
    Stop,
    StoreGet,
    StoreSet,
    member_of,
)
from fdl_coordinator import gate
from fdl_coordinator.hearing import Hearing
from fdl_coordinator.opening import PLAN_LIMIT_SECONDS
from fdl_coordinator.rendezvous import Answer
from fdl_coordinator.runstate import ENDED, Send
from fdl_coordinator.seats import GONE, RankSeat, Seat, SeatState, seat_number

REFORM_SECONDS = HEARTBEAT_LIMIT_SECONDS + 0.5
"""Time in which a death may explain a failed reduce; after it the group is made anew."""
WITNESS_SECONDS = 3 * HEARTBEAT_SECONDS
"""Somebody must have been heard within this before another one's silence counts: all who stop at one moment had their
last heartbeats at different times, and the first of them is no more dead than the rest."""
ALL_SILENT_SECONDS = 60.0
"""Silence of everybody at once after which all are given up; before, the coordinator's own line may be cut."""
LATE_TICK_SECONDS = 0.5
"""A tick that comes later than this after the last one: the coordinator itself was frozen or starved meanwhile."""


class Engine(Hearing):
    """One run's membership, from the first dial to the last Done."""

    def agent_hello(self, hello: AgentHello, now: float) -> list[Send]:
        """A member's agent dials."""
        refusal = gate.check_agent(hello, self.config, self.seats)
        if refusal is None and self.outcome in ENDED:
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

    def rank_hello(self, hello: RankHello, now: float) -> list[Send]:
        """A rank dials; its member's agent has been admitted before."""
        uid = f"{hello.member_uid}/{hello.local_rank}"
        seat = self.seats.get(hello.member_uid)
        if seat is None:
            return [(uid, _unknown_member(hello))]
        refusal = gate.check_rank(hello, self.config, seat)
        if refusal is None and self.expected is not None:
            refusal = gate.check_signature(hello, self.expected)
        if refusal is None and hello.echo is not None and self._went_apart(hello.echo):
            refusal = gate.refuse(
                Refusal.FENCED,
                f"member {hello.member} went on with an earlier coordinator in epoch {hello.echo.epoch}, apart from "
                "the run: what it trained there does not count.",
            )
            seat.state, seat.reason, seat.message = SeatState.DEAD, Refusal.FENCED, refusal.message
        if refusal is not None:
            self.progress.refused(refusal)
            mismatch = refusal.reason in (Refusal.MODEL_MISMATCH, Refusal.DATASET_MISMATCH)
            return [(uid, refusal), *(self._refuse_seat(seat, refusal) if mismatch else [])]
        known = seat.ranks.get(hello.local_rank)
        number = seat_number(self.config.cohorts, seat.place, hello.local_rank)
        device = next((each for each in seat.hello.devices if each.index == hello.local_rank), None)
        rank = RankSeat(uid=uid, hello=hello, last_heard=now, progressed_at=now, number=number, device=device)
        if known is not None:
            rank = replace(known, hello=hello, last_heard=now, connected=True)  # to dial again is no progress
        held = hello.committed.window
        rank.window = max(rank.window, held if hello.echo is not None else min(held, self.progress.window))
        seat.ranks[hello.local_rank] = rank
        self.progress.passed_over(hello.checkpoint_error)
        out: list[Send] = [(uid, Accept(generation=self.generation))]
        out += self._settle_state(seat) + self._tell_suspended(seat)
        if hello.echo is not None:
            out += self._echo(hello, now)
        if self.stop is not None:
            out.append((uid, self.stop))
        return out + self._advance(now)

    def rank_lost(self, rank_uid: str, now: float) -> list[Send]:
        """A rank's connection closed."""
        rank = self.seats.rank(rank_uid)
        seat = self.seats.get(member_of(rank_uid))
        if rank is None or seat is None or not rank.connected or seat.state in GONE:
            return []
        rank.connected = False
        if seat.state is SeatState.SUSPENDED:
            return []  # nobody waits for it; when it dials again it hears that it was suspended
        if rank.finished:
            return self._maybe_done(now)
        if self.rebuild_until is not None:
            return []
        return self._lost([seat], Ended.CONNECTION_LOST, "its connection closed", now)

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

    def store_set(self, rank_uid: str, request: StoreSet) -> list[Answer]:
        """Rendezvous store: set."""
        return self.store.set(rank_uid, request)

    def store_get(self, rank_uid: str, request: StoreGet, now: float) -> list[Answer]:
        """Rendezvous store: get."""
        return self.store.get(rank_uid, request, now)

    def hinted(self, hint: Hint, now: float) -> list[Send]:
        """The operator says what it sees and wants."""
        self.hint = hint
        out: list[Send] = []
        lost = [seat for uid in hint.gone if (seat := self.seats.get(uid)) is not None and seat.state not in GONE]
        if lost:
            out += self._dead(lost, Ended.POD_DELETED, "its pod is gone", now)
        if self.stop is None and self.outcome not in ENDED:
            if hint.give_up:
                out += self._stop(Stop(save=True, reason=hint.give_up, message="the operator gave the run up"), now)
            elif hint.suspend:
                out += self._stop(
                    Stop(save=True, reason="SuspendedByUser", message="spec.runPolicy.suspend is true"), now
                )
        return out + self._advance(now)

    def tick(self, now: float) -> list[Send]:
        """Everything that happens because time passes. Called every CLOCK_TICK_SECONDS."""
        self._excuse(now)
        out: list[Send] = list(self.store.expire(now))
        if self.rebuild_until is not None:
            out += self._rebuild(now)
        silent = self._believed_dead(now)
        if silent and self.rebuild_until is None:
            why = f"no heartbeat for {HEARTBEAT_LIMIT_SECONDS:.0f} s (frozen, cut off, or its node is out of CPU time)"
            out += self._lost(silent, Ended.HEARTBEAT_LOST, why, now)
        planned = self.epochs.planned
        if planned is not None and not planned.confirmed and now - planned.made_at > PLAN_LIMIT_SECONDS:
            out += self._plan_expired(planned, now)
        failed_at, again_at = self.reduce_failed_at, self.group_failures.again_at
        if failed_at is not None and now - failed_at > REFORM_SECONDS and now >= again_at:
            out += self._reform(now)
        hangs = bool(self.stuck_pairs() or (self.slow_minutes() and self.unformed()))
        if self.outcome is Outcome.TRAINING and (hangs or self.group_failures.telling):
            self.outcome = Outcome.RECOVERING
        self._note_silence(now)
        out += self._suspend_stalled(now)
        self._welcome_back(now)
        return out + self._save_on_request() + self._advance(now)

    def _save_on_request(self) -> list[Send]:
        """Ask for one checkpoint for each new wish of the operator's, as soon as somebody trains."""
        wish = self.hint.save if self.hint is not None else ""
        if wish == self.save_asked or self.outcome is not Outcome.TRAINING:
            return []
        self.save_asked = wish
        return [(uid, Save()) for uid in self.epochs.uids()] if wish else []

    def _believed_dead(self, now: float) -> list[Seat]:
        """Members whose silence counts.

        When nobody at all is heard, those who train are spared for a while: the coordinator's own node may be cut off,
        or its only member stopped for a moment, and there is no survivor whom a verdict would help.
        """
        living = list(self.seats.living())
        silent = [seat for seat in living if seat.state is not SeatState.SUSPENDED and self._silent(seat, now)]
        ranks = [rank for seat in living for rank in seat.ranks.values() if rank.connected]
        if not silent or any(now - rank.last_heard <= WITNESS_SECONDS for rank in ranks):
            return silent
        if ranks and now - max(rank.last_heard for rank in ranks) > ALL_SILENT_SECONDS:
            return silent
        return [seat for seat in silent if not self._in_epoch(seat)]

    def _excuse(self, now: float) -> None:
        """Count no time in which the coordinator could not listen: what was said then is still to be read."""
        away = now - self.ticked_at if self.ticked_at is not None else 0.0
        self.ticked_at = now
        if away <= LATE_TICK_SECONDS:
            return
        for seat in self.seats.living():
            for rank in seat.ranks.values():
                rank.last_heard = min(now, rank.last_heard + away)
                rank.progressed_at = min(now, rank.progressed_at + away)
        if self.epochs.planned is not None:
            self.epochs.planned.made_at += away
        if self.reduce_failed_at is not None:
            self.reduce_failed_at = min(now, self.reduce_failed_at + away)
        if self.rebuild_until is not None:
            self.rebuild_until += away

    def _went_apart(self, echo: Echo) -> bool:
        """Whether a rank comes from a part of the cohort that a replaced coordinator led on, while it was cut off."""
        return self.rebuild_until is None and self.epochs.is_foreign(echo.epoch)

    def _settle_state(self, seat: Seat) -> list[Send]:
        if seat.state is SeatState.JOINING and seat.complete:
            seat.state = SeatState.ACTIVE if self._in_epoch(seat) else SeatState.READY
        return []


def _unknown_member(hello: RankHello) -> Refuse:
    return Refuse(
        reason=Refusal.BAD_REQUEST,
        message=f"rank {hello.local_rank} of {hello.member} dialled before its agent was admitted; it will try again.",
        permanent=False,
    )
