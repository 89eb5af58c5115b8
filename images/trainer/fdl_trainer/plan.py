"""How a reduced tail moves the replicated control state of a run.

Every rank holds an equal :class:`~fdl_trainer.agreed.Control` at a boundary. A window is planned by nobody: each rank
applies :func:`advance` to its own copy and to the tail that all of them received in the same reduce, and comes to the
same next leases. :func:`enter_epoch` does the same at a change of membership.

Order at a boundary: ``advance`` when the reduce of a window succeeded, then, if a new epoch is entered,
``enter_epoch``. After a death inside a window only ``enter_epoch`` runs: survivors keep their leases of the
uncommitted windows, and with them the batches that they have done, and repeat the reduce.

Where averaging overlaps with training (``PlanSpec.overlap``), two windows are open at once: the one in work, which may
be in the reduce already, and the one ahead. The tail of window w then plans w+2, since w+1 is being trained.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from fdl_api.run import Mode
from fdl_trainer import elche, guard, ledger
from fdl_trainer.agreed import FIRST_OVERSHOOT, Control
from fdl_trainer.elche import NOWHERE, ElcheKnobs, ElcheState, Policy, RankReport, Seating
from fdl_trainer.ledger import Ledger, Span
from fdl_trainer.tail import Flag, Tail

MAX_OVERSHOOT = 15
"""Batches of the slowest rank during a reduce in flight, at most."""


class OverlapKnobs(ElcheKnobs, Protocol):
    """What planning reads of :class:`fdl_api.run.ElcheSpec`."""

    @property
    def max_overshoot(self) -> int | None: ...
    @property
    def easgd_alpha(self) -> float | None: ...
    @property
    def average_state_every(self) -> int | None: ...


@dataclass(frozen=True)
class PlanSpec:
    """What planning needs of the run's configuration; the same on all ranks and in no state.

    Args:
        elche: the run's ElChe knobs.
        policy: when ranks average.
        overlap: training goes on while the average is made.
        max_overshoot: batches that a rank may train while an average is in flight; None: found by itself.
        alpha: share of the way to a new average that a rank goes; below 1 ranks stay apart (EASGD).
        deadlines: ranks whose batches take unequal time stop by time (:mod:`fdl_trainer.elche.deadline`).
        state_every: windows after which the optimizers' tensors are averaged; None: never.
    """

    elche: ElcheKnobs
    policy: Policy
    overlap: bool = False
    max_overshoot: int | None = None
    alpha: float = 1.0
    deadlines: bool = False
    state_every: int | None = None

    @classmethod
    def of(cls, mode: Mode, knobs: OverlapKnobs) -> "PlanSpec":
        """Spec of a run's mode and knobs."""
        return cls(
            elche=knobs,
            policy=Policy.SYNC if mode.is_sync else Policy.CADENCE,
            overlap=mode is Mode.CPU_ASYNC,
            max_overshoot=knobs.max_overshoot,
            alpha=knobs.easgd_alpha or 1.0,
            deadlines=not mode.is_sync,
            state_every=knobs.average_state_every,
        )


def create(books: Ledger, spec: PlanSpec) -> Control:
    """State of a run that has not begun and has no members yet; :func:`enter_epoch` brings them in."""
    return Control(0, 0, (), (), elche.create(spec.elche, spec.policy), books)


