"""The window loop: train the lease, send it, commit its average, switch epochs; and what to do when any of it fails.

One rank's main thread, in three layers: :mod:`~fdl_trainer.switching` (epochs), :mod:`~fdl_trainer.windows` (averages),
and the course of the whole here. The order of the steps and why nothing is lost: docs/protocol.md.
"""

import time
from collections.abc import Callable, Iterator

from fdl_api import wire
from fdl_trainer import elche, plan
from fdl_trainer.cohort import NEWS_SECONDS
from fdl_trainer.loader import Batch
from fdl_trainer.windows import Windows
from fdl_trainer.work import WindowWork


class Loop(Windows):
    """The state machine of one rank's training."""

    _source: Iterator[Batch] | None = None
    """Delivers the rest of the window that :attr:`_source_work` belongs to."""
    _source_work: WindowWork | None = None
    _source_batches: int = 0
    _settled_end: bool = False
    _busy_ms: float = 0.0
    """Time that this rank has spent on that window, without waiting for averages."""

    def batches(self) -> Iterator[Batch]:
        """This rank's batches until the run is complete, or stops.

        Raises:
            RunEndedError: this rank has to end: fenced, refused, dismissed, or without a coordinator for too long.
        """
        self._join()
        while not self._settled_end:
            while not self.over:
                yield from self._train()
                self._boundary()
            if self.overlap:
                self.replica.model.apply()  # corrections are rounded: only the committed state is equal on all ranks
            self._await_settled()

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

    # --- training ---------------------------------------------------------------------------------------

    def _train(self) -> Iterator[Batch]:
        """Batches of one window, as long as there is nothing else to do.

        With overlap averages are taken in between; work goes on in the same window unless an epoch made it void.
        """
        work = self.work
        if not self._may_train():
            return
        self._phase(wire.Phase.TRAIN)
        source = self._batches_of(work)
        while self._may_train():
            began = time.perf_counter()
            work.asks()
            batch = next(source)
            work.given()
            if batch.samples:  # else all its samples were left out
                yield batch
            work.finished(batch.span, skipped=batch.skipped)
            self._busy_ms += (time.perf_counter() - began) * 1000.0
            self.cohort.line.pulse.progress += 1
            self.cohort.line.pulse.batches += 1
            if self.flight is not None and self.flight.landed():
                self._land()
                self._phase(wire.Phase.TRAIN)
            if self.work is not work or self._called_away():
                return

    def _batches_of(self, work: WindowWork) -> Iterator[Batch]:
        """The batches of the window that is being trained, from the first that is not done yet."""
        if self._source is None or self._source_work is not work:
            self._drop_source()
            control, course = self.replica.control, self.course
            ahead = [] if course.sent is not None else plan.upcoming(control, self.uid, self.replica.spec)
            window, lease = course.window(control), course.lease(control)
            self._source = self.loader.window(window, lease, first=work.batches, ahead=ahead)
            self._source_work, self._source_batches, self._busy_ms = work, len(lease), 0.0
        return self._source

    def _drop_source(self) -> None:
        """Done with a window. What the loader read ahead stays, if the window is at its end."""
        source, work = self._source, self._source_work
        self._source = self._source_work = None
        if source is None or work is None:
            return
        if work.batches >= self._source_batches:
            next(source, None)
        source.close()  # type: ignore[attr-defined]  # a generator; typed as an iterator

    def _may_train(self) -> bool:
        """Whether the next batch of the open window is to be trained now."""
        course, control = self.course, self.replica.control
        if self.over or self._asked_to_end() or course.left(control) <= 0:
            return False
        waits = self.flight is None or course.work.batches >= self._ahead or not self.flight.packed.was_finite
        if course.sent is not None and waits:
            return False
        return not self._deadline()

    def _deadline(self) -> bool:
        """Whether the next batch would end past the window's planned length (:mod:`fdl_trainer.elche.deadline`)."""
        control, work = self.replica.control, self.course.work
        if work is not self._source_work:
            return False
        lease = work.batches + self.course.left(control)
        length = plan.deadline_ms(control, self.uid, lease, self.replica.spec)
        usual = control.elche.ms_per_batch(self.uid)
        return length > 0.0 and elche.should_stop(self._busy_ms, usual, length, work.batches, lease)

    def _called_away(self) -> bool:
        """Whether to leave the window: an overlapped reduce has failed or a death was announced, so that others wait
        for this rank already; or they have gone on without it.
        """
        if self.cohort.left_behind():
            return True
        failed = self.course.sent is not None and self.flight is None
        return self.overlap and (failed or self.cohort.next_immediate() is not None)

    # --- between batches --------------------------------------------------------------------------------

    def _boundary(self) -> None:
        """Send the window in work and do what is due until there is a batch to train, or nothing any more."""
        while not self.over and (self._called_away() or not self._may_train()):
            self._say_leaving()
            self._check()
            if self.flight is not None:
                started = time.perf_counter()
                self.cohort.line.pulse.phase = wire.Phase.REDUCE  # no progress: it waits
                landed = self.flight.wait(NEWS_SECONDS)
                self._stalled_ms += (time.perf_counter() - started) * 1000.0
                if landed:
                    self._land()
                continue
            if self._switch_if_told():
                continue
            if self.cohort.group is None or self.packed is None:
                self.cohort.line.wait(NEWS_SECONDS)
                continue
            self._send()

    def _await_settled(self) -> None:
        """After the last window: wait until all have it, helping those who lack it.

        Returns too when there is more to train: a rank that the run had gone on without takes over what others hold.
        """
        self._phase(wire.Phase.WAIT)
        window = self.replica.control.window
        while max(self._settled, self.cohort.line.settled) < window and self.cohort.line.done is None:
            self.cohort.line.check()
            if not self._switch_if_told():
                self.cohort.line.wait(NEWS_SECONDS)
            elif not self.over:
                return
        self._settle(window)
        self._settled_end = True
