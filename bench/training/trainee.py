"""What all methods share: model, data, slowness and the counted step, so that they differ in nothing but the method."""

import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from bench.training.job import Job
from bench.training.marks import MarkFile, write_began
from bench.training.slowness import Burner
from bench.training.workloads import WORKLOADS, loss_of


class Trainee:
    """One rank's model and its data.

    Args:
        job: what it is told.
    """

    def __init__(self, job: Job) -> None:
        self.job = job
        self.workload = WORKLOADS[job.workload]
        self.device = torch.device("cuda", job.rank) if job.device == "cuda" else torch.device("cpu")
        torch.manual_seed(job.seed)
        self.model: nn.Module = self.workload.model().to(self.device)
        self.optimizer = self.workload.optimizer(self.model)
        self.burner = Burner(self.model, job)
        self.marks = MarkFile(Path(job.marks))
        self.samples = 0
        self.compute = 0.0
        self._loss = torch.zeros((), dtype=torch.float64, device=self.device)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Batches without end: this rank's stride of a permutation, gathered by index as fdl's loader does."""
        inputs, targets = torch.load(self.job.data)
        size, step = self.job.batch_size, self.job.batch_size * self.job.world
        epoch = 0
        write_began(Path(self.job.marks))
        while True:
            generator = torch.Generator().manual_seed(self.job.seed + epoch)
            order = torch.randperm(len(inputs), generator=generator)
            for start in range(self.job.rank * size, len(order) - size, step):
                rows = order[start : start + size]
                x, y = inputs.index_select(0, rows), targets.index_select(0, rows)
                yield x.to(self.device), y.to(self.device)
            epoch += 1

    def step(self, x: Tensor, y: Tensor, scale: float = 1.0) -> None:
        """One counted batch, and the extra work before it.

        Args:
            x: inputs.
            y: targets.
            scale: of the loss, for gradients that are averaged over unequal batches.
        """
        started = time.perf_counter()
        self.burner.burn(x, y)
        loss = loss_of(self.model, x, y)
        self._loss += loss.detach() * len(x)
        if scale != 1.0:
            loss = loss * scale
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # marks are moments of finished work
        self.compute += time.perf_counter() - started
        self.samples += len(x)

    def mark(self, *, comm: float = 0.0, compute: bool = True) -> None:
        """Everything so far is committed."""
        self.marks.write(
            samples=self.samples, compute=self.compute if compute else None, comm=comm, loss=self._loss.item()
        )
