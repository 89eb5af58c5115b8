"""What a rank tells the coordinator of its training, and its log; and what it echoes to a restarted coordinator."""

import logging
import time
from dataclasses import dataclass, field

from fdl_api import wire
from fdl_api.telling import Reached, Teller
from fdl_api.termination import Saved
from fdl_trainer.agreed import Control
from fdl_trainer.cohort import Cohort, Line
from fdl_trainer.tail import Tail

log = logging.getLogger(__name__)


@dataclass
class Reporter:
    """Messages about commits and epochs; assigned whole, so that the control thread may read at any time.

    Attributes:
        line: the line to the coordinator.
        epoch: the present epoch, None before the first.
        control: the replicated state at the last commit.
        teller: when the log says how far the run is, which is the lowest rank's to say.
    """

    line: Line
    control: Control
    epoch: wire.Epoch | None = None
    teller: Teller = field(default_factory=Teller)

    def echo(self) -> wire.Echo | None:
        """What a coordinator that does not know this rank's training needs; None before the first epoch."""
        epoch, control = self.epoch, self.control
        if epoch is None:
            return None
        return wire.Echo(
            generation=self.line.generation,
            epoch=epoch.epoch,
            members=epoch.members,
            committed=wire.Position(epoch=epoch.epoch, window=control.window),
            samples=control.samples,
            skipped=control.ledger.skipped,
            data_epoch=control.data_epoch,
            max_epoch=max(epoch.epoch, self.line.book.max_heard),
            suspended=self.line.book.suspended,
        )

    def position(self) -> wire.Position:
        """Newest committed point of this rank."""
        epoch = self.epoch.epoch if self.epoch is not None else 0
        return wire.Position(epoch=epoch, window=self.control.window)

    def entered(self, epoch: wire.Epoch, control: Control) -> None:
        """An epoch was entered, perhaps with a commit that this rank had missed."""
        missed = control.window > self.control.window or control.finished
        self.epoch, self.control = epoch, control
        if missed:
            self._commit(epoch.epoch, control, None)

    def committed(self, cohort: Cohort, before: Control, after: Control, reduced: Tail, reduce_ms: float) -> None:
        """A window was committed here. The lowest rank adds the figures, and says in its log how far the run is."""
        assert cohort.epoch is not None
        self.control = after
        if cohort.rank != 0:
            self._commit(cohort.epoch.epoch, after, None)
            return
        self._tell(after, reduced)
        total = max(1, reduced.samples)
        ranks = [
            wire.RankWindow(
                uid=rank.uid,
                quota=before.quota(rank.uid),
                batches=rank.batches,
                samples=rank.samples,
                compute_ms=rank.compute_ms,
                data_wait_ms=rank.wait_ms,
                ms_per_batch=after.elche.ms_per_batch(rank.uid),
                share=rank.samples / total,
            )
            for rank in reduced.ranks
        ]
        figures = wire.WindowCommitted(
            epoch=cohort.epoch.epoch,
            window=after.window,
            samples=after.samples,
            skipped=after.ledger.skipped,
            data_epoch=after.data_epoch,
            final=after.finished,
            anchor=after.elche.anchor,
            loss=reduced.loss,
            reduce_ms=reduced.reduce_ms or reduce_ms,
            ranks=ranks,
            guard=_guard(after, reduced),
        )
        self._commit(cohort.epoch.epoch, after, figures)

    def _tell(self, after: Control, reduced: Tail) -> None:
        reached = Reached(
            window=after.window,
            samples=after.consumed,
            total=after.ledger.total,
            ranks=len(reduced.ranks),
            loss=reduced.loss,
            final=after.finished,
        )
        if line := self.teller.line(reached, time.monotonic()):
            log.info("%s", line)

    def finished(self, epoch: int, window: int, saved: Saved) -> None:
        """Nothing is left to do for the run as long as it stays in this epoch."""
        self.line.send(wire.Finished(epoch=epoch, window=window, saved=saved), sticky="finished")

    def _commit(self, epoch: int, control: Control, figures: wire.WindowCommitted | None) -> None:
        message = figures or wire.WindowCommitted(
            epoch=epoch,
            window=control.window,
            samples=control.samples,
            skipped=control.ledger.skipped,  # the first report of a window moves the run's counts, whoever sends it
            data_epoch=control.data_epoch,
            final=control.finished,
        )
        self.line.send(message, sticky="committed")


def _guard(control: Control, reduced: Tail) -> wire.GuardReport:
    """What the guards see and did, for people."""
    journal = control.elche.guard.journal
    return wire.GuardReport(
        divergence=reduced.divergence,
        latched=control.elche.growth_latched,
        counts={str(action): count for action, count in journal.counts.items()},
        last=[
            wire.GuardRecord(window=record.window, guard=record.guard, action=record.action, why=record.why)
            for record in journal.last
        ],
    )
