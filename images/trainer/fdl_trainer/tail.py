"""The tail behind the parameters in the averaging buffer: what the ranks tell each other in a reduce.

Each rank fills its own slots and leaves those of the others zero, so that the SUM hands everybody's figures to
everybody exactly. Slots are fp32: counters stay below 2^24, and a figure that is not finite spoils only its owner's
slot.
"""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntFlag

MAX_COUNTER = 1 << 24
"""Counters are below this, so that fp32 carries them exactly."""


class Flag(IntFlag):
    """Wishes of a rank, valid for all at the boundary at which the tail is reduced."""

    LEAVING = 1
    """The rank was asked to go: no lease after this window."""
    STOP = 2
    """Stop the run at this boundary."""
    CHECKPOINT = 4
    """A checkpoint is due by the interval."""
    SAVE = 8
    """A checkpoint is wanted now (before a stop, or on request)."""
    NONFINITE = 16
    """The rank's model is not finite: it contributes nothing to this window."""
    NO_LOSS = 32
    """No wish: the rank's script has reported no loss, or one that is not finite, so that its sum is none."""


NO_FLAGS = Flag(0)


@dataclass(frozen=True)
class RankTail:
    """One rank's slots.

    Args:
        uid: the rank; not in the slots, known from the order.
        batches: micro-batches contributed, below 2^24.
        samples: samples in them that count: the rank's weight, below 2^24.
        skipped: samples in them that do not count, as those of a step that was left out, below 2^24.
        compute_ms: milliseconds of training without waiting for data.
        wait_ms: milliseconds of waiting for data, the first batch left out.
        fill_ms: excess of the first batch over the steady rate, milliseconds.
        reduce_ms: how long the rank was inside the previous reduce, milliseconds; 0 when it was in none.
        loss_sum: sum over samples of the loss; 0 with :attr:`Flag.NO_LOSS`.
        divergence: relative distance to the average at the previous commit; 0 when not measured.
        formed_epoch: newest epoch that the rank has formed (a leaver: heard of).
        flags: :class:`Flag` bits.
        digest: the digest of the rank's plan, 24 bits.
        lr: largest learning rate of the rank's optimizer; 0 when not known.
        slots: the tensors of its optimizer that the rank could average (:mod:`fdl_trainer.averaging.slots`), 24 bits.
    """

    uid: str
    batches: int = 0
    samples: int = 0
    skipped: int = 0
    compute_ms: float = 0.0
    wait_ms: float = 0.0
    fill_ms: float = 0.0
    reduce_ms: float = 0.0
    loss_sum: float = 0.0
    divergence: float = 0.0
    formed_epoch: int = 0
    flags: Flag = NO_FLAGS
    digest: int = 0
    lr: float = 0.0
    slots: int = 0

    @property
    def leaving(self) -> bool:
        """Whether the rank trains nothing after this window."""
        return Flag.LEAVING in self.flags

    def not_finite(self) -> "RankTail":
        """The same where the rank's model is not finite: its batches count for nothing, and it says so."""
        return replace(self, batches=0, samples=0, skipped=0, loss_sum=0.0, slots=0, flags=self.flags | Flag.NONFINITE)


TAIL_SLOTS = 14
"""Floats a rank."""