def advance(control: Control, tail: Tail, spec: PlanSpec) -> Control:
    """State after a window committed: speeds learnt, samples booked, the next leases given.

    A window of no batches changes nothing and is not counted: the same control comes back. Only where the next window
    is being trained already, it is counted, for the sake of that one.

    Args:
        control: state before the commit.
        tail: the reduced tail; its ranks are the members of the epoch in which the reduce ran, in order.
        spec: the run's configuration.

    Raises:
        ValueError: if the tail and the books contradict each other, which means that the ranks' states differ.
    """
    if tuple(rank.uid for rank in tail.ranks) != control.members:
        raise ValueError(f"the tail is of ranks {[rank.uid for rank in tail.ranks]}, the plan of {control.members}")
    if not any(rank.batches for rank in tail.ranks) and not control.planned_samples(ahead=True):
        return control
    _check_samples(control, tail)
    window = control.window + 1
    members = control.members
    leaving = tuple(rank.uid for rank in tail.ranks if rank.leaving or rank.uid in control.leaving)
    learnt = elche.observe(
        control.elche,
        [RankReport(rank.uid, rank.batches, rank.compute_ms, rank.wait_ms) for rank in tail.ranks],
        reduce_ms=tail.reduce_ms,
        fill_ms=_fill_ms(control.elche, tail),
        spec=spec.elche,
        policy=spec.policy,
        divergence=tail.divergence,
        lr=tail.lr,
        window=window,
        quarantined=[rank.uid for rank in tail.ranks if Flag.NONFINITE in rank.flags],
    )
    books = ledger.commit(
        control.ledger,
        {rank.uid: rank.batches for rank in tail.ranks},
        spoiled={rank.uid for rank in tail.ranks if Flag.NONFINITE in rank.flags},
        skipped=sum(rank.skipped for rank in tail.ranks),
    )
    planned = elche.assign(
        learnt,
        members,
        spec=spec.elche,
        policy=spec.policy,
        epoch_batches=books.batches_per_epoch,
        leaving=leaving,
        deadlines=spec.deadlines,
    )
    quotas = elche.quotas(planned, members, spec.policy)
    return Control(
        window=window,
        samples=control.samples + tail.samples,
        members=members,
        leaving=leaving,
        elche=planned,
        ledger=_next_leases(ledger.release(books, leaving), quotas, spec),
        checkpoint_window=window if takes_checkpoint(learnt, window, tail) else control.checkpoint_window,
        overshoot=_next_overshoot(control, planned),
        draining=spec.overlap and tail.stop and not control.draining,
        slots=tail.slots,
    )


def averaged_slots(control: Control, spec: PlanSpec) -> int:
    """The tensors of the optimizers that are averaged in the window in work; 0: none."""
    due = spec.state_every is not None and (control.window + 1) % spec.state_every == 0
    return control.slots if due else 0


def takes_checkpoint(learnt: ElcheState, window: int, tail: Tail) -> bool:
    """Whether a checkpoint follows the commit of a window: when asked for, or when due and the copies are not apart."""
    return tail.save or (tail.checkpoint and not guard.is_apart(learnt.guard, window))


def enter_epoch(control: Control, members: Sequence[str], spec: PlanSpec, seating: Seating = NOWHERE) -> Control:
    """State of the ranks of a new epoch before they go on with the window in work.

    Leases of those that are gone become holes. Survivors keep theirs. A member without a lease gets one: survivors
    their planned quota (they may have been left without data that is free now), then joiners two batches. But for what
    was lost with a rank (:class:`fdl_trainer.ledger.Span`), the result does not depend on epochs between that some
    survivors never entered.

    With overlap a survivor that holds a lease ahead, and may have begun it, gets none for the window before it.

    Args:
        control: state at the last commit, or after an earlier ``enter_epoch`` of the same window.
        members: UIDs of the new epoch's ranks, in order.
        spec: the run's configuration.
        seating: what the epoch's message says of them.

    Raises:
        ValueError: if a UID appears twice.
    """
    if len(set(members)) != len(members):
        raise ValueError(f"the epoch names a rank twice: {list(members)}")
    holders = {given.uid for given in (*control.ledger.leases, *control.ledger.ahead)}
    books = ledger.drop(control.ledger, holders - set(members))
    survivors = [uid for uid in members if uid in control.elche.ranks]
    joiners = [uid for uid in members if uid not in control.elche.ranks]
    known = elche.believe(elche.keep(control.elche, survivors), members, seating, spec.elche, spec.policy)
    if not survivors:  # all start from a checkpoint
        known = replace(known, guard=guard.together(known.guard))
    leaving = tuple(uid for uid in control.leaving if uid in members)
    working = [uid for uid in survivors if uid not in leaving]
    idle = [uid for uid in working if not (ledger.leased(books, uid) or ledger.leased(books, uid, ahead=True))]
    books = ledger.lease(_without_empty(books), elche.quotas(known, idle, spec.policy))
    newcomers = elche.first_quotas(known, joiners, members, spec.policy)
    books = ledger.lease(_without_empty(books), newcomers)
    if spec.overlap:
        further = [uid for uid in working if not ledger.leased(books, uid, ahead=True)]
        quotas = {**elche.quotas(known, further, spec.policy), **newcomers}
        books = ledger.lease(_without_empty(books), quotas, ahead=True)
    return replace(
        control,
        members=tuple(members),
        leaving=leaving,
        elche=elche.admit(known, newcomers),
        ledger=_without_empty(books),
        draining=control.draining and bool(survivors),  # who starts from a checkpoint has nothing begun
    )


