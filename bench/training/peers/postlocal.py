"""PostLocalSGD as torch has it, from the first step on. Settings: ``every``: steps between averages."""

import time
from typing import Any

import torch
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.distributed.optim import PostLocalSGDOptimizer

from bench.training.job import Job
from bench.training.peers.group import join
from bench.training.trainee import Trainee


class _Timed(PeriodicModelAverager):
    """Books the seconds spent in averaging, the wait for other ranks included."""

    spent = 0.0

    def average_parameters(self, params: Any) -> None:
        """As the base class."""
        started = time.perf_counter()
        super().average_parameters(params)
        self.spent += time.perf_counter() - started


def train(job: Job) -> None:
    """Until killed."""
    join(job)
    trainee = Trainee(job)
    every = int(job.settings["every"])
    averager = _Timed(period=every, warmup_steps=0)
    inner: torch.optim.Optimizer = trainee.optimizer
    trainee.optimizer = PostLocalSGDOptimizer(optim=inner, averager=averager)
    for number, (x, y) in enumerate(trainee.batches()):
        before = averager.spent
        trainee.step(x, y)
        trainee.compute -= averager.spent - before
        if number % every == 0:  # the averager counts from 0, too
            trainee.mark(comm=averager.spent)
