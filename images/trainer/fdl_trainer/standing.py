"""Where one rank stands: what it holds, what it was told, and the few things that every step of the loop may do."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fdl_api import wire
from fdl_api.reasons import Ended
from fdl_api.termination import Saved
from fdl_trainer.audit import AuditLog
from fdl_trainer.averaging import Wire
from fdl_trainer.cohort import Cohort
from fdl_trainer.course import Course
from fdl_trainer.ending import RunEndedError, done, kept
from fdl_trainer.flight import Flight
from fdl_trainer.loader import Loader
from fdl_trainer.progress import Reporter
from fdl_trainer.replica import Replica
from fdl_trainer.saving import Saver
from fdl_trainer.work import WindowWork


@dataclass
class Standing:
    """The state of one rank's training. The window loop is built on it in three layers (:mod:`fdl_trainer.loop`).

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
        course: the work that is not committed yet.
        packed: the epoch's wire buffer; None between epochs, and while an abandoned operation owns it.
        flight: the reduce under way, if any.
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
    course: Course = field(init=False)
    packed: Wire | None = None
    flight: Flight | None = None
    _checkpoint_wanted: bool = False
    _started: bool = False
    _leave_said: bool = False
    _settled: int = 0

    def __post_init__(self) -> None:
        self.course = Course(self.uid)

    @property
    def work(self) -> WindowWork:
        """What was done in the window that is being trained."""
        return self.course.work

    @property
    def overlap(self) -> bool:
        """Whether training goes on while an average is made."""
        return self.replica.spec.overlap

    @property
    def final(self) -> bool:
        """Whether every sample is behind the run."""
        return self.replica.control.finished

    @property
    def over(self) -> bool:
        """Whether there is nothing more to train."""
        return self.final or self.replica.stopped

    @property
    def is_writer(self) -> bool:
        """Whether this rank writes the checkpoints of the present epoch."""
        return self.saver is not None and self.cohort.group is not None and self.replica.writer == self.cohort.rank

    @property
    def is_speaker(self) -> bool:
        """Whether this rank evaluates at the end: the writer, or the lowest rank when nobody writes."""
        return self.is_writer or (self.replica.writer is None and self.cohort.rank == 0)

    def samples(self) -> float:
        """Samples that the run has behind it, and of each open window this rank's part of what is planned in it.

        Where a window is one step, the step is at the window's beginning.
        """
        if self.replica.model.gradients is not None:
            return float(self.replica.control.consumed)
        return self.course.samples(self.replica.control)

    def save(self, *, final: bool = False) -> None:
        """Hand a copy of the committed state to the writer."""
        assert self.saver is not None
        self.saver.take(self.replica, self.state_extra(), final=final)

    def kept(self, last: wire.Done) -> Saved:
        """What became of this rank's work, for its last words."""
        durable = self.saver.saved_window if self.saver is not None else -1
        return kept(last.saved, durable, self.replica.control.window)

    def end(self, last: wire.Done) -> RunEndedError:
        """The coordinator's Done as this rank's end."""
        return done(last.exit_code, last.reason, last.message, self.kept(last), self.replica.control.window)

    def _asked_to_end(self) -> bool:
        """Whether to train no further batch."""
        line = self.cohort.line
        told = line.stop is not None or line.ended is not None or line.done is not None
        return self.leaving or told or self.replica.control.draining

    def _say_leaving(self) -> None:
        if self.leaving and not self._leave_said:
            self._leave_said = True
            self.cohort.line.send(wire.Leave(reason=Ended.PREEMPTED), sticky="leave")

    def _settle(self, window: int) -> None:
        self._settled = max(self._settled, window)
        if self.saver is not None:
            self.saver.settle(max(self._settled, min(self.cohort.line.settled, self.replica.control.window)))

    def _check(self) -> None:
        """Raise this rank's end, if it has come."""
        line = self.cohort.line
        line.check()
        if line.done is not None:
            raise self.end(line.done)

    def _phase(self, phase: wire.Phase) -> None:
        self.cohort.line.pulse.phase = phase
        self.cohort.line.pulse.progress += 1
