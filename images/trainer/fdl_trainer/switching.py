"""Entering membership epochs: the first layer of the window loop."""

import logging

from fdl_api import wire
from fdl_api.termination import Saved
from fdl_trainer.cohort import NEWS_SECONDS
from fdl_trainer.ending import fenced
from fdl_trainer.groups import CollectiveFailedError, InterruptedCollectiveError
from fdl_trainer.standing import Standing

log = logging.getLogger(__name__)


class Switching(Standing):
    """A rank that goes from epoch to epoch."""

    def _join(self) -> None:
        self._phase(wire.Phase.WAIT)
        while not self._started:
            self._check()
            number = self.cohort.next_joining() or self.cohort.next_immediate()
            if number is None:
                self.cohort.line.wait(NEWS_SECONDS)
                continue
            if self.refusal is not None and self.cohort.starts(number):
                raise self.refusal
            self._enter(number)

    def _switch_if_told(self) -> bool:
        """Enter the epoch that a death made, if there is one; returns whether one was tried."""
        number = self.cohort.next_immediate()
        if number is None:
            return False
        self._enter(number)
        return True

    def _enter(self, number: int) -> None:
        """Switch to an epoch: wait for its group, do the exchange, take what was missed.

        Returns without having entered when a newer epoch came first or the exchange failed; the caller looks again.
        """
        cohort, replica = self.cohort, self.replica
        place = cohort.includes_me(number)
        if place is None:
            return  # cancelled meanwhile: the epoch that cancelled it is on its way
        if not place:
            if self.leaving:
                self._await_dismissal()
            if cohort.suspends(number):
                self._stand_by(number)
                return
            raise fenced(f"Membership epoch {number} goes on without this rank: the coordinator had given it up.")
        self.packed = None
        if cohort.starts(number) or cohort.apart(number):
            replica.live = False  # the run has gone on without what this rank may have committed since
        before = replica.control.window
        if not cohort.enter(number):
            return
        assert cohort.group is not None and cohort.epoch is not None
        try:
            void = replica.synchronise(
                cohort.group, number, cohort.members, cohort.interrupt, self.course, seating=cohort.seating
            )
        except CollectiveFailedError as error:
            self._report_failure(number, error)
            return
        except InterruptedCollectiveError:
            return
        if self.audit is not None:
            lost = range(replica.control.window + 1, before + 1) if self._started else ()  # its own commits, apart
            for window in (*lost, *void):
                self.audit.void(window)
        self._entered(number, cohort.epoch)

    def _entered(self, number: int, epoch: wire.Epoch) -> None:
        ranks = len(epoch.members)
        self.packed = self.replica.new_wire(self.cohort.rank, ranks)
        self._checkpoint_wanted = epoch.cause in (wire.EpochCause.DEATH, wire.EpochCause.REFORM)
        self.cohort.forget_old()
        pulse, window = self.cohort.line.pulse, self.replica.control.window
        pulse.epoch, pulse.window = number, window + 1
        if not self._started and epoch.cause is wire.EpochCause.START:
            self._settled = window  # a checkpoint holds nothing else; there may be no later window
            if self.audit is not None:
                self.audit.resume(window, number)
        self._started = True
        self.reporter.entered(epoch, self.replica.control)
        log.info("epoch %d (%s): rank %d of %d, window %d", number, epoch.cause, self.cohort.rank, ranks, window + 1)

    def _stand_by(self, number: int) -> None:
        """Wait to be taken in anew: this rank had kept all others waiting, and they go on without it."""
        log.warning("epoch %d goes on without this rank, for which all had waited; it comes back as a joiner", number)
        self._phase(wire.Phase.WAIT)
        while self.cohort.next_immediate() == number:
            self._say_leaving()
            self._check()
            self.cohort.line.wait(NEWS_SECONDS)

    def _await_dismissal(self) -> None:
        """A leaver's last act: wait until its last window is settled."""
        self._phase(wire.Phase.LEAVE)
        line = self.cohort.line
        epoch = self.cohort.epoch.epoch if self.cohort.epoch is not None else 0
        self.reporter.finished(epoch, self.replica.control.window, Saved.COMMITTED)
        while line.done is None:
            line.check()
            line.wait(NEWS_SECONDS)
        self._check()

    def _report_failure(self, number: int, error: CollectiveFailedError) -> None:
        """Say that an operation failed, and wait for the coordinator's decision; it names nobody."""
        log.info("epoch %d: an operation failed: %s", number, error)
        line = self.cohort.line
        window = self.replica.control.window + 1
        line.send(wire.ReduceFailed(epoch=number, window=window, message=str(error)[:1024]), sticky="failure")
        while not self.cohort.interrupt():
            line.wait(NEWS_SECONDS)
        line.forget("failure")
