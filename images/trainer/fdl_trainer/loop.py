"""The window loop: train the lease, reduce, commit, switch epochs; and what to do when any of it fails.

One rank's main thread. The order of the steps and why nothing is lost: docs/protocol.md. A failure inside a reduce
leaves the live model, the replicated state and this rank's work as they were; the loop enters the next epoch and
repeats.
"""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import or_
from typing import Any

from fdl_api import wire
from fdl_api.reasons import Ended
from fdl_api.termination import Saved
from fdl_trainer import plan, tail
from fdl_trainer.audit import AuditLog
from fdl_trainer.averaging import Share, Wire
from fdl_trainer.cohort import NEWS_SECONDS, Cohort
from fdl_trainer.ending import RunEndedError, diverged, done, fenced, kept
from fdl_trainer.groups import CollectiveFailedError, InterruptedCollectiveError
from fdl_trainer.loader import Batch, Loader
from fdl_trainer.progress import Reporter
from fdl_trainer.replica import Replica
from fdl_trainer.saving import Saver
from fdl_trainer.tail import Flag, RankTail, Tail
from fdl_trainer.work import WindowWork

log = logging.getLogger(__name__)

MAX_DIVERGED_WINDOWS = 3
"""Windows in a row in which a rank's model may be not finite before the rank ends."""


