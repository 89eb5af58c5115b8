"""How a session ends: the last checkpoint, the evaluation, and the coordinator's Done."""

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from fdl_api import wire
from fdl_api.reasons import Ended
from fdl_api.termination import Saved
from fdl_trainer.ending import RunEndedError, user_code
from fdl_trainer.loop import Loop
from fdl_trainer.saving import Saver

Evaluation = Callable[[nn.Module], dict[str, float]]
T = TypeVar("T")


class Conclusion:
    """The part of a session that :func:`fdl_trainer.run` uses: it sees the run through, whatever the script does.

    Attributes:
        trained: the script has begun its loop.
        complete: its loop is over, since the run is.
        saved: what became of the work; None before the end.
        metrics: figures of the evaluation.
    """

    def __init__(self) -> None:
        self.trained = False
        self.complete = False
        self.saved: Saved | None = None
        self.metrics: dict[str, float] = {}
        self._model: nn.Module | None = None
        self._loop: Loop | None = None
        self._evaluation: Evaluation | None = None
        self._concluded_epoch = 0
        self._final_taken = False
        self._leave_asked = False
        self._ended: RunEndedError | None = None

    @property
    def model(self) -> nn.Module:
        """The model. Its parameters change in place when a window commits, between two batches."""
        return self._need(self._model)

    def ask_to_leave(self) -> bool:
        """SIGTERM: finish the batch, be counted, and go. Only sets flags, so that a signal handler may call it.

        Returns:
            False when the session has no part in the training yet: there is nothing to finish.
        """
        self._leave_asked = True
        if self._loop is None or not self.trained:
            return False
        self._loop.leaving = True
        return True

    @property
    def last_window(self) -> int | None:
        """Last committed window, for the last words."""
        return self._loop.replica.control.window if self._loop is not None else None

    def finish(self) -> wire.Done:
        """Save, evaluate, and wait until the coordinator says Done.

        Raises:
            RunEndedError: the run ended in another way than complete, or the script never trained.
        """
        if self._ended is not None:
            raise self._ended  # the script caught it
        if self._loop is None or not self.trained:
            raise user_code(
                Ended.SCRIPT_NEVER_TRAINED,
                "The script ended without training: it must call session.setup and loop over the session "
                "(for x, y in session: ...).",
            )
        if not self.complete:
            raise user_code(
                Ended.SCRIPT_EXITED,
                "The script left the loop over the session before the run was complete: let the loop end by itself.",
            )
        last = self._loop.until_done(self._conclude)
        if last.exit_code != 0:
            raise self._loop.end(last)
        self.saved = self._loop.kept(last)
        return last

    def close(self) -> None:
        """Drop the line to the coordinator."""
        if self._loop is not None:
            if self._loop.saver is not None:
                self._loop.saver.close()
            self._loop.loader.close()
            self._loop.cohort.line.close()

    # --- the end of a run -------------------------------------------------------------------------------

    def _conclude(self) -> None:
        """What this rank has to do at the end. Once an epoch: if the writer dies, the next one begins anew."""
        loop = self._need(self._loop)
        assert loop.cohort.epoch is not None
        epoch = loop.cohort.epoch.epoch
        if self._concluded_epoch == epoch or loop.cohort.group is None:
            return
        saved = Saved.COMMITTED  # of what another rank writes, this one does not know
        if loop.is_writer and loop.saver is not None:
            saved = Saved.SAVED if self._save_last(loop, loop.saver) else Saved.INCOMPLETE
        if loop.final and loop.is_speaker and self._evaluation is not None and not self.metrics:
            self._evaluate(loop, self._evaluation)
        self._concluded_epoch = epoch
        loop.reporter.finished(epoch, loop.replica.control.window, saved)

    def _save_last(self, loop: Loop, saver: Saver) -> bool:
        loop.cohort.line.pulse.phase = wire.Phase.CHECKPOINT
        if loop.final and not self._final_taken:
            loop.save(final=True)
            self._final_taken = True
        saver.settle(loop.replica.control.window)
        return saver.finish(loop.cohort.line.check)

    def _evaluate(self, loop: Loop, evaluation: Evaluation) -> None:
        loop.cohort.line.pulse.phase = wire.Phase.EVALUATE
        figures = self._figures(evaluation)
        self.metrics = {str(name): float(value) for name, value in figures.items()}
        loop.cohort.line.send(wire.Evaluated(metrics=self.metrics), sticky="evaluated")

    def _figures(self, evaluation: Evaluation) -> dict[str, float]:
        was_training = self.model.training
        self.model.eval()
        try:
            with torch.no_grad():
                return evaluation(self.model)
        finally:
            self.model.train(was_training)

    @staticmethod
    def _need(value: T | None) -> T:
        if value is None:
            raise user_code(Ended.SCRIPT_RAISED, "session.setup must be called before anything else of the session.")
        return value