@dataclass(frozen=True)
class Tail:
    """The reduced tail: one entry a rank, in the order of the epoch."""

    ranks: tuple[RankTail, ...]

    @property
    def samples(self) -> int:
        """Total weight of the window."""
        return sum(rank.samples for rank in self.ranks)

    @property
    def loss(self) -> float | None:
        """Mean loss a sample over the ranks that trained and know theirs; None when nobody does or it is not finite."""
        known = [rank for rank in self.ranks if rank.samples and Flag.NO_LOSS not in rank.flags]
        total = sum(rank.loss_sum for rank in known)
        return total / sum(rank.samples for rank in known) if known and math.isfinite(total) else None

    @property
    def formed_epoch(self) -> int:
        """Newest epoch that all ranks have formed."""
        return min(rank.formed_epoch for rank in self.ranks)

    @property
    def reduce_ms(self) -> float:
        """Cost of the previous reduce without waiting for the late: the least time that any rank was inside."""
        times = [rank.reduce_ms for rank in self.ranks if rank.reduce_ms > 0.0 and math.isfinite(rank.reduce_ms)]
        return min(times, default=0.0)

    @property
    def divergence(self) -> float:
        """The guard's D: the largest distance that any rank measured."""
        return max((rank.divergence for rank in self.ranks if math.isfinite(rank.divergence)), default=0.0)

    @property
    def lr(self) -> float:
        """The largest learning rate that any rank trains with; 0 when none is known."""
        return max((rank.lr for rank in self.ranks if math.isfinite(rank.lr)), default=0.0)

    @property
    def slots(self) -> int:
        """The tensors of optimizers that most ranks hold, ties to the lowest rank; 0 when nobody holds any."""
        votes = Counter(rank.slots for rank in self.ranks if rank.slots)
        return max(votes, key=votes.__getitem__, default=0)  # of equals the first that was counted

    @property
    def flags(self) -> Flag:
        """What anybody wishes."""
        result = NO_FLAGS
        for rank in self.ranks:
            result |= rank.flags
        return result

    @property
    def stop(self) -> bool:
        """Whether the run stops at this boundary."""
        return Flag.STOP in self.flags

    @property
    def save(self) -> bool:
        """Whether somebody asked for a checkpoint."""
        return Flag.SAVE in self.flags

    @property
    def checkpoint(self) -> bool:
        """Whether a checkpoint is due."""
        return Flag.CHECKPOINT in self.flags

    @property
    def agreed(self) -> bool:
        """Whether all ranks planned alike."""
        return len({rank.digest for rank in self.ranks}) <= 1


def encode(own: RankTail, rank: int, ranks: int) -> list[float]:
    """The tail that one rank puts behind its parameters: ``ranks * TAIL_SLOTS`` floats, zero but for its own.

    Raises:
        ValueError: if a counter does not fit.
    """
    for name in ("batches", "samples", "skipped", "formed_epoch", "digest", "slots"):
        value = getattr(own, name)
        if not 0 <= value < MAX_COUNTER:
            raise ValueError(f"{name} of rank {own.uid} is {value}; the tail carries 0..{MAX_COUNTER - 1} a window")
    slots = (
        own.batches,
        own.samples,
        own.compute_ms,
        own.wait_ms,
        own.fill_ms,
        own.reduce_ms,
        own.loss_sum,
        own.divergence,
        own.formed_epoch,
        int(own.flags),
        own.digest,
        own.lr,
        own.skipped,
        own.slots,
    )
    return [0.0] * (rank * TAIL_SLOTS) + [float(slot) for slot in slots] + [0.0] * ((ranks - rank - 1) * TAIL_SLOTS)


def decode(values: Sequence[float], members: Sequence[str]) -> Tail:
    """The reduced tail of an epoch's members, in order.

    Raises:
        ValueError: if the number of floats is not that of the members, or a counter is no whole number.
    """
    if len(values) != len(members) * TAIL_SLOTS:
        raise ValueError(f"a tail of {len(values)} floats is not {TAIL_SLOTS} for each of {len(members)} ranks")
    return Tail(tuple(_rank(values[i * TAIL_SLOTS : (i + 1) * TAIL_SLOTS], uid) for i, uid in enumerate(members)))


def _rank(slots: Sequence[float], uid: str) -> RankTail:
    counters = [slots[i] for i in (0, 1, 8, 9, 10, 12, 13)]
    if not all(math.isfinite(value) and value == int(value) for value in counters):
        raise ValueError(f"the tail of rank {uid} has counters {counters} that are no whole numbers")
    batches, samples, formed_epoch, flags, digest, skipped, slots_held = (int(value) for value in counters)
    return RankTail(
        uid=uid,
        batches=batches,
        samples=samples,
        skipped=skipped,
        compute_ms=float(slots[2]),
        wait_ms=float(slots[3]),
        fill_ms=float(slots[4]),
        reduce_ms=float(slots[5]),
        loss_sum=float(slots[6]),
        divergence=float(slots[7]),
        formed_epoch=formed_epoch,
        flags=Flag(flags),
        digest=digest,
        lr=float(slots[11]),
        slots=slots_held,
    )
