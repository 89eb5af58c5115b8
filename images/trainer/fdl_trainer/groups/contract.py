"""What the window loop needs of a group, whatever carries it."""

from typing import Protocol

import torch


class CollectiveFailedError(RuntimeError):
    """An operation of the group failed here. It says nothing about who is at fault."""


class InterruptedCollectiveError(RuntimeError):
    """The control channel asked to leave the operation; the group was abandoned."""


class Interrupt(Protocol):
    """Asked between two slices of waiting; true means: leave the operation."""

    def __call__(self) -> bool: ...


class Group(Protocol):
    """Ranks of one membership epoch that can sum and give.

    Buffers may lie on any device: a group brings them to where its backend works and the result back. An operation has
    ended for the host when the call returns; whatever the caller enqueues then comes after it.

    Attributes:
        rank: this rank's place.
        size: number of ranks.
    """

    rank: int
    size: int

    def all_reduce(self, buffer: torch.Tensor, interrupt: Interrupt) -> None:
        """Sum ``buffer`` over all ranks, in place. Raises CollectiveFailedError, InterruptedCollectiveError."""

    def broadcast(self, buffer: torch.Tensor, root: int, interrupt: Interrupt) -> None:
        """Overwrite ``buffer`` with the root's. Raises CollectiveFailedError, InterruptedCollectiveError."""

    def close(self) -> None:
        """Destroy the group; it has no operation in flight but one that was left."""


class LocalGroup:
    """The group of a single rank: every operation is the identity."""

    rank = 0
    size = 1

    def all_reduce(self, buffer: torch.Tensor, interrupt: Interrupt) -> None:
        """Leave the buffer as it is."""

    def broadcast(self, buffer: torch.Tensor, root: int, interrupt: Interrupt) -> None:
        """Leave the buffer as it is."""

    def close(self) -> None:
        """Nothing to destroy."""


def first_line(error: BaseException) -> str:
    """The first line of an error's text, without torch's guess at the cause."""
    line = (str(error).strip().splitlines() or ["no message"])[0]
    return line.split(" This is typically caused", maxsplit=1)[0][:900]
