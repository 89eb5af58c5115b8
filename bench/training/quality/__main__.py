"""``python -m bench.training.quality``: accuracy and loss at equal samples, fdl against the fastest device alone."""

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from bench.training import fdl_slice, machine
from bench.training.catalog import BY_NAME, Method, knobs_or_refusal
from bench.training.cohorts import COHORTS, places
from bench.training.job import Job
from bench.training.quality.tasks import ALONE, ALONE_WIDE, TASKS, Comparison, Task, compare
from bench.training.rank import fork, preload
from tools.loopback import LoopbackError, Zygote, wait_for

ROOT = Path(__file__).resolve().parents[3]
OUT = ROOT / "build" / "bench" / "quality"
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
        self._places = places(COHORTS[cohort], len(os.sched_getaffinity(0)))
        preload()
        self._zygote = Zygote(self._scratch)

    def close(self) -> None:
        """Remove everything."""
        self._zygote.close()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def alone(self, task: Task, seed: int, *, wide: bool = False) -> tuple[float, float]:
        """Figure and seconds of the fastest device alone; ``wide``: with the batches of all ranks as one."""
        fastest = min(range(len(self._places)), key=lambda rank: self._places[rank].factor)
        folder = self._folder()
        job = self._jobs(task, seed, folder)[fastest]
        size = task.batch_size * (len(self._places) if wide else 1)
        pid = fork(replace(job, kind="quality alone", world=1, batch_size=size), folder / "alone.log")
        try:
            wait_for(f"{task.name} alone", lambda: os.waitpid(pid, os.WNOHANG)[0], LIMIT)
        except BaseException:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
            raise
        return _read(Path(job.marks))

    def fdl(self, task: Task, method: Method, seed: int) -> tuple[float, float]:
        """Figure and seconds of a run of fdl's real runtime to its end."""
        knobs, _ = knobs_or_refusal(method)
        folder = self._folder()
        script = Path(__file__).with_name("script.py")
        jobs = self._jobs(task, seed, folder)
        with fdl_slice.running(folder, (method.mode, knobs or {}), jobs, self._zygote, script) as run:
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


def main() -> int:
    """0 when all was trained, whether or not margins are met."""
    parser = argparse.ArgumentParser(prog="python -m bench.training.quality", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--methods", default="fdl cpu-cadence,fdl cpu-async")
    parser.add_argument("--cohort", default="1:2.3", help="one whose slowness is extra work")
    parser.add_argument("--out", type=Path, default=OUT, help="folder for quality.json")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    methods, skipped = [], {}
    for name in options.methods.split(","):
        reason = knobs_or_refusal(BY_NAME[name])[1]
        if reason:
            skipped[name] = reason
            _say(f"left out: {name}: {reason}")
        else:
            methods.append(BY_NAME[name])
    workshop = Workshop(options.out, options.cohort)
    try:
        comparisons = [
            found
            for name in options.tasks.split(",")
            for found in _task(workshop, TASKS[name], methods, range(1, options.seeds + 1))
        ]
    finally:
        workshop.close()
    content = {
        "machine": machine.describe(),
        "cohort": options.cohort,
        "skipped": skipped,
        "comparisons": [{**asdict(one), "met": one.met} for one in comparisons],
    }
    (options.out / "quality.json").write_text(json.dumps(content, indent=1) + "\n")
    for one in comparisons:
        print(_line(one))
    return 0


def _task(workshop: Workshop, task: Task, methods: Sequence[Method], seeds: Sequence[int]) -> list[Comparison]:
    """Seed by seed, so that an interruption leaves pairs."""
    bases: dict[str, dict[int, tuple[float, float]]] = {ALONE: {}, ALONE_WIDE: {}}
    own: dict[str, dict[int, tuple[float, float]]] = {method.name: {} for method in methods}
    for seed in seeds:
        for name, found in bases.items():
            figure, seconds = found[seed] = workshop.alone(task, seed, wide=name == ALONE_WIDE)
            _say(f"{task.name} seed {seed}: {name} {figure:.4f} in {seconds:.0f} s")
        for method in methods:
            try:
                figure, seconds = own[method.name][seed] = workshop.fdl(task, method, seed)
            except LoopbackError as error:  # a member died: without it, the seed would compare something else
                _say(f"{task.name} seed {seed}: {method.name} has no figure: {error}")
                continue
            _say(f"{task.name} seed {seed}: {method.name} {figure:.4f} in {seconds:.0f} s")
    return [
        compare(task, name, against, [base[seed] for seed in found], list(found.values()))
        for name, found in own.items()
        if found
        for against, base in bases.items()
    ]


def _line(one: Comparison) -> str:
    scale, unit = (1.0, "pp") if TASKS[one.task].figure == "accuracy" else (100.0, "%")
    worse = one.worse
    return (
        f"{one.task:6s} {one.method:16s} against {one.against:12s} worse by {scale * worse.value:+.2f} {unit} "
        f"({scale * worse.low:+.2f} to {scale * worse.high:+.2f}, {worse.count} seeds), "
        f"allowed {scale * one.margin:.2f} {unit}: {'met' if one.met else 'MISSED'}; {one.speed_up:.2f} times as fast"
    )


def _say(sentence: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
