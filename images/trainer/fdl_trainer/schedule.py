"""Any of torch's learning-rate schedulers, driven by committed samples instead of steps of this rank.

Ranks do different numbers of steps, and members come and go: only the samples that the run has committed are the same
for all. A rank that joins or resumes is brought to its place at the first batch.
"""

import warnings
from collections.abc import Callable

import torch
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau


class SampleSchedule:
    """One scheduler step each so many samples.

    Args:
        optimizer: fresh from its factory: its learning rates are those that the schedule starts from.
        factory: makes the scheduler.
        samples_per_step: samples that all ranks together train between two steps of the scheduler.

    Raises:
        ValueError: if ``samples_per_step`` is below 1.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        factory: Callable[[torch.optim.Optimizer], LRScheduler],
        samples_per_step: int,
    ) -> None:
        if samples_per_step < 1:
            raise ValueError(f"samples_per_step is {samples_per_step}; it must be at least 1")
        self._optimizer = optimizer
        self._factory = factory
        self._every = samples_per_step
        self._initial = [group["lr"] for group in optimizer.param_groups]
        self._scheduler: LRScheduler | None = None
        self._steps = 0

    def advance(self, samples: float) -> None:
        """Bring the learning rates to their place after this many samples of the run.

        Raises:
            TypeError: if the scheduler follows a metric, which differs from rank to rank.
        """
        scheduler = self._scheduler or self._start()
        with warnings.catch_warnings():
            # Torch counts the optimizer's steps of this process, which say nothing of the run's.
            warnings.filterwarnings("ignore", message="Detected call of `lr_scheduler.step")
            while self._steps < int(samples) // self._every:
                scheduler.step()
                self._steps += 1

    def _start(self) -> LRScheduler:
        # Not before: a checkpoint or a donor's state may have put its own rates into the optimizer meanwhile.
        for group, rate in zip(self._optimizer.param_groups, self._initial, strict=True):
            group["lr"] = rate
            group.pop("initial_lr", None)
        self._scheduler = self._factory(self._optimizer)
        if isinstance(self._scheduler, ReduceLROnPlateau):
            raise TypeError(
                "scheduler is a ReduceLROnPlateau, which follows a metric of this rank alone: use one that counts steps"
            )
        return self._scheduler