def overshoot(control: Control, uid: str, spec: PlanSpec) -> int:
    """Batches that a rank may train while an average is in flight: so old may be what it trains from, at most.

    The run's figure is of the slowest rank; faster ones may do as many as fit into the same time.
    """
    if not spec.overlap:
        return 0
    if spec.max_overshoot is not None:
        return spec.max_overshoot
    quotas = [speed.quota for speed in control.elche.ranks.values() if speed.quota]
    own = control.elche.ranks[uid].quota if uid in control.elche.ranks else 0
    return -(-control.overshoot * max(own, 1) // min(quotas, default=1))


def deadline_ms(control: Control, uid: str, lease: int, spec: PlanSpec) -> float:
    """Length of the window at which a rank stops, in milliseconds; 0 for a rank that stops by count alone.

    With overlap the lease of the window that is trained is of an older plan, which did not know yet how slow the rank
    may have become. At the end of the data a lease is longer than the quota for another reason: it takes in what is
    left.

    Args:
        control: the newest state.
        uid: the rank.
        lease: batches that it was given for the window that it trains.
        spec: the run's configuration.
    """
    if not spec.deadlines:
        return 0.0
    counts = spec.overlap and ledger.free(control.ledger) > 0
    return elche.deadline_ms(control.elche, uid, lease if counts else 0)


def upcoming(control: Control, uid: str, spec: PlanSpec) -> list[Span]:
    """The micro-batches that a rank will most likely train after those of the window in work, for a loader's sake.

    With overlap it is its lease ahead. Otherwise nothing is leased further than the window in work, so that a change of
    speed counts at once; then it is what the rank gets if all do their leases and the quotas stay.
    """
    if spec.overlap:
        return control.batches(uid, ahead=True)
    done = {given.uid: ledger.quota(control.ledger, given.uid) for given in control.ledger.leases}
    quotas = elche.quotas(control.elche, control.members, spec.policy)
    return ledger.batches(ledger.lease(ledger.commit(control.ledger, done), quotas), uid)


def _next_leases(books: Ledger, quotas: Mapping[str, int], spec: PlanSpec) -> Ledger:
    """Leases after a commit: of the window in work, or with overlap of the one after it."""
    if not spec.overlap:
        return ledger.lease(books, quotas)
    books = _without_empty(books)
    if not books.leases:  # there was nothing left to lease ahead, and something has come back since
        books = ledger.lease(books, quotas)
    return _without_empty(ledger.lease(books, quotas, ahead=True))


def _next_overshoot(control: Control, planned: ElcheState) -> int:
    """One batch more after each window that the guard found stable; from the start again after a nudge."""
    if planned.anchor < control.elche.anchor:
        return FIRST_OVERSHOOT
    return min(MAX_OVERSHOOT, control.overshoot + (planned.stable_run > 0))


def _without_empty(books: Ledger) -> Ledger:
    """Books without leases of nothing, so that their holders can be given one."""
    leases = tuple(given for given in books.leases if given.spans)
    return replace(books, leases=leases, ahead=tuple(given for given in books.ahead if given.spans))


def _fill_ms(state: ElcheState, tail: Tail) -> float:
    """The anchor rank's loader fill, 0 while there is none."""
    fill = next((rank.fill_ms for rank in tail.ranks if rank.uid == state.anchor_rank), 0.0)
    return fill if math.isfinite(fill) else 0.0


def _check_samples(control: Control, tail: Tail) -> None:
    """Refuse a tail whose batches and samples do not fit the leases that this rank knows of."""
    for rank in tail.ranks:
        lease = control.quota(rank.uid)
        booked = ledger.samples(control.ledger, rank.uid, rank.batches)
        reported = rank.samples + rank.skipped
        if lease < rank.batches or booked != reported:
            raise ValueError(
                f"rank {rank.uid} reports {rank.batches} batches with {reported} samples in window "
                f"{control.window + 1}, but by the books here they are {min(lease, rank.batches)} with {booked}"
            )
