"""The user's script of fdl's slices: an ordinary training loop, and a tap on what the rank tells its coordinator.

``fdl_script.py FOLDER``; the rank's job is FOLDER/job-ORDINAL.json. Started by the rank of fdl's own runtime.
"""

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

import fdl_trainer
from bench.training import job as jobs
from bench.training.marks import MarkFile, write_began
from bench.training.quotas import settle
from bench.training.slowness import Burner
from bench.training.workloads import WORKLOADS, loss_of
from fdl_api import wire
from fdl_api.runconfig import MemberEnv
from fdl_trainer.averaging.wire import Wire
from fdl_trainer.control import Channel

TENSOR_BY_TENSOR = "tensor_by_tensor"
"""Setting of the ablation: one all-reduce for every tensor of the model, as code without a flat buffer has it."""
EPOCHS = 100_000
"""More than any slice trains."""


class Tap:
    """Turns the rank's reports of commits into marks: the contract on the wire, not the engine's inside.

    Args:
        file: for the marks; only the rank that reports the cohort's figures writes any.
        world: ranks.
    """

    def __init__(self, file: MarkFile, world: int) -> None:
        self._file = file
        self._samples, self._compute, self._data = [0] * world, [0.0] * world, [0.0] * world
        self._comm = 0.0
        self._windows = 0
        self._loss = 0.0

    def see(self, message: wire.Message) -> None:
        """Book a message."""
        if not isinstance(message, wire.WindowCommitted) or not message.ranks:
            return
        samples = sum(rank.samples for rank in message.ranks)
        self._loss += samples * (math.nan if message.loss is None else message.loss)
        for rank in message.ranks:
            ordinal = int(rank.uid.split("-")[2])  # uid-ATTEMPT-ORDINAL-INCARNATION, see tools.loopback
            self._samples[ordinal] += rank.samples
            self._compute[ordinal] += rank.compute_ms / 1000.0
            self._data[ordinal] += rank.data_wait_ms / 1000.0
        self._comm += message.reduce_ms / 1000.0
        self._windows += 1
        self._file.write(
            samples=self._samples,
            compute=self._compute,
            data=self._data,
            comm=self._comm,
            anchor=message.anchor,
            syncs=self._windows,
            loss=self._loss,
        )

    def install(self) -> None:
        """See all messages of this process."""
        send = Channel.send

        def tapped(channel: Channel, message: wire.Message, sticky: str = "") -> None:
            self.see(message)
            send(channel, message, sticky)

        Channel.send = tapped  # type: ignore[method-assign, assignment]


def main(session: fdl_trainer.Session) -> None:
    """Train until killed."""
    job = own_job()
    workload = WORKLOADS[job.workload]
    Tap(MarkFile(Path(job.marks)), job.world).install()
    if job.settings.get(TENSOR_BY_TENSOR):
        Wire.reduce = reduce_singly  # type: ignore[method-assign, assignment]
    session.setup(
        model=workload.model,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=workload.rate, momentum=0.9),
        dataset=torch.load(job.data),
        batch_size=job.batch_size,
        epochs=EPOCHS,
        seed=job.seed,
    )
    burner = Burner(session.model, job)
    for number, (x, y) in enumerate(session):
        if number == 0:
            write_began(Path(job.marks))
        burner.burn(x, y)
        loss = loss_of(session.model, x, y)
        session.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        session.optimizer.step()
        session.report(loss)


def reduce_singly(wire: Wire, all_reduce: Callable[[torch.Tensor], None]) -> None:
    """In the place of :meth:`Wire.reduce`: each tensor by itself, then what else the buffer holds. The same sums."""
    (main,) = wire.parts
    for tensor in wire.views:
        if tensor.numel():
            all_reduce(tensor)
    all_reduce(main[sum(tensor.numel() for tensor in wire.views) :])


def own_job() -> jobs.Job:
    """Of this rank."""
    return jobs.read(Path(sys.argv[1]) / f"job-{os.environ[MemberEnv.ORDINAL]}.json")


def place() -> None:
    """Move the rank and its agent, which share a pod, onto their core and into their group, before threads start."""
    job = own_job()
    for process in (os.getppid(), os.getpid()):
        settle(process, job.core, Path(job.group) if job.group else None)


if __name__ == "__main__":
    place()
    fdl_trainer.run(main)
