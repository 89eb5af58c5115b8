"""Where trainings of a quality run happen: one after another, on cores of their own."""

import contextlib
import json
import os
import shutil
import signal
import tempfile
from dataclasses import replace
from pathlib import Path

import torch

from bench.training import fdl_slice
from bench.training.cohorts import COHORTS, places
from bench.training.job import Job
from bench.training.quality.settings import GRADIENTS, RATE, Baseline, Setting
from bench.training.quality.tasks import Task
from bench.training.rank import fork, preload
from tools.loopback import LoopbackError, Zygote, wait_for

LIMIT = 1800.0
"""Seconds for one training."""


class Workshop:
    """Trains one model after another.

    Args:
        scratch: folder; removed by :meth:`close`.
        cohort: a key of :data:`bench.training.cohorts.COHORTS`.
    """

    def __init__(self, scratch: Path, cohort: str) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="quality-", dir=scratch))
        self._places = places(COHORTS[cohort], sorted(os.sched_getaffinity(0)))
        preload()
        self._zygote = Zygote(self._scratch)

    def close(self) -> None:
        """Remove everything."""
        self._zygote.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def alone(self, task: Task, base: Baseline, seed: int) -> tuple[float, float]:
        """Figure and seconds of the fastest device alone.

        Args:
            task: what is trained.
            base: its batch and rate.
            seed: of model and order.
        """
        fastest = min(range(len(self._places)), key=lambda rank: self._places[rank].factor)
        folder = self._folder()
        job = self._jobs(task, seed, folder)[fastest]
        size = base.batch_size(task.batch_size, len(self._places))
        job = replace(job, kind="quality alone", world=1, batch_size=size, settings={RATE: base.rate})
        pid = fork(job, folder / "alone.log")
        try:
            wait_for(f"{task.name} alone", lambda: os.waitpid(pid, os.WNOHANG)[0], LIMIT)
        except BaseException:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            raise
        return _read(Path(job.marks))

    def fdl(self, task: Task, mode: str, setting: Setting, seed: int) -> tuple[float, float]:
        """Figure and seconds of a run of fdl's real runtime to its end.

        Args:
            task: what is trained.
            mode: of the run.
            setting: of fdl.
            seed: of model and order.

        Raises:
            LoopbackError: a member died.
        """
        folder = self._folder()
        script = Path(__file__).with_name("script.py")
        size = setting.batch_size(task.batch_size)
        told = {RATE: setting.rate, GRADIENTS: setting.knobs.get("average") == "gradients"}
        jobs = [replace(job, batch_size=size, settings=told) for job in self._jobs(task, seed, folder)]
        with fdl_slice.running(folder, (mode, setting.knobs), jobs, self._zygote, script) as run:
            for member in run.members:
                if code := member.wait(LIMIT):
                    raise LoopbackError(f"{member.name} ended with {code}:\n{member.tail()}")
        return _read(folder / "figure.json")

    def _folder(self) -> Path:
        return Path(tempfile.mkdtemp(dir=self._scratch))

    def _jobs(self, task: Task, seed: int, folder: Path) -> list[Job]:
        data = self._scratch / f"{task.name}.pt"
        if not data.exists():
            torch.save(task.train(), data)
        return [
            Job(
                kind="fdl",
                rank=rank,
                world=len(self._places),
                workload=task.name,
                batch_size=task.batch_size,
                factor=place.factor,
                later=place.factor_later,
                sigma=0.0,
                seed=seed,
                core=place.core,
                group="",
                clock=str(folder / "clock"),
                marks=str(folder / f"figure-{rank}.json"),
                data=str(data),
                port=0,
            )
            for rank, place in enumerate(self._places)
        ]


def _read(path: Path) -> tuple[float, float]:
    found = json.loads(path.read_text())
    return float(found["figure"]), float(found["seconds"])
