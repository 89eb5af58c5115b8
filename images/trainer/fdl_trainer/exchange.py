"""The first operation of every group: who holds what, and giving the newest state to those who lack it.

All rank rows travel in one small all-reduce, one-hot, in doubles. The rules are pure (:func:`decide`) and read only
those rows, so that all ranks come to the same donor and the same transfers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fdl_trainer.groups import Group, Interrupt

ROW = 9


@dataclass(frozen=True, order=True)
class Held:
    """What a rank holds when it enters an epoch.

    Attributes:
        live: its state is that of the running training; false for a joiner and after a start from a checkpoint.
        window: its newest committed window.
        attempt: attempt of the run in which it was committed. It and ``epoch`` tell the checkpoints apart that ranks
            start from; within a running training the window does.
        epoch: membership epoch in which it was committed.
        options: 48 bits over the names of its optimizer's options, where gradients are averaged; else 0.
        entered: the newest epoch whose members its control state knows.
        digest: 24 bits over the control state.
        stopped: the run stopped at that window.
        writable: it can write checkpoints.
    """

    live: bool
    window: int
    entered: int
    digest: int = 0
    stopped: bool = False
    writable: bool = False
    attempt: int = 0
    epoch: int = 0
    options: int = 0

    @property
    def worth(self) -> tuple[int, ...]:
        """The higher, the newer. A live state outweighs any other, and of two the one that has committed more.

        What is not live comes from checkpoints, where the window alone does not tell: a part of the cohort that was cut
        off goes on counting (docs/protocol.md, Checkpoints).
        """
        if self.live:
            return 1, self.window, self.entered
        return 0, self.attempt, self.epoch, self.window, self.entered

    def row(self) -> list[float]:
        """The rank's row."""
        return [
            float(self.live),
            float(self.window),
            float(self.entered),
            float(self.digest),
            float(self.stopped),
            float(self.writable),
            float(self.attempt),
            float(self.epoch),
            float(self.options),
        ]

    @classmethod
    def of(cls, row: Sequence[float]) -> "Held":
        """Inverse of :meth:`row`."""
        live, window, entered, digest, stopped, writable, attempt, epoch, options = (int(value) for value in row)
        return cls(bool(live), window, entered, digest, bool(stopped), bool(writable), attempt, epoch, options)


@dataclass(frozen=True)
class Decision:
    """What the rows mean.

    Attributes:
        donor: rank whose state is everybody's.
        model: the donor sends its committed buffer.
        optimizer: the donor sends its optimizer's state too, for ranks without a live state, or without the commit.
        control: the donor sends its control state.
        writer: the lowest rank that can write checkpoints, or None.
        held: the rows.
    """

    donor: int
    model: bool
    optimizer: bool
    control: bool
    writer: int | None
    held: tuple[Held, ...]

    @property
    def stopped(self) -> bool:
        """Whether the run stopped at the donor's window."""
        return any(row.stopped and (row.live, row.window) == (True, self.source.window) for row in self.held)

    @property
    def source(self) -> Held:
        """What the donor holds."""
        return self.held[self.donor]

    def lacks_model(self, rank: int) -> bool:
        """Whether a rank takes over the donor's committed buffer, and with it gives up its own open window."""
        own = self.held[rank]
        return (own.live, own.window) != (True, self.source.window)

    def lacks_control(self, rank: int) -> bool:
        """Whether a rank takes over the donor's control state."""
        return self.lacks_model(rank) or self.held[rank].digest != self.source.digest


def decide(held: Sequence[Held], *, with_optimizer: bool = False) -> Decision:
    """Choose the donor: of the highest worth (:attr:`Held.worth`), the lowest rank.

    At a start nobody is live, so that the donor gives its state to all: random initialisation differs between device
    kinds, and checkpoints between nodes.

    Args:
        held: what each rank holds.
        with_optimizer: the optimizer's state belongs to the commit: who lacks the one lacks the other.
    """
    best = max(row.worth for row in held)
    donor = next(rank for rank, row in enumerate(held) if row.worth == best)
    rows = tuple(held)
    draft = Decision(donor, False, False, False, None, rows)
    ranks = range(len(rows))
    return Decision(
        donor=donor,
        model=any(draft.lacks_model(rank) for rank in ranks),
        optimizer=any(not row.live or (with_optimizer and draft.lacks_model(i)) for i, row in enumerate(rows)),
        control=any(draft.lacks_control(rank) for rank in ranks),
        writer=next((rank for rank, row in enumerate(rows) if row.writable), None),
        held=rows,
    )


def exchange_rows(group: Group, own: Held, interrupt: Interrupt, *, with_optimizer: bool = False) -> Decision:
    """Tell everybody what this rank holds and hear the same of all; :func:`decide` has the arguments."""
    rows = torch.zeros(group.size, ROW, dtype=torch.float64)
    rows[group.rank] = torch.tensor(own.row(), dtype=torch.float64)
    group.all_reduce(rows, interrupt)
    return decide([Held.of(row) for row in rows.tolist()], with_optimizer=with_optimizer)


def give_bytes(group: Group, donor: int, payload: bytes | None, interrupt: Interrupt) -> bytes:
    """Broadcast bytes of any length from the donor.

    Args:
        group: the epoch's group.
        donor: the rank that has them.
        payload: the bytes; read only on the donor.
        interrupt: see :mod:`fdl_trainer.groups`.
    """
    mine = payload if group.rank == donor and payload is not None else b""
    length = torch.tensor([len(mine)], dtype=torch.int64)
    group.broadcast(length, donor, interrupt)
    buffer = torch.zeros(int(length.item()), dtype=torch.uint8)
    if mine:
        buffer = torch.frombuffer(bytearray(mine), dtype=torch.uint8)
    if buffer.numel():
        group.broadcast(buffer, donor, interrupt)
    return buffer.numpy().tobytes()


def give_tensor(group: Group, donor: int, tensor: torch.Tensor, interrupt: Interrupt) -> torch.Tensor:
    """Broadcast a tensor from the donor into a fresh buffer; the argument is read on the donor and never written."""
    buffer = tensor.clone()
    group.broadcast(buffer, donor, interrupt)
    return buffer
