"""The replicated control state of a run, and how a reduced tail moves it.

Every rank holds an equal :class:`Control` at a boundary. A window is planned by nobody: each rank applies
:func:`advance` to its own copy and to the tail that all of them received in the same reduce, and comes to the same
next leases. :func:`enter_epoch` does the same at a change of membership.

Order at a boundary: ``advance`` when the reduce of a window succeeded, then, if a new epoch is entered,
``enter_epoch``. After a death inside a window only ``enter_epoch`` runs: survivors keep their leases of the
uncommitted window, and with them the batches that they have done, and repeat its reduce.
"""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fdl_api.run import Mode
from fdl_trainer import elche, ledger
from fdl_trainer.elche import ElcheKnobs, ElcheState, Policy, RankReport
from fdl_trainer.ledger import Ledger, Span
from fdl_trainer.tail import Tail

FORMAT = 1
"""Version of the control state's JSON."""
DIGEST_BITS = 24
"""Bits of the plan's digest: an integer that fp32 carries exactly."""


@dataclass(frozen=True)
class PlanSpec:
    """What planning needs of the run's configuration; the same on all ranks and in no state.

    Args:
        elche: the run's ElChe knobs.
        policy: when ranks average.
    """

    elche: ElcheKnobs
    policy: Policy

    @classmethod
    def of(cls, mode: Mode, knobs: ElcheKnobs) -> "PlanSpec":
        """Spec of a run's mode and knobs."""
        return cls(knobs, Policy.SYNC if mode.is_sync else Policy.CADENCE)


@dataclass(frozen=True)
class Control:
    """What all ranks agree on at a boundary.

    Args:
        window: last committed window of the run; 0 before the first.
        samples: samples committed since the start of the run; drives learning-rate schedules.
        members: UIDs of the ranks of the present epoch, in order.
        leaving: members that asked to go and get no lease any more.
        elche: speeds and the anchor.
        ledger: the books of the data, with the leases of the window in work (``window + 1``).
        checkpoint_window: newest window at which a checkpoint was decided on; 0 when none was.
    """

    window: int
    samples: int
    members: tuple[str, ...]
    leaving: tuple[str, ...]
    elche: ElcheState
    ledger: Ledger
    checkpoint_window: int = 0

    @property
    def finished(self) -> bool:
        """Whether every sample of every pass is committed: the last commit was the final one."""
        return ledger.finished(self.ledger)

    @property
    def data_epoch(self) -> int:
        """Oldest pass over the data in work, from 0."""
        return ledger.data_epoch(self.ledger)

    def quota(self, uid: str) -> int:
        """Micro-batches that a rank has to train in the window in work; 0 if it is to contribute zeros."""
        return ledger.quota(self.ledger, uid)

    def batches(self, uid: str) -> list[Span]:
        """Those micro-batches, in order."""
        return ledger.batches(self.ledger, uid)

    def planned_samples(self) -> int:
        """Samples of all leases of the window in work: what it commits if everybody does its quota."""
        return sum(span.size for given in self.ledger.leases for span in given.spans)


def create(books: Ledger, spec: PlanSpec) -> Control:
    """State of a run that has not begun and has no members yet; :func:`enter_epoch` brings them in."""
    return Control(0, 0, (), (), elche.create(spec.elche, spec.policy), books)


def advance(control: Control, tail: Tail, spec: PlanSpec) -> Control:
    """State after a window committed: speeds learnt, samples booked, the next leases given.

    A window of no samples changes nothing and is not counted: the same control comes back.

    Args:
        control: state before the commit.
        tail: the reduced tail; its ranks are the members of the epoch in which the reduce ran, in order.
        spec: the run's configuration.

    Raises:
        ValueError: if the tail and the books contradict each other, which means that the ranks' states differ.
    """
    if tuple(rank.uid for rank in tail.ranks) != control.members:
        raise ValueError(f"the tail is of ranks {[rank.uid for rank in tail.ranks]}, the plan of {control.members}")
    samples = sum(rank.samples for rank in tail.ranks)
    if samples == 0:
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
    )
    books = ledger.commit(control.ledger, {rank.uid: rank.batches for rank in tail.ranks})
    planned = elche.assign(
        learnt,
        members,
        spec=spec.elche,
        policy=spec.policy,
        epoch_batches=books.batches_per_epoch,
        leaving=leaving,
    )
    quotas = elche.quotas(planned, members, spec.policy)
    return Control(
        window=window,
        samples=control.samples + samples,
        members=members,
        leaving=leaving,
        elche=planned,
        ledger=ledger.lease(books, quotas),
        checkpoint_window=window if tail.checkpoint or tail.save else control.checkpoint_window,
    )


