"""Sending a window, and what follows when its average has come or has failed: the second layer of the window loop."""

import logging
import time
from dataclasses import replace
from functools import reduce
from operator import or_

from fdl_api import wire
from fdl_api.reasons import Ended
from fdl_trainer import agreed, guard, plan, tail
from fdl_trainer.agreed import Control
from fdl_trainer.averaging import ModelChangedError, Share, Wire
from fdl_trainer.ending import diverged, rolled_back, user_code
from fdl_trainer.flight import Flight
from fdl_trainer.groups import CollectiveFailedError, InterruptedCollectiveError
from fdl_trainer.switching import Switching
from fdl_trainer.tail import Flag, RankTail, Tail
from fdl_trainer.work import WindowWork

log = logging.getLogger(__name__)

MAX_DIVERGED_WINDOWS = 3
"""Windows in a row in which a rank's model may be not finite before the rank ends."""


class Windows(Switching):
    """A rank that averages.

    A failure inside a reduce leaves the live model, the replicated state and this rank's work as they were; the rank
    enters the next epoch and sends again: what it has packed before, if it has trained on since.
    """

    _reduce_ms: float = 0.0
    """Of the last reduce; with overlap: for how long training stood still for the last one."""
    _stalled_ms: float = 0.0
    _ahead: int = 0
    """Batches that may be trained before the average in flight has come."""
    _diverged: int = 0

    def _send(self) -> None:
        """Pack the window in work and begin its reduce; without overlap it has landed on return."""
        cohort, replica, packed, course = self.cohort, self.replica, self.packed, self.course
        assert cohort.group is not None and packed is not None
        self._phase(wire.Phase.REDUCE)
        started = time.perf_counter()
        again = course.sent is not None and course.work.batches > 0
        sent = course.sent if course.sent is not None else course.send()
        share = Share(sent.batches, sent.samples)
        try:
            packed = self.packed = replica.pack(packed, share, keep_snapshot=self.overlap, again=again)
        except ModelChangedError as error:
            raise user_code(Ended.SCRIPT_RAISED, f"Rank {self.loader.rank}: {error}") from error
        own = self._own_tail(sent)
        packed.write_tail(*(tail.encode(each, cohort.rank, len(cohort.members)) for each in (own, own.not_finite())))
        self._ahead = plan.overshoot(replica.control, self.uid, replica.spec)
        self.flight = Flight(packed, cohort.group, cohort.interrupt)
        self._stalled_ms = (time.perf_counter() - started) * 1000.0
        self.flight.start(aside=self.overlap)

    def _land(self) -> None:
        """Take in a reduce that has landed: commit its window, or get ready to send it again."""
        flight, self.flight = self.flight, None
        assert flight is not None and self.cohort.epoch is not None
        started = time.perf_counter()
        try:
            flight.result()
            reduced = self._commit(flight.packed)
        except InterruptedCollectiveError:
            self.packed = None  # its operation still owns it
            return
        except CollectiveFailedError as error:
            self._report_failure(self.cohort.epoch.epoch, error)
            return
        self._stalled_ms += (time.perf_counter() - started) * 1000.0
        self._reduce_ms = self._stalled_ms if self.overlap else flight.milliseconds
        self._after_commit(*reduced)

    def _commit(self, packed: Wire) -> tuple[Control, Tail]:
        """Make the reduced window the committed state; returns the state before it, and its tail.

        Raises:
            CollectiveFailedError: the ranks' plans differ: nothing has changed.
        """
        cohort, replica, course = self.cohort, self.replica, self.course
        assert cohort.epoch is not None
        before, sent = replica.control, course.sent
        assert sent is not None
        reduced = tail.decode(packed.read_tail(), cohort.members)
        if not reduced.agreed:
            digests = [rank.digest for rank in reduced.ranks]
            raise CollectiveFailedError(f"Ranks planned window {before.window + 1} differently: {digests}.")
        alpha = replica.spec.alpha
        delta = self.overlap and (course.work.batches > 0 or alpha < 1.0)
        try:
            counted = replica.commit(packed, reduced, delta=delta, alpha=alpha)
        except ValueError as error:
            raise CollectiveFailedError(f"The ranks' books differ: {error}") from error
        course.committed()
        if counted and self.audit is not None:
            contributions = {rank.uid: rank.batches for rank in reduced.ranks if rank.batches}
            self.audit.commit(cohort.epoch.epoch, replica.control.window, contributions)
        if counted:
            self.reporter.committed(cohort, before, replica.control, reduced, self._reduce_ms)
        self._settle(before.window)  # all ranks were at that window, or their digests would differ
        if Flag.NONFINITE in reduced.ranks[cohort.rank].flags:
            self._not_finite(before.window + 1, sent, counted=counted, overwritten=reduced.samples > 0)
        elif sent.batches:
            self._diverged = 0
        cohort.line.pulse.window = replica.control.window + 1
        return before, reduced

    def _after_commit(self, before: Control, reduced: Tail) -> None:
        """Checkpoint, stop, go back, or switch to the planned epoch: as the reduced tail and the guards say, which all
        ranks know alike.

        Raises:
            RunEndedError: the guards call for a rollback. All ranks end here, and successors start from the checkpoint.
        """
        control, epoch = self.replica.control, self.cohort.epoch
        if plan.takes_checkpoint(control.elche, control.window, reduced):
            self.cohort.line.save_wanted = self._checkpoint_wanted = False
            if self.is_writer and self.saver is not None and not control.finished:
                self.save()
        if before.draining or (reduced.stop and not control.draining):
            self.replica.stopped = True
        elif why := self._must_go_back(before, control):
            first = wire.member_of(control.members[0]) == wire.member_of(self.uid)
            raise rolled_back(why, control.window, control.checkpoint_window, billed=first)
        elif not control.finished and epoch is not None and reduced.formed_epoch > epoch.epoch:
            self._enter(reduced.formed_epoch)

    @staticmethod
    def _must_go_back(before: Control, control: Control) -> str:
        """Why the guards call for a rollback after this commit; empty if they do not or the training ends anyway."""
        if control is before or control.finished or control.draining:
            return ""
        return guard.rollback(control.elche.guard, control.window)

    def _own_tail(self, sent: WindowWork) -> RankTail:
        own = sent.tail(
            self.uid,
            reduce_ms=self._reduce_ms,
            divergence=self.replica.divergence,
            formed_epoch=self.cohort.ready_for(),
            flags=self._flags(),
            digest=agreed.digest(self.replica.control),
            lr=self.replica.learning_rate(),
        )
        return replace(own, slots=self.replica.held_slots())

    def _flags(self) -> Flag:
        line = self.cohort.line
        due = self.is_writer and self.saver is not None and (self._checkpoint_wanted or self.saver.due())
        wishes = {
            Flag.LEAVING: self.leaving and not self.work.batches,
            Flag.STOP: line.stop is not None,
            Flag.SAVE: line.save_wanted or (line.stop is not None and line.stop.save),
            Flag.CHECKPOINT: due,
        }
        return reduce(or_, (flag for flag, wished in wishes.items() if wished), tail.NO_FLAGS)

    def _not_finite(self, window: int, sent: WindowWork, *, counted: bool, overwritten: bool) -> None:
        """Go on from the committed state after this rank's model was not finite; give up when it happens again."""
        rank, batches = self.loader.rank, sent.batches
        what, then = f"the model of rank {rank} is", ", and its optimizer starts afresh"
        if self.replica.model.gradients is not None:
            what, then = f"the gradients of rank {rank} are", ""
        log.warning("window %d: %s not finite; its %d batches do not count%s", window, what, batches, then)
        self._diverged += 1
        if self._diverged >= MAX_DIVERGED_WINDOWS:
            raise diverged(rank, self._diverged, window, self.replica.control.window)
        self.replica.reset_optimizer()
        if not overwritten:
            self.replica.model.apply()
        if not counted and sent.batches and self.audit is not None:
            self.audit.void(window)
