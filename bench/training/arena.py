"""Runs slices: one method, one cohort, one workload, for some seconds."""

import contextlib
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from bench.training import fdl_slice
from bench.training.catalog import Method
from bench.training.cohorts import Cohort, Place, places
from bench.training.job import Job
from bench.training.machine import load_now
from bench.training.measure import Outcome, RankEndedError, SliceError, Timing, measure
from bench.training.quotas import QuotaError, quota_groups
from bench.training.rank import fork, preload
from bench.training.workloads import WORKLOADS
from tools.loopback import LoopbackError, Zygote, free_port

Dead = Callable[[], bool]


class Arena:
    """Runs slices one after another.

    Args:
        scratch: folder for files of slices; they are removed by :meth:`close`, but for those of failed slices.
        device: ``cpu`` or ``cuda``.
        packages: folders of peers' packages, by name.
    """

    def __init__(self, scratch: Path, device: str, packages: dict[str, str]) -> None:
        self._scratch = Path(tempfile.mkdtemp(prefix="bench-training-", dir=scratch))
        self._device, self._packages = device, packages
        self._zygote: Zygote | None = None
        self._number = 0
        preload()

    def close(self) -> None:
        """End what runs and remove what was written."""
        if self._zygote is not None:
            self._zygote.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def run(
        self,
        method: Method,
        cohort: Cohort,
        workload: str,
        timing: Timing,
        *,
        sizes: Sequence[int],
        seed: int,
        knobs: dict[str, Any] | None = None,
    ) -> Outcome:
        """One slice.

        Args:
            method: what runs.
            cohort: its ranks.
            workload: what they train.
            timing: how long.
            sizes: batch size, by rank.
            seed: of the model, the order and the jitter.
            knobs: of fdl.
        """
        self._number += 1
        folder = self._scratch / f"{self._number:04d}"
        folder.mkdir()
        where = self._places(cohort)
        chosen = list(range(cohort.ranks))
        if method.kind == "fastest":
            chosen = [min(chosen, key=lambda rank: (where[rank].factor, -(where[rank].quota or 0.0)))]
        before = load_now()
        try:
            with quota_groups([where[rank].quota for rank in chosen]) as groups:
                jobs = [
                    self._job(method, workload, folder, place=(where[rank], groups[number]), rank=number, seed=seed)
                    for number, rank in enumerate(chosen)
                ]
                jobs = _completed(jobs, [sizes[rank] for rank in chosen], cohort.jitter, method, folder)
                running = _fdl if method.kind == "fdl" else _forked
                with running(folder, method, jobs, knobs or {}, self._fork_server) as dead:
                    outcome = measure(method, jobs, cohort.swaps, timing, dead)
        except (RankEndedError, LoopbackError) as error:
            outcome = Outcome(method.name, str(error) + _last_words(folder))
        except (SliceError, QuotaError) as error:
            outcome = Outcome(method.name, str(error))
        outcome.load = load_now().since(before)
        shutil.rmtree(folder, ignore_errors=True)
        return outcome

    def _fork_server(self) -> Zygote:
        if self._zygote is None:
            self._zygote = Zygote(self._scratch)
        return self._zygote

    def _data(self, workload: str) -> Path:
        """The workload's data, made once: no rank's start waits for it."""
        path = self._scratch / f"{workload}.pt"
        if not path.exists():
            torch.save(WORKLOADS[workload].data(), path)
        return path

    def _places(self, cohort: Cohort) -> list[Place]:
        if self._device == "cpu":
            return places(cohort, sorted(os.sched_getaffinity(0)))
        later = cohort.slowness[::-1] if cohort.swaps else cohort.slowness
        return [Place(None, now, then) for now, then in zip(cohort.slowness, later, strict=True)]

    def _job(
        self, method: Method, workload: str, folder: Path, *, place: tuple[Place, Path | None], rank: int, seed: int
    ) -> Job:
        where, group = place
        return Job(
            kind="solo" if method.kind == "fastest" else method.kind,
            rank=rank,
            world=1,
            workload=workload,
            batch_size=1,
            factor=where.factor,
            later=where.factor_later,
            sigma=0.0,
            seed=seed,
            core=where.core,
            group=str(group or ""),
            clock=str(folder / "clock"),
            marks=str(folder / f"marks-{rank}.jsonl"),
            data=str(self._data(workload)),
            port=0,
            settings=dict(method.settings),
            packages=self._packages.get(method.package, ""),
            device=self._device,
        )


def _completed(jobs: list[Job], sizes: Sequence[int], jitter: float, method: Method, folder: Path) -> list[Job]:
    """The jobs with what they share: world, port, and settings that depend on all sizes.

    DDP takes the plain mean over the ranks of their gradients: with unequal batches each rank's loss is weighted by
    N b_i / sum of b, so that the mean is the gradient of the whole batch.
    """
    total, port, world = sum(sizes), free_port(), len(jobs)
    shared: dict[str, Any] = {}
    if method.kind == "torchft":
        shared["lighthouse"] = f"http://127.0.0.1:{port + world}"
    if method.kind == "hivemind":
        shared["address"] = str(folder / "address")
        shared["target"] = int(method.settings["target_batches"]) * max(sizes)
    return [
        replace(
            job,
            world=world,
            port=port,
            batch_size=size,
            sigma=jitter,
            settings={**job.settings, **shared, "weight": world * size / total},
        )
        for job, size in zip(jobs, sizes, strict=True)
    ]


@contextlib.contextmanager
def _fdl(
    folder: Path, method: Method, jobs: list[Job], knobs: dict[str, Any], zygote: Callable[[], Zygote]
) -> Iterator[Dead]:
    with fdl_slice.running(folder, (method.mode, knobs), jobs, zygote()) as run:
        yield lambda: fdl_slice.ended(run)


@contextlib.contextmanager
def _forked(
    folder: Path, method: Method, jobs: list[Job], knobs: dict[str, Any], zygote: Callable[[], Zygote]
) -> Iterator[Dead]:
    """Ranks as forks; ended with all that they started in their sessions."""
    del knobs, zygote
    processes: list[int] = []

    def dead() -> bool:
        return any(os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) for pid in processes)

    try:
        if method.kind == "torchft":
            house = replace(jobs[0], kind="lighthouse", core=None, group="", port=jobs[0].port + len(jobs))
            processes.append(fork(replace(house, marks=str(folder / "lighthouse")), folder / "lighthouse.log"))
        processes += [fork(job, folder / f"rank-{job.rank}.log") for job in jobs]
        yield dead
    finally:
        for pid in processes:
            for kill in (os.killpg, os.kill):  # the group is there once the fork has made its session
                with contextlib.suppress(ProcessLookupError):
                    kill(pid, signal.SIGKILL)
        for pid in processes:
            os.waitpid(pid, 0)


def _last_words(folder: Path) -> str:
    """The last line of each log, which mostly says why."""
    found = []
    for path in sorted(folder.glob("*.log")):
        rows = [row for row in path.read_text(errors="replace").splitlines() if row.strip()]
        if rows:
            found.append(f"{path.name}: {rows[-1].strip()[:300]}")
    return f" ({'; '.join(found)})" if found else ""
