"""Membership epochs: their numbers, who is in the present one, and the one planned next.

Numbers only grow and are never used twice, also over restarts of the coordinator.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from fdl_api.wire import Epoch, EpochCause, EpochMember

GENERATION_EPOCHS = 4096
"""Numbers set apart for each generation, so that a coordinator that was cut off and replaced never makes an epoch of
the same number as its successor. Epochs travel in 24 bits (fdl_trainer.tail)."""


@dataclass
class Planned:
    """An epoch that is being formed in the background."""

    epoch: Epoch
    leavers: list[str]
    """UIDs of ranks of the present epoch that are not in this one."""
    made_at: float
    confirmed: bool = False


@dataclass
class EpochBook:
    """The present epoch, the planned one, and the newest number in use."""

    generation: int
    seats: int = 0
    """Seats of the run, for all epochs."""
    newest: int = 0
    current: Epoch | None = None
    planned: Planned | None = None
    adopted: int = 0
    """The epoch taken over from an earlier coordinator; 0 when there was none."""

    def members(self) -> list[EpochMember]:
        """Members of the present epoch, in rank order; empty before the start."""
        return list(self.current.members) if self.current is not None else []

    def uids(self) -> list[str]:
        """Rank UIDs of the present epoch, in rank order."""
        return [member.uid for member in self.members()]

    def adopt(self, number: int, members: Sequence[EpochMember], newest: int) -> Epoch:
        """Take over an epoch that ranks told a restarted coordinator of."""
        self.newest = max(self.newest, newest, number)
        self.adopted = number
        self.current = Epoch(
            generation=self.generation,
            epoch=number,
            previous=number,
            members=list(members),
            seats=self.seats,
            cause=EpochCause.START,
            planned=False,
        )
        return self.current

    def begin(self, members: Sequence[EpochMember], cause: EpochCause, gone: Sequence[str] = ()) -> Epoch:
        """Make an epoch that takes effect at once and forget the planned one."""
        self.planned = None
        self.current = self._make(members, cause, planned=False, gone=gone)
        return self.current

    def plan(self, members: Sequence[EpochMember], cause: EpochCause, leavers: list[str], now: float) -> Planned:
        """Make an epoch that all form in the background first."""
        epoch = self._make(members, cause, planned=True)
        self.planned = Planned(epoch=epoch, leavers=leavers, made_at=now)
        return self.planned

    def confirm(self) -> Epoch:
        """The planned epoch's group stands everywhere: ranks may switch to it."""
        assert self.planned is not None
        self.planned.confirmed = True
        self.planned.epoch = self.planned.epoch.model_copy(update={"planned": False})
        return self.planned.epoch

    def switch(self) -> Planned:
        """All members of the planned epoch are in it now."""
        planned = self.planned
        assert planned is not None
        self.current = planned.epoch
        self.planned = None
        return planned

    def successors(self) -> list[EpochMember]:
        """Members from whom the next epoch is made when somebody dies: those of a confirmed plan, else the present."""
        if self.planned is not None and self.planned.confirmed:
            return list(self.planned.epoch.members)
        return self.members()

    def end(self) -> None:
        """Nobody is left: the next epoch is a start."""
        self.current = None
        self.planned = None

    def is_foreign(self, number: int) -> bool:
        """Whether an epoch was made by an earlier coordinator after this one had taken the run over."""
        return self.current is not None and self.adopted < number <= self._floor

    @property
    def _floor(self) -> int:
        return (self.generation - 1) * GENERATION_EPOCHS

    def _make(
        self, members: Sequence[EpochMember], cause: EpochCause, *, planned: bool, gone: Sequence[str] = ()
    ) -> Epoch:
        self.newest = max(self.newest, self._floor) + 1
        return Epoch(
            generation=self.generation,
            epoch=self.newest,
            previous=self.current.epoch if self.current is not None else 0,
            members=list(members),
            seats=self.seats,
            cause=cause,
            planned=planned,
            gone=list(gone),
        )
