"""``python -m bench.training.quality``: accuracy and loss at equal samples, fdl against the fastest device alone.

``--parallel`` trains as many models at once as the machine has cores for, each on cores of its own. ``--merge`` puts
results of several calls together, of other seeds or settings.
"""

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from bench.training import machine
from bench.training.catalog import BY_NAME, knobs_or_refusal
from bench.training.cohorts import COHORTS
from bench.training.quality import crew, results
from bench.training.quality.results import Training
from bench.training.quality.settings import BASELINES, SETTINGS, Baseline, Setting
from bench.training.quality.tasks import TASKS, Task
from bench.training.quality.workshop import Workshop
from tools.loopback import LoopbackError

ROOT = Path(__file__).resolve().parents[3]
OUT = ROOT / "build" / "bench" / "quality"


def main() -> int:
    """0 when all was trained, whether or not margins are met; 1 when a result could not be merged."""
    options = _options()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.merge:
        try:
            head, trainings = results.merged(options.merge)
        except (OSError, ValueError, KeyError) as error:
            _say(f"not merged: {error}")
            return 1
    else:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        head, trainings = _side_by_side(options) if options.parallel else _measured(options)
    for one in results.write(options.out, head, trainings, list(BASELINES)):
        print(results.line(one))
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.training.quality", description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--methods", default="fdl cpu-cadence,fdl cpu-async", help="by comma")
    parser.add_argument("--settings", help=f"of fdl, by comma; each task's own when left out. {_told(SETTINGS)}")
    parser.add_argument("--baselines", help=f"by comma; each task's own when left out. {_told(BASELINES)}")
    parser.add_argument("--cohort", default="1:2.3", help="one whose slowness is extra work")
    parser.add_argument("--cores", help="numbers by comma; all that this process may use when left out")
    parser.add_argument("--parallel", action="store_true", help="several trainings at once, each on its own cores")
    parser.add_argument("--merge", nargs="+", type=Path, metavar="FILE", help="train nothing; put these together")
    parser.add_argument("--out", type=Path, default=OUT, help="folder for quality.json")
    return parser.parse_args()


def _told(what: Mapping[str, Setting | Baseline]) -> str:
    return "; ".join(f"{one.name}: {one.about}" for one in what.values()).replace("%", "%%")


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _numbers(text: str) -> list[int]:
    return [int(number) for number in _names(text)]


def _chosen(options: argparse.Namespace, task: Task) -> tuple[list[Baseline], list[Setting]]:
    """What the task is trained with."""
    bases = task.baselines if options.baselines is None else _names(options.baselines)
    settings = task.settings if options.settings is None else _names(options.settings)
    return [BASELINES[name] for name in bases], [SETTINGS[name] for name in settings]


def _rounds(options: argparse.Namespace) -> Iterator[tuple[Task, int]]:
    """Seed by seed, so that an interruption leaves pairs."""
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    return ((TASKS[name], seed) for name, seed in product(_names(options.tasks), seeds))


def _measured(options: argparse.Namespace) -> tuple[dict[str, Any], list[Training]]:
    """Head and trainings, one after another."""
    torch.set_num_threads(1)
    if options.cores:
        os.sched_setaffinity(0, _numbers(options.cores))
    modes, skipped = _modes(_names(options.methods))
    workshop = Workshop(options.out, options.cohort)
    trainings: list[Training] = []
    try:
        for task, seed in _rounds(options):
            bases, settings = _chosen(options, task)
            for base in bases:
                trainings += _trained(task, base.name, seed, partial(workshop.alone, task, base))
            for method, mode, setting in _pairs(modes, settings):
                label = f"{method}, {setting.name}"
                trainings += _trained(task, label, seed, partial(workshop.fdl, task, mode, setting))
    finally:
        workshop.close()
    return {"machine": machine.describe(), "cohort": options.cohort, "skipped": skipped}, trainings


def _side_by_side(options: argparse.Namespace) -> tuple[dict[str, Any], list[Training]]:
    """Head and trainings, several at once.

    Raises:
        SystemExit: there are not enough cores for one, or nothing was trained.
    """
    modes, skipped = _modes(_names(options.methods))
    cores = _numbers(options.cores) if options.cores else sorted(os.sched_getaffinity(0))
    sets = crew.core_sets(cores, {core: crew.siblings_of(core) for core in cores}, COHORTS[options.cohort].ranks)
    items = []
    for task, seed in _rounds(options):
        bases, settings = _chosen(options, task)
        items += [crew.Item(seed, task.name, baseline=base.name) for base in bases]
        items += [crew.Item(seed, task.name, method=one, setting=two.name) for one, _, two in _pairs(modes, settings)]
    if not sets:
        sys.exit(f"{len(cores)} cores are not enough for the ranks of {options.cohort}; leave --parallel out")
    _say(f"{len(items)} trainings, {len(sets)} at once on cores {sets}")
    files = crew.work(items, sets, options.out, ["--cohort", options.cohort], _say)
    if not files:
        sys.exit("nothing was trained; the reasons are above")
    head, trainings = results.merged(files)
    return {**head, "machine": machine.describe(), "skipped": skipped, "at_once": len(sets)}, trainings


def _modes(methods: Sequence[str]) -> tuple[dict[str, str], dict[str, str]]:
    """Modes by method, and why others are left out."""
    modes, skipped = {}, {}
    for name in methods:
        reason = knobs_or_refusal(BY_NAME[name])[1]
        if reason:
            skipped[name] = reason
            _say(f"left out: {name}: {reason}")
        else:
            modes[name] = BY_NAME[name].mode
    return modes, skipped


def _pairs(modes: Mapping[str, str], settings: Sequence[Setting]) -> Iterator[tuple[str, str, Setting]]:
    """Method, mode and setting of fdl's trainings."""
    for setting in settings:
        for method, mode in modes.items():
            if mode in setting.modes:
                yield method, mode, setting


def _trained(task: Task, label: str, seed: int, train: Callable[[int], tuple[float, float]]) -> list[Training]:
    """The training, or none when a member died: without it, the seed would compare something else."""
    try:
        figure, seconds = train(seed)
    except LoopbackError as error:
        _say(f"{task.name} seed {seed}: {label} has no figure: {error}")
        return []
    _say(f"{task.name} seed {seed}: {label} {figure:.4f} in {seconds:.0f} s")
    return [Training(task.name, label, seed, figure, seconds)]


def _say(sentence: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
