"""How a rank is slowed: extra work here, a CPU quota in :mod:`bench.training.quotas`."""

import copy
import math
import mmap
import os
import random
import struct
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from bench.training.job import Job
from bench.training.workloads import loss_of

_CLOCK = struct.Struct("d")


class Clock:
    """The moment at which speeds swap, in a file that all ranks of a slice have mapped. 0 is: not known yet."""

    def __init__(self, path: Path) -> None:
        # All ranks come here at once: whoever is first makes the file, and nobody empties it, not even for a moment.
        with path.open("ab+") as file:
            os.ftruncate(file.fileno(), _CLOCK.size)
            self._map = mmap.mmap(file.fileno(), _CLOCK.size)

    def set(self, moment: float) -> None:
        """Name the moment, on the monotonic clock."""
        _CLOCK.pack_into(self._map, 0, moment)

    def passed(self) -> bool:
        """Whether it is over."""
        moment: float = _CLOCK.unpack_from(self._map, 0)[0]
        return 0.0 < moment <= time.monotonic()


def extra(factor: float, batch: int) -> tuple[int, int]:
    """Whole extra passes and samples of a last partial one that make a batch cost ``factor`` passes.

    A partial pass has two samples at least: BatchNorm needs two.
    """
    more = max(0.0, factor - 1.0)
    whole = math.floor(more)
    part = round((more - whole) * batch)
    if part >= batch:
        return whole + 1, 0
    return whole, part if part >= 2 else 0


def jitter_factor(draw: random.Random, sigma: float) -> float:
    """A lognormal factor with mean 1."""
    return draw.lognormvariate(-sigma * sigma / 2.0, sigma) if sigma > 0.0 else 1.0


class Burner:
    """Does real forward and backward passes that count for nothing.

    Args:
        model: is copied; the copy is never stepped and belongs to no wrapper.
        job: passes per batch before and after the swap, and the sigma of the jitter. Jitter scales the cost of a batch,
            doubled before, but not below the counted pass.
    """

    def __init__(self, model: nn.Module, job: Job) -> None:
        self._model = copy.deepcopy(model)
        self._factor, self._later, self._sigma = job.factor, job.later, job.sigma
        self._clock = Clock(Path(job.clock))
        self._draw = random.Random(1000 * job.seed + job.rank)  # noqa: S311 - a workload, not secrets

    def burn(self, x: Tensor, y: Tensor) -> None:
        """The extra work of one batch."""
        factor = self._later if self._clock.passed() else self._factor
        if self._sigma > 0.0:
            # Twice the work for everybody, so that a fast rank can be early, too, and not only late.
            factor = 2.0 * factor * jitter_factor(self._draw, self._sigma)
        whole, part = extra(factor, len(x))
        for _ in range(whole):
            self._pass(x, y)
        if part:
            self._pass(x[:part], y[:part])

    def _pass(self, x: Tensor, y: Tensor) -> None:
        torch.autograd.backward(loss_of(self._model, x, y))
        for parameter in self._model.parameters():
            parameter.grad = None