def enter_epoch(control: Control, members: Sequence[str], spec: PlanSpec) -> Control:
    """State of the ranks of a new epoch before they go on with the window in work.

    Leases of those that are gone become holes. Survivors keep theirs. A member without a lease gets one: survivors
    their planned quota (they may have been left without data that is free now), then joiners two batches. The
    result does not depend on epochs between that some survivors never entered.

    Args:
        control: state at the last commit, or after an earlier ``enter_epoch`` of the same window.
        members: UIDs of the new epoch's ranks, in order.
        spec: the run's configuration.

    Raises:
        ValueError: if a UID appears twice.
    """
    if len(set(members)) != len(members):
        raise ValueError(f"the epoch names a rank twice: {list(members)}")
    books = ledger.drop(control.ledger, {given.uid for given in control.ledger.leases} - set(members))
    survivors = [uid for uid in members if uid in control.elche.ranks]
    joiners = [uid for uid in members if uid not in control.elche.ranks]
    known = elche.keep(control.elche, survivors)
    leaving = tuple(uid for uid in control.leaving if uid in members)
    idle = [uid for uid in survivors if not ledger.leased(books, uid) and uid not in leaving]
    planned = elche.quotas(known, idle, spec.policy)
    books = ledger.lease(_without_empty(books), planned)
    newcomers = {uid: elche.first_quota(known, spec.policy) for uid in joiners}
    books = ledger.lease(_without_empty(books), newcomers)
    return replace(
        control,
        members=tuple(members),
        leaving=leaving,
        elche=elche.admit(known, newcomers),
        ledger=_without_empty(books),
    )


def digest(control: Control) -> int:
    """The first 24 bits of SHA-256 over the state's canonical JSON: equal states, equal digests."""
    text = json.dumps(to_json(control), sort_keys=True, separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> (32 - DIGEST_BITS)


def to_json(control: Control) -> dict[str, Any]:
    """The state as JSON data; :func:`from_json` gives back an equal state, bit for bit."""
    return {
        "format": FORMAT,
        "window": control.window,
        "samples": control.samples,
        "members": list(control.members),
        "leaving": list(control.leaving),
        "elche": elche.to_json(control.elche),
        "ledger": ledger.to_json(control.ledger),
        "checkpointWindow": control.checkpoint_window,
    }


def from_json(data: Mapping[str, Any]) -> Control:
    """Inverse of :func:`to_json`.

    Raises:
        ValueError: if the data is of another format.
        KeyError: if a field is missing.
    """
    if data.get("format") != FORMAT:
        raise ValueError(f"the control state has format {data.get('format')}; this release reads format {FORMAT}")
    return Control(
        window=data["window"],
        samples=data["samples"],
        members=tuple(data["members"]),
        leaving=tuple(data["leaving"]),
        elche=elche.from_json(data["elche"]),
        ledger=ledger.from_json(data["ledger"]),
        checkpoint_window=data["checkpointWindow"],
    )


def _without_empty(books: Ledger) -> Ledger:
    """Books without leases of nothing, so that their holders can be given one."""
    return replace(books, leases=tuple(given for given in books.leases if given.spans))


def _fill_ms(state: ElcheState, tail: Tail) -> float:
    """The anchor rank's loader fill, 0 while there is none."""
    fill = next((rank.fill_ms for rank in tail.ranks if rank.uid == state.anchor_rank), 0.0)
    return fill if math.isfinite(fill) else 0.0


def _check_samples(control: Control, tail: Tail) -> None:
    """Refuse a tail whose batches and samples do not fit the leases that this rank knows of."""
    for rank in tail.ranks:
        done = control.batches(rank.uid)[: rank.batches]
        booked = sum(span.size for span in done)
        if len(done) < rank.batches or booked != rank.samples:
            raise ValueError(
                f"rank {rank.uid} reports {rank.batches} batches with {rank.samples} samples in window "
                f"{control.window + 1}, but by the books here they are {len(done)} with {booked}"
            )
