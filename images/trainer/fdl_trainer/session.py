"""The user's API: a :class:`Session` gives a script its model, its optimizer and its batches.

A script is ordinary PyTorch (docs/concepts/session.md)::

    def main(session):
        session.setup(model=Net, optimizer=lambda params: torch.optim.SGD(params, lr=0.05), dataset=train,
                      batch_size=64, epochs=2)
        for x, y in session:
            loss = F.cross_entropy(session.model(x), y)
            session.optimizer.zero_grad()
            loss.backward()
            session.optimizer.step()
            session.report(loss)
        session.evaluate(lambda model: {"accuracy": accuracy(model, test)})

    fdl_trainer.run(main)
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from fdl_api.reasons import Ended
from fdl_trainer.assembly import assemble
from fdl_trainer.conclusion import Conclusion, Evaluation
from fdl_trainer.ending import RunEndedError, user_code
from fdl_trainer.fit import Accumulator, Loss, require_function
from fdl_trainer.job import Job, Reading, Shard
from fdl_trainer.loader import Batch, DataError
from fdl_trainer.loop import Loop
from fdl_trainer.member import Member, place_of
from fdl_trainer.scaling import REASON, optimizer_step

log = logging.getLogger(__name__)


class Session(Conclusion):
    """One rank's part in a run. Made by :func:`fdl_trainer.run`, which hands it to the script.

    Args:
        member: this rank's place in a run; None trains alone in this process.
        solo_directory: where a solo run keeps checkpoints; None keeps none.
    """

    def __init__(self, member: Member | None = None, solo_directory: Path | None = None) -> None:
        super().__init__()
        self.device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
        self._member = member
        self._solo_directory = solo_directory
        self._optimizer: torch.optim.Optimizer | None = None
        self._accumulator: Accumulator | None = None
        self._batch: Batch | None = None
        self._taken = 0
        self._left = False
        self._skip_reasons: set[str] = set()

    def setup(
        self,
        *,
        model: Callable[[], nn.Module],
        optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
        dataset: Any,
        batch_size: int,
        epochs: int,
        seed: int = 0,
        collate: Callable[[list[Any]], Any] | None = None,
        workers: int = 0,
        on_sample_error: Literal["raise", "skip"] = "raise",
        resident: bool | None = None,
        shard: Shard | None = None,
    ) -> None:
        """Build model and optimizer, check the dataset, and ask the coordinator for a place.

        Args:
            model: makes the model; called once, with torch seeded by ``seed``.
            optimizer: makes the optimizer of the model's parameters.
            dataset: map-style (``__len__`` and ``__getitem__``), a ``TensorDataset``, or a tuple of tensors.
            batch_size: samples a batch on each rank.
            epochs: passes over the data that all ranks make together.
            seed: of initialisation and order.
            collate: makes a batch of a list of samples; torch's default when None.
            workers: processes on each rank that read samples; 0: a thread.
            on_sample_error: what to do about a sample that cannot be read or collated: end with a sentence, or leave it
                out and count it.
            resident: keep the whole dataset on the rank's device. None: tensors are, if memory allows; other datasets
                are read anew in each pass, since their samples may differ (augmentation).
            shard: ``shard(model, mesh)`` shards the model in place with FSDP2's ``fully_shard`` where a rank spans the
                devices of its member (docs/tasks/shard.md); not called elsewhere.
        """
        if self._model is not None:
            raise user_code(Ended.SCRIPT_RAISED, "session.setup was called twice; a script trains one model in a run.")
        reading = Reading(workers, on_sample_error, resident)
        self._begin(Job(model, optimizer, dataset, batch_size, epochs, seed, collate, reading, shard))

    def _begin(self, job: Job) -> None:
        self._loop, self._model = self._assemble(job)
        self._optimizer = self._loop.replica.optimizer
        self._loop.leaving = self._leave_asked
        self._accumulator = Accumulator(self._model, self.device, place_of(self._member))
        self._loop.cohort.line.start()

    def _assemble(self, job: Job) -> tuple[Loop, nn.Module]:
        return assemble(job, self._member, self.device, self._solo_directory)

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer. Its state is this rank's own."""
        return self._need(self._optimizer)

    @property
    def progress(self) -> float:
        """Share of the whole run's samples that are trained, 0..1, for learning-rate schedules.

        Committed samples, plus this rank's share of the window in work times the samples planned in it: all ranks
        are at the same place of the schedule, whatever their speed. A window begins at exactly the committed share,
        and a rank has gone i/q of the way through what is planned after i of its q batches, whatever their own sizes.
        Where ranks stop by time before all that is planned is done, the next window begins a little further back.
        """
        loop = self._need(self._loop)
        return min(1.0, self.samples / loop.replica.control.ledger.total)

    @property
    def samples(self) -> float:
        """Samples that the run has trained: :attr:`progress` as a count."""
        return self._need(self._loop).samples()

    @property
    def rank(self) -> int:
        """Place of this rank in the present membership epoch; it changes when members come and go."""
        return self._need(self._loop).cohort.rank

    @property
    def world_size(self) -> int:
        """Ranks of the present membership epoch."""
        return len(self._need(self._loop).cohort.members)

    @property
    def is_writer(self) -> bool:
        """Whether this rank writes the final checkpoint and evaluates."""
        return self._need(self._loop).is_speaker

    def __iter__(self) -> Iterator[Any]:
        """This rank's batches, as the dataset's collate function makes them, until the run is complete."""
        loop = self._need(self._loop)
        self.trained = True
        try:
            for batch in loop.batches():
                self._batch, self._taken, self._left = batch, 0, False
                yield self._hand_out(batch)
                if self._steps_once:
                    self._require_one_step()
        except DataError as error:
            self._ended = user_code(Ended.SCRIPT_RAISED, str(error), data=True)
            raise self._ended from error
        except RunEndedError as ended:
            self._ended = ended
            raise
        self._batch = None
        self.complete = True

    def _hand_out(self, batch: Batch) -> Any:
        """What the script is given of a batch."""
        return batch.data

    @property
    def _steps_once(self) -> bool:
        """Whether each batch is to be given to :meth:`step`, or to :meth:`skip`, once."""
        return self._need(self._loop).replica.model.gradients is not None

    def report(self, loss: torch.Tensor) -> None:
        """Report a batch's mean loss. It stays on its device; nothing waits for it before the window's end."""
        loop = self._need(self._loop)
        if self._batch is None:
            raise user_code(Ended.SCRIPT_RAISED, "session.report was called outside of the loop over the session.")
        loop.work.report(loss, self._batch.samples)

    def skip(self, reason: str) -> None:
        """Say that the batch in hand was trained to no use, as a step that an fp16 ``GradScaler`` left out::

            scale = scaler.get_scale()
            scaler.step(session.optimizer)
            scaler.update()
            if scaler.get_scale() < scale:
                session.skip("fp16 overflow")

        (:meth:`step` does this by itself.) Its samples count as consumed and weigh nothing in the average; the run's
        state says how many they are.

        Args:
            reason: for the log, which has each reason once.
        """
        loop = self._need(self._loop)
        if self._batch is None:
            raise user_code(Ended.SCRIPT_RAISED, "session.skip was called outside of the loop over the session.")
        loop.work.skip()
        self._left = True
        if reason not in self._skip_reasons:
            self._skip_reasons.add(reason)
            log.warning("a batch of %d samples does not count: %s", self._batch.samples, reason)

    def step(
        self,
        loss: Loss,
        *,
        clip_norm: float | None = None,
        micro_batch: int | None = None,
        scaler: torch.amp.GradScaler | None = None,
    ) -> torch.Tensor:
        """Train the batch in hand: gradients, optimizer step, report. The step is of the whole batch on any device.

        Where the batch does not fit into the device's memory, the largest part that does is found at the first batch,
        is logged, and the gradients of such parts are added up (:mod:`fdl_trainer.fit`).

        Args:
            loss: mean loss over the samples of the batch it is given, which may be a part of this one; called anew with
                smaller parts when memory runs out.
            clip_norm: largest norm of the step's gradient.
            micro_batch: samples at a time to begin with; the whole batch when None.
            scaler: for fp16: scales the loss, unscales the gradients before they are clipped, and leaves the step out
                where they overflowed; the batch is skipped then, as by :meth:`skip`. One scaler a rank, made for the
                type of its device. Its scale is the rank's own: it is neither averaged nor in checkpoints, and a rank
                that joins finds its own within a few steps.

        Returns:
            The batch's mean loss (not scaled), on its device.
        """
        loop, accumulator = self._need(self._loop), self._need(self._accumulator)
        if self._batch is None:
            raise user_code(Ended.SCRIPT_RAISED, "session.step was called outside of the loop over the session.")
        require_function(loss)
        if micro_batch is not None and micro_batch < 1:
            raise user_code(
                Ended.SCRIPT_RAISED, f"micro_batch of session.step is {micro_batch}; it must be at least 1."
            )
        if micro_batch is not None:
            accumulator.limit = min(micro_batch, accumulator.limit or micro_batch)
        self.optimizer.zero_grad()
        scale = scaler.scale if scaler is not None else None
        value = accumulator.gradients(loss, self._batch.data, self._batch.samples, scale)
        left_out: bool | torch.Tensor | None
        gradients = loop.replica.model.gradients
        if gradients is not None:
            left_out = gradients.add(self._batch.samples, clip_norm=clip_norm, scaler=scaler)
        else:
            left_out = optimizer_step(self.model, self.optimizer, clip_norm=clip_norm, scaler=scaler)
        self._taken += 1
        if isinstance(left_out, torch.Tensor):
            loop.work.skip_if(left_out)
        elif left_out:
            self.skip(REASON)
        loop.work.report(value, self._batch.samples)
        return value

    def evaluate(self, evaluation: Evaluation) -> None:
        """Evaluate the final model: on one rank, after the last commit.

        Args:
            evaluation: is given the model in evaluation mode, without gradients, and returns named figures. It is kept:
                if the rank that evaluates dies, another one does it.
        """
        self._evaluation = evaluation
        loop = self._need(self._loop)
        if self.complete and loop.final and loop.is_speaker:
            self._evaluate(loop, evaluation)

    def _require_one_step(self) -> None:
        """Where gradients are averaged, each batch is given to :meth:`step` or to :meth:`skip`, once."""
        if self._taken + self._left != 1:
            raise user_code(
                Ended.SCRIPT_RAISED,
                f"The script gave a batch {self._taken} times to session.step"
                f"{' and also to session.skip' if self._left else ''}, and spec.elche.average is gradients: call "
                "session.step(loss) once for each batch, or session.skip, or set spec.elche.average to parameters.",
            )