@dataclass
class Loop:
    """The state machine of one rank's training.

    Attributes:
        uid: of this rank.
        cohort: epochs and groups.
        replica: the replicated state.
        loader: delivers the batches of a lease.
        reporter: tells the coordinator.
        saver: writes checkpoints, or None when this rank cannot.
        audit: the index log, or None.
        state_extra: what goes into a checkpoint besides model, optimizer and control state.
        refusal: why this rank must not begin the training, if so; it may join one that runs.
        leaving: whether the rank was asked to go.
        work: what was done in the window in work.
    """

    uid: str
    cohort: Cohort
    replica: Replica
    loader: Loader
    reporter: Reporter
    saver: Saver | None
    audit: AuditLog | None
    state_extra: Callable[[], dict[str, Any]]
    refusal: RunEndedError | None = None
    leaving: bool = False
    work: WindowWork = field(default_factory=WindowWork)
    _wire: Wire | None = None
    _reduce_ms: float = 0.0
    _diverged: int = 0
    _checkpoint_wanted: bool = False
    _started: bool = False
    _leave_said: bool = False
    _settled: int = 0

    # --- the whole course -------------------------------------------------------------------------------

    def batches(self) -> Iterator[Batch]:
        """This rank's batches until the run is complete, or stops.

        Raises:
            RunEndedError: this rank has to end: fenced, refused, dismissed, or without a coordinator for too long.
        """
        self._join()
        while not (self.replica.control.finished or self.replica.stopped):
            yield from self._train()
            self._boundary()
        self._await_settled()

    @property
    def final(self) -> bool:
        """Whether every sample is committed."""
        return self.replica.control.finished

    @property
    def is_writer(self) -> bool:
        """Whether this rank writes the checkpoints of the present epoch."""
        return self.saver is not None and self.cohort.group is not None and self.replica.writer == self.cohort.rank

    @property
    def is_speaker(self) -> bool:
        """Whether this rank evaluates at the end: the writer, or the lowest rank when nobody writes."""
        return self.is_writer or (self.replica.writer is None and self.cohort.rank == 0)

    def save(self, *, final: bool = False) -> None:
        """Hand a copy of the committed state to the writer."""
        assert self.saver is not None
        self.saver.take(self.replica, self.state_extra(), final=final)

    def until_done(self, each: Callable[[], None]) -> wire.Done:
        """Wait for the coordinator's Done; ``each`` runs before every wait, since the writer may change."""
        while True:
            each()
            self.cohort.line.check()
            last = self.cohort.line.done
            if last is not None:
                return last
            if not self._switch_if_told():
                self.cohort.line.wait(NEWS_SECONDS)

    # --- entering epochs --------------------------------------------------------------------------------

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
            raise fenced(f"Membership epoch {number} goes on without this rank: the coordinator had given it up.")
        self._wire = None
        if not cohort.enter(number):
            return
        assert cohort.group is not None and cohort.epoch is not None
        try:
            decision = replica.synchronise(cohort.group, number, cohort.members, cohort.interrupt)
        except CollectiveFailedError as error:
            self._report_failure(number, error)
            return
        except InterruptedCollectiveError:
            return
        rank = cohort.rank
        if decision.lacks_model(rank) and rank != decision.donor:
            self.work = WindowWork()
        elif not self.work.is_prefix_of(replica.control.batches(self.uid)):
            self._void_work()
        self._entered(number, cohort.epoch)

    def _entered(self, number: int, epoch: wire.Epoch) -> None:
        ranks = len(epoch.members)
        self._wire = self.replica.model.new_wire(self.cohort.rank, ranks, ranks * tail.TAIL_SLOTS)
        self._checkpoint_wanted = epoch.cause in (wire.EpochCause.DEATH, wire.EpochCause.REFORM)
        self.cohort.forget_old()
        pulse = self.cohort.line.pulse
        pulse.epoch, pulse.window = number, self.replica.control.window + 1
        if not self._started and epoch.cause is wire.EpochCause.START:
            self._settled = self.replica.control.window  # a checkpoint holds nothing else; there may be no later window
            if self.audit is not None:
                self.audit.resume(self.replica.control.window, number)
        self._started = True
        self.reporter.entered(epoch, self.replica.control)
        place = f"rank {self.cohort.rank} of {len(epoch.members)}"
        log.info("epoch %d (%s): %s, window %d", number, epoch.cause, place, self.replica.control.window + 1)

    def _void_work(self) -> None:
        """Give up what was trained in the open window: the lease is another now."""
        if self.work.batches and self.audit is not None:
            self.audit.void(self.replica.control.window + 1)
        self.work = WindowWork()
        self.replica.model.apply()

    # --- the window -------------------------------------------------------------------------------------

    def _train(self) -> Iterator[Batch]:
        spans = self.replica.control.batches(self.uid)
        if self._asked_to_end() or self.work.batches >= len(spans):
            return
        self._phase(wire.Phase.TRAIN)
        source = self.loader.window(self.replica.control.window + 1, spans, first=self.work.batches)
        try:
            while True:
                self.work.asks()
                batch = next(source, None)
                if batch is None:
                    return
                self.work.given()
                if batch.samples:  # else all its samples were left out
                    yield batch
                self.work.finished(batch.span)
                self.cohort.line.pulse.progress += 1
                self.cohort.line.pulse.batches += 1
                if self._asked_to_end():
                    return
        finally:
            source.close()  # type: ignore[attr-defined]  # a generator; typed as an iterator

    def _asked_to_end(self) -> bool:
        line = self.cohort.line
        return self.leaving or line.stop is not None or line.ended is not None or line.done is not None

    def _boundary(self) -> None:
        """Reduce the window in work, commit it, and switch epochs where that is due.

        Returns early, without a commit, when another rank's newer commit was taken over or the lease grew.
        """
        self._say_leaving()
        while True:
            self._check()
            if self._switch_if_told():
                if self.cohort.group is None or self._wire is None:
                    continue
                if self._has_more_to_train() or self.replica.control.finished or self.replica.stopped:
                    return
                continue
            if self.cohort.group is None or self._wire is None:
                self.cohort.line.wait(NEWS_SECONDS)
                continue
            try:
                reduced = self._reduce()
            except InterruptedCollectiveError:
                self._wire = None  # its operation still owns it
                continue
            except CollectiveFailedError as error:
                assert self.cohort.epoch is not None
                self._report_failure(self.cohort.epoch.epoch, error)
                continue
            self._after_commit(reduced)
            return

    def _say_leaving(self) -> None:
        if self.leaving and not self._leave_said:
            self._leave_said = True
            self.cohort.line.send(wire.Leave(reason=Ended.PREEMPTED), sticky="leave")

    def _has_more_to_train(self) -> bool:
        return not self._asked_to_end() and self.work.batches < self.replica.control.quota(self.uid)

    def _reduce(self) -> Tail:
        """One all-reduce of model and tail, and the commit.

        Raises:
            CollectiveFailedError: it failed, or the ranks' plans differ: nothing has changed.
            InterruptedCollectiveError: the wire buffer is lost to the abandoned operation; nothing else has changed.
        """
        cohort, replica, packed = self.cohort, self.replica, self._wire
        assert cohort.group is not None and cohort.epoch is not None and packed is not None
        self._phase(wire.Phase.REDUCE)
        members = cohort.members
        replica.model.pack(packed, Share(self.work.batches, self.work.samples))
        packed.write_tail(*(tail.encode(self._own_tail(finite), cohort.rank, len(members)) for finite in (True, False)))
        started = time.perf_counter()
        packed.reduce(partial(cohort.group.all_reduce, interrupt=cohort.interrupt))
        self._reduce_ms = (time.perf_counter() - started) * 1000.0
        reduced = tail.decode(packed.read_tail(), members)
        finite = Flag.NONFINITE not in reduced.ranks[cohort.rank].flags
        if not reduced.agreed:
            digests = [rank.digest for rank in reduced.ranks]
            raise CollectiveFailedError(f"Ranks planned window {replica.control.window + 1} differently: {digests}.")
        before = replica.control
        if reduced.samples:
            try:
                replica.commit(packed, reduced)
            except ValueError as error:
                raise CollectiveFailedError(f"The ranks' books differ: {error}") from error
            if self.audit is not None:
                self.audit.commit(
                    cohort.epoch.epoch,
                    replica.control.window,
                    {rank.uid: rank.batches for rank in reduced.ranks if rank.batches},
                )
            self.reporter.committed(cohort, before, replica.control, reduced, self._reduce_ms)
        self._settle(before.window)  # all ranks were at that window, or their digests would differ
        if not finite:
            self._not_finite(before.window + 1, committed=reduced.samples > 0)
        elif self.work.batches:
            self._diverged = 0
        self.work = WindowWork()
        self.cohort.line.pulse.window = replica.control.window + 1
        return reduced

    def _own_tail(self, finite: bool) -> RankTail:
        return self.work.tail(
            self.uid,
            finite=finite,
            reduce_ms=self._reduce_ms,
            divergence=self.replica.divergence,
            formed_epoch=self.cohort.ready_for(),
            flags=self._flags(finite),
            digest=plan.digest(self.replica.control),
            lr=self.replica.learning_rate(),
        )

    def _flags(self, finite: bool) -> Flag:
        line = self.cohort.line
        due = self.is_writer and self.saver is not None and (self._checkpoint_wanted or self.saver.due())
        wishes = {
            Flag.LEAVING: self.leaving,
            Flag.STOP: line.stop is not None,
            Flag.SAVE: line.save_wanted or (line.stop is not None and line.stop.save),
            Flag.CHECKPOINT: due,
            Flag.NONFINITE: not finite,
        }
        return reduce(or_, (flag for flag, wished in wishes.items() if wished), tail.NO_FLAGS)

    def _not_finite(self, window: int, *, committed: bool) -> None:
        """Go on from the committed state after this rank's model was not finite; give up when it happens again."""
        log.warning(
            "window %d: this rank's model is not finite; its %d batches do not count and its optimizer starts afresh",
            window,
            self.work.batches,
        )
        self._diverged += 1
        if self._diverged >= MAX_DIVERGED_WINDOWS:
            raise diverged(self._diverged, window, self.replica.control.window)
        self.replica.reset_optimizer()
        if not committed:
            self._void_work()

    def _after_commit(self, reduced: Tail) -> None:
        """Checkpoint, stop, or switch to the planned epoch, as the reduced tail says."""
        control = self.replica.control
        if reduced.checkpoint or reduced.save:
            self.cohort.line.save_wanted = self._checkpoint_wanted = False
            if self.is_writer and self.saver is not None and not control.finished:
                self.save()
        if reduced.stop:
            self.replica.stopped = True
        elif not control.finished and self.cohort.epoch is not None and reduced.formed_epoch > self.cohort.epoch.epoch:
            self._enter(reduced.formed_epoch)

    def _await_settled(self) -> None:
        """After the last window: wait until all have it, helping those who lack it."""
        self._phase(wire.Phase.WAIT)
        window = self.replica.control.window
        while max(self._settled, self.cohort.line.settled) < window and self.cohort.line.done is None:
            self.cohort.line.check()
            if not self._switch_if_told():
                self.cohort.line.wait(NEWS_SECONDS)
        self._settle(window)

    def _settle(self, window: int) -> None:
        self._settled = max(self._settled, window)
        if self.saver is not None:
            self.saver.settle(max(self._settled, min(self.cohort.line.settled, self.replica.control.window)))

    # --- ends and failures ------------------------------------------------------------------------------

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

    def _check(self) -> None:
        """Raise this rank's end, if it has come."""
        line = self.cohort.line
        line.check()
        if line.done is not None:
            raise self.end(line.done)

    def kept(self, last: wire.Done) -> Saved:
        """What became of this rank's work, for its last words."""
        durable = self.saver.saved_window if self.saver is not None else -1
        return kept(last.saved, durable, self.replica.control.window)

    def end(self, last: wire.Done) -> RunEndedError:
        """The coordinator's Done as this rank's end."""
        return done(last.exit_code, last.reason, last.message, self.kept(last), self.replica.control.window)

    def _report_failure(self, number: int, error: CollectiveFailedError) -> None:
        """Say that an operation failed, and wait for the coordinator's decision; it names nobody."""
        log.info("epoch %d: an operation failed: %s", number, error)
        line = self.cohort.line
        window = self.replica.control.window + 1
        line.send(wire.ReduceFailed(epoch=number, window=window, message=str(error)[:1024]), sticky="failure")
        while not self.cohort.interrupt():
            line.wait(NEWS_SECONDS)
        line.forget("failure")

    def _phase(self, phase: wire.Phase) -> None:
        self.cohort.line.pulse.phase = phase
        self.cohort.line.pulse.progress += 1
