"""A training in one call, for scripts whose loop has nothing of its own: thin over :class:`fdl_trainer.Session`."""

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from fdl_trainer.conclusion import Evaluation
from fdl_trainer.launch import run
from fdl_trainer.schedule import SampleSchedule
from fdl_trainer.session import Session

_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class Trainer:
    """Trains a model: ``Trainer(model=..., optimizer=..., dataset=..., loss=..., batch_size=..., epochs=...).fit()``.

    Override :meth:`on_start`, :meth:`on_batch` and :meth:`on_end` for what the arguments do not say; hooks on modules,
    tensors and the optimizer work as in any PyTorch script.

    Args:
        model: makes the model.
        optimizer: makes the optimizer of the model's parameters.
        dataset, batch_size, epochs: as for ``session.setup``, and so are all further arguments (``**setup``).
        loss: mean loss of a batch, ``loss(model, batch)``; called with parts of a batch where a whole one does not fit.
        precision: ``"fp32"``, or ``"bf16"`` or ``"fp16"`` for autocast of the forward pass; fp16 has a gradient scaler,
            and batches whose gradients overflow are skipped.
        clip_norm: largest norm of the gradient of a step.
        scheduler: makes a scheduler of the optimizer, driven by committed samples.
        samples_per_scheduler_step: samples of all ranks between two of its steps; ``batch_size`` when None: then it
            counts the steps that one device alone would make.
        compile: compile the model with ``torch.compile``.
        evaluate: figures of the final model.

    Raises:
        ValueError: if ``precision`` is unknown.
    """

    def __init__(
        self,
        *,
        model: Callable[[], nn.Module],
        optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
        dataset: Any,
        loss: Callable[[Any, Any], torch.Tensor],
        batch_size: int,
        epochs: int,
        precision: Literal["fp32", "bf16", "fp16"] = "fp32",
        clip_norm: float | None = None,
        scheduler: Callable[[torch.optim.Optimizer], LRScheduler] | None = None,
        samples_per_scheduler_step: int | None = None,
        compile: bool = False,  # noqa: A002 - the word of torch
        evaluate: Evaluation | None = None,
        **setup: Any,
    ) -> None:
        if precision not in ("fp32", *_AUTOCAST):
            raise ValueError(f'precision is "{precision}"; it must be "fp32", "bf16" or "fp16"')
        self._setup = {
            "model": model,
            "optimizer": self._with_schedule(optimizer),
            "dataset": dataset,
            "batch_size": batch_size,
            "epochs": epochs,
            **setup,
        }
        self._loss = loss
        self._dtype = _AUTOCAST.get(precision)
        self._clip_norm = clip_norm
        self._scheduler = scheduler
        self._every = samples_per_scheduler_step or batch_size
        self._compile = compile
        self._evaluation = evaluate
        self._schedule: SampleSchedule | None = None

    def fit(self) -> None:
        """Train to the end of the run: :func:`fdl_trainer.run` of this trainer's loop."""
        run(self.main)

    def main(self, session: Session) -> None:
        """The loop, for a script that calls :func:`fdl_trainer.run` itself."""
        session.setup(**self._setup)
        model = torch.compile(session.model) if self._compile else session.model
        fp16 = self._dtype is torch.float16
        scaler = torch.amp.GradScaler(session.device.type) if fp16 else None
        self.on_start(session)

        def loss(batch: Any) -> torch.Tensor:
            with self._precision(session.device):
                return self._loss(model, batch)

        for batch in session:
            if self._schedule is not None:
                self._schedule.advance(session.samples)
            self.on_batch(session, batch, session.step(loss, clip_norm=self._clip_norm, scaler=scaler))
        self.on_end(session)
        if self._evaluation is not None:
            session.evaluate(self._evaluation)

    def on_start(self, session: Session) -> None:
        """Called once, when model and optimizer are there."""

    def on_batch(self, session: Session, batch: Any, loss: torch.Tensor) -> None:
        """Called after each step of this rank; ``loss`` is on the device, and reading it waits for that."""

    def on_end(self, session: Session) -> None:
        """Called once, after the last batch of the run."""

    def _with_schedule(
        self, optimizer: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
    ) -> Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]:
        def make(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
            made = optimizer(parameters)
            if self._scheduler is not None:
                self._schedule = SampleSchedule(made, self._scheduler, self._every)
            return made

        return make

    def _precision(self, device: torch.device) -> contextlib.AbstractContextManager[Any]:
        return torch.autocast(device.type, self._dtype) if self._dtype is not None else contextlib.nullcontext()
