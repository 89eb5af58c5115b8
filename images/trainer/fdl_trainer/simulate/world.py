"""The ranks in virtual time.

Each window is played rank by rank: the batches of its lease, with noise, from the moment at which it could begin; then
all are averaged when the last one has arrived, and :func:`fdl_trainer.plan.advance` plans the next window from the
same tail that real ranks would have reduced. Changes of membership go through :func:`fdl_trainer.plan.enter_epoch`.

The blocking modes begin a window together, after the averaging. In ``cpu-async`` a rank goes on with its next window
while the averaging is made, as far as its overshoot allows; what the averaging takes from the processor is left out.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from fdl_trainer import elche, ledger, plan
from fdl_trainer.agreed import Control
from fdl_trainer.plan import PlanSpec
from fdl_trainer.simulate.account import SHOWN, Account, Spent, WindowRow
from fdl_trainer.simulate.scenario import Event, Kind, Scenario
from fdl_trainer.tail import NO_FLAGS, Flag, RankTail, Tail

ENDLESS = 1 << 50
"""Batches in a data epoch that never binds."""


@dataclass
class Rank:
    """One rank.

    Args:
        number: its place in the order of the rates, joiners after them.
        ms: its mean milliseconds a batch now.
        first_ms: the same at the start.
        free_at: virtual time at which it can begin its next window.
        reduce_ms: what the last averaging cost it, waiting for others included.
    """

    number: int
    ms: float
    first_ms: float
    free_at: float = 0.0
    reduce_ms: float = 0.0

    @property
    def uid(self) -> str:
        """Its UID in the plan."""
        return f"r{self.number}"

    @property
    def rate(self) -> float:
        """Its own rate in batches a millisecond."""
        return 1.0 / self.ms


@dataclass(frozen=True)
class Work:
    """What a rank did in a window: batches, where the milliseconds went, and when it was ready for the averaging.

    ``rate`` is its own rate in this window, batches a millisecond.
    """

    batches: int
    compute_ms: float
    data_ms: float
    held_ms: float
    stall_ms: float
    ended_at: float
    rate: float


@dataclass
class World:
    """A cohort that is played window after window.

    Args:
        scenario: what is played.
        spec: the configuration of the run.
        control: the replicated state; made from the scenario.
        ranks: members by UID, in order.
        account: the books.
    """

    scenario: Scenario
    spec: PlanSpec
    control: Control = field(init=False)
    ranks: dict[str, Rank] = field(init=False)
    account: Account = field(default_factory=Account)
    now: float = 0.0
    _numbers: int = 0
    _done: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        scenario = self.scenario
        epoch_batches = scenario.epoch_batches or ENDLESS
        epochs = 1 if scenario.epoch_batches is None else ENDLESS
        books = ledger.create(epoch_batches * scenario.batch_size, scenario.batch_size, epochs, scenario.seed)
        self._noise = np.random.default_rng(scenario.seed)
        self.ranks = {}
        for ms in scenario.ms:
            self._add(ms)
        self.control = plan.enter_epoch(plan.create(books, self.spec), tuple(self.ranks), self.spec)

    def run(self) -> Account:
        """Play all windows, or until nobody is left."""
        while self.ranks and self.control.window < self.scenario.windows:
            self.window()
        return self.account

    def window(self) -> None:
        """Play one window up to its commit, and the changes of membership that follow it."""
        events = self._due()
        notes = [f"{event.kind}{f' {event.rank}' if event.rank >= 0 else ''}" for event in events]
        self._change_speeds(events)
        start = self.now
        members = list(self.ranks.values())
        dying = self._named(events, Kind.DEATH)
        leaving = self._named(events, Kind.LEAVE) - dying
        work = {rank.uid: self._train(rank, events) for rank in members}
        survivors = [rank for rank in members if rank.uid not in dying]
        if not survivors:
            self.ranks = {}
            return
        change_ms = 0.0
        if dying:
            change_ms = self._bury([rank for rank in members if rank.uid in dying], work)
        arrived = max(work[rank.uid].ended_at for rank in survivors) + change_ms
        cost_ms = self.scenario.reduce_ms + self.scenario.reduce_ms_per_rank * len(survivors)
        self.now = arrived + cost_ms
        reduced = self._tail(survivors, work, leaving)
        for rank in survivors:
            self._book(rank, work[rank.uid], arrived - change_ms, change_ms, cost_ms)
        anchor, journal = self.control.elche.anchor, self.control.elche.guard.journal
        self.control = plan.advance(self.control, reduced, self.spec)
        after = self.control.elche.guard.journal
        if after != journal:
            notes += [f"{record.guard}: {record.action}" for record in after.of(self.control.window)]
        pause_ms = self._switch(leaving, [event.value for event in events if event.kind is Kind.JOIN])
        if pause_ms:
            self.now += pause_ms
            for rank in survivors:
                self.account.spend(Spent.CHANGE, rank.rate, pause_ms)
                rank.free_at += pause_ms
        power = sum(work[rank.uid].rate for rank in survivors) * (self.now - start)
        power += sum(work[uid].rate * (work[uid].ended_at - start) for uid in dying)
        self.account.rows.append(
            WindowRow(
                window=self.control.window,
                ended_ms=self.now,
                wall_ms=self.now - start,
                ranks=len(survivors),
                anchor=anchor,
                batches=sum(rank.batches for rank in reduced.ranks),
                power=power,
                quotas={rank.number: work[rank.uid].batches for rank in survivors[:SHOWN]},
                notes=tuple(notes),
            )
        )

    # --- one rank's window ------------------------------------------------------------------------------

    def _train(self, rank: Rank, events: list[Event]) -> Work:
        """Play a rank's batches."""
        scenario, control = self.scenario, self.control
        lease = control.quota(rank.uid)
        start = rank.free_at
        if lease == 0:
            return Work(0, 0.0, 0.0, 0.0, 0.0, max(start, self.now), rank.rate)
        mean_ms = rank.ms * float(self._lognormal(scenario.window_jitter, 1)[0])
        times = mean_ms * self._lognormal(scenario.jitter, lease)
        stall_ms = sum(
            event.value * 1000.0 for event in events if event.kind is Kind.STALL and event.rank == rank.number
        )
        done = self._stopping_point(rank, times, lease, stall_ms)
        compute_ms = float(times[:done].sum())
        data_ms = scenario.fill_ms + scenario.wait_ms * done
        held_ms = 0.0
        if self.spec.overlap:
            ahead = min(done, plan.overshoot(control, rank.uid, self.spec))
            began = start + scenario.fill_ms + scenario.wait_ms * ahead + float(times[:ahead].sum())
            held_ms = max(0.0, self.now - began)
        ended_at = start + stall_ms + compute_ms + data_ms + held_ms
        return Work(done, compute_ms, data_ms, held_ms, stall_ms, ended_at, 1.0 / mean_ms)

    def _lognormal(self, cv: float, count: int) -> "np.ndarray[tuple[int], np.dtype[np.float64]]":
        """Numbers around a mean of one with a coefficient of variation."""
        if cv <= 0.0:
            return np.ones(count)
        variance = np.log1p(cv * cv)
        return self._noise.lognormal(-variance / 2.0, np.sqrt(variance), count)

    def _stopping_point(
        self, rank: Rank, times: "np.ndarray[tuple[int], np.dtype[np.float64]]", lease: int, stall_ms: float
    ) -> int:
        """Batches that the rank does: all of its lease, or fewer where it stops by time."""
        deadline = plan.deadline_ms(self.control, rank.uid, lease, self.spec)
        if deadline <= 0.0:
            return lease
        usual = self.control.elche.ms_per_batch(rank.uid)
        elapsed, done = stall_ms + self.scenario.fill_ms, 0
        while not elche.should_stop(elapsed, usual, deadline, done, lease):
            elapsed += self.scenario.wait_ms + float(times[done])
            done += 1
        return done

    # --- the averaging ----------------------------------------------------------------------------------

    def _tail(self, ranks: list[Rank], work: dict[str, Work], leaving: set[str]) -> Tail:
        """The tail that these ranks reduce; figures are rounded to fp32, as on the wire."""
        steps = max(work[rank.uid].batches for rank in ranks)
        divergence = self.scenario.divergence * float(np.sqrt(steps))
        return Tail(tuple(self._slots(rank, work[rank.uid], divergence, rank.uid in leaving) for rank in ranks))

    def _slots(self, rank: Rank, did: Work, divergence: float, leaves: bool) -> RankTail:
        first_wait = self.scenario.fill_ms + self.scenario.wait_ms if did.batches else 0.0
        return RankTail(
            rank.uid,
            batches=did.batches,
            samples=ledger.samples(self.control.ledger, rank.uid, did.batches),
            compute_ms=_fp32(did.compute_ms + did.stall_ms),
            wait_ms=_fp32(max(0.0, did.data_ms - first_wait)),
            fill_ms=_fp32(self.scenario.fill_ms if did.batches else 0.0),
            reduce_ms=_fp32(rank.reduce_ms),
            divergence=_fp32(divergence),
            flags=Flag.LEAVING if leaves else NO_FLAGS,
        )

    def _book(self, rank: Rank, did: Work, arrived: float, change_ms: float, cost_ms: float) -> None:
        """Book a survivor's window, and set when it can go on."""
        # With overlap the averaging costs what training stood still for it.
        rank.reduce_ms = did.held_ms if self.spec.overlap else arrived - did.ended_at + cost_ms
        spent = {
            Spent.COMPUTE: did.compute_ms,
            Spent.DATA: did.data_ms,
            Spent.STALL: did.stall_ms,
            Spent.CHANGE: change_ms,
        }
        if self.spec.overlap:
            rank.free_at = did.ended_at + change_ms
            spent[Spent.WAIT] = did.held_ms
        else:
            rank.free_at = self.now
            spent[Spent.WAIT] = arrived - did.ended_at
            spent[Spent.REDUCE] = cost_ms
        for what, ms in spent.items():
            self.account.spend(what, rank.rate, ms)

    # --- membership and speeds --------------------------------------------------------------------------

    def _bury(self, dead: list[Rank], work: dict[str, Work]) -> float:
        """The dead stop half-way through their window; the survivors form a new group. Returns their pause, in ms."""
        for rank in dead:
            did = work[rank.uid]
            half = (did.compute_ms + did.data_ms + did.held_ms + did.stall_ms) / 2.0
            work[rank.uid] = replace(did, ended_at=rank.free_at + half)
            self.account.spend(Spent.LOST, rank.rate, half)
            del self.ranks[rank.uid]
        self.control = plan.enter_epoch(self.control, tuple(self.ranks), self.spec)
        return self.scenario.detect_ms + self.scenario.reform_ms

    def _switch(self, leaving: set[str], joining: list[float]) -> float:
        """Let members go and come at the boundary. Returns the cohort's pause, in ms."""
        if not leaving and not joining:
            return 0.0
        for uid in leaving:
            del self.ranks[uid]
        slowest = max(self.scenario.ms)
        for rate in joining:
            self._add(slowest / rate)
        if self.ranks:
            self.control = plan.enter_epoch(self.control, tuple(self.ranks), self.spec)
        return self.scenario.reform_ms

    def _add(self, ms: float) -> None:
        rank = Rank(self._numbers, ms, ms, free_at=self.now + (self.scenario.reform_ms if self.now else 0.0))
        self.ranks[rank.uid] = rank
        self._numbers += 1

    def _due(self) -> list[Event]:
        """Events of the window that begins now, each once."""
        window = self.control.window + 1
        due = []
        for place, event in enumerate(self.scenario.events):
            reached = event.window == window if event.window else event.second * 1000.0 <= self.now
            if reached and place not in self._done:
                self._done.add(place)
                due.append(event)
        return due

    def _named(self, events: list[Event], kind: Kind) -> set[str]:
        """UIDs of the members that events of a kind name."""
        return {f"r{event.rank}" for event in events if event.kind is kind} & set(self.ranks)

    def _change_speeds(self, events: list[Event]) -> None:
        for event in events:
            if event.kind is Kind.SWAP:
                speeds = [rank.ms for rank in self.ranks.values()]
                for rank, ms in zip(self.ranks.values(), reversed(speeds), strict=True):
                    rank.ms = ms
            elif event.kind is Kind.SPEED and (slowed := self.ranks.get(f"r{event.rank}")) is not None:
                slowed.ms = slowed.first_ms / event.value


def _fp32(value: float) -> float:
    return float(np.float32(value))
