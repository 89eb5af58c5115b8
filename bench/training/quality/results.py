"""What was trained, how it compares, and how shares of one measurement are put together. Pure but for reading."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.training.quality.tasks import TASKS, Task
from bench.training.stats import Interval, mean_interval

FILE = "quality.json"


@dataclass(frozen=True, slots=True)
class Training:
    """One training to its end.

    Attributes:
        task: its name.
        name: a baseline, or a method of fdl and its setting.
        seed: of model and order.
        figure: the task's, on its held-out set.
        seconds: from the first batch to the last.
    """

    task: str
    name: str
    seed: int
    figure: float
    seconds: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """One configuration of fdl against a device alone, paired by seed.

    Attributes:
        task: name.
        name: of the trainings that are judged.
        against: of those that they are compared with.
        seeds: that both have.
        alone: figures by seed.
        own: figures by seed.
        worse: mean of how much worse, with its interval, in the unit of the margin.
        margin: how much worse it may be.
        speed_up: mean of the time alone over the time of fdl.
    """

    task: str
    name: str
    against: str
    seeds: tuple[int, ...]
    alone: tuple[float, ...]
    own: tuple[float, ...]
    worse: Interval
    margin: float
    speed_up: float

    @property
    def met(self) -> bool:
        """Whether the mean is inside the margin; the interval says how sure that is."""
        return self.worse.value <= self.margin


def compare(task: Task, own: Sequence[Training], other: Sequence[Training]) -> Comparison | None:
    """Compare trainings that have the same seed; None if there are none.

    Args:
        task: of all of them.
        own: of one configuration, one for each seed.
        other: of what it is compared with, one for each seed.
    """
    bases = {one.seed: one for one in other}
    pairs = [(one, bases[one.seed]) for one in sorted(own, key=lambda one: one.seed) if one.seed in bases]
    if not pairs:
        return None
    return Comparison(
        task.name,
        own[0].name,
        other[0].name,
        tuple(mine.seed for mine, _ in pairs),
        tuple(base.figure for _, base in pairs),
        tuple(mine.figure for mine, _ in pairs),
        mean_interval([task.worse_by(mine.figure, base.figure) for mine, base in pairs]),
        task.margin,
        sum(base.seconds / mine.seconds for mine, base in pairs) / len(pairs),
    )


def comparisons(trainings: Iterable[Training], bases: Sequence[str]) -> list[Comparison]:
    """Everything against every baseline that was trained; baselines among themselves against the first.

    Args:
        trainings: of all tasks, in any order.
        bases: names of the baselines.
    """
    groups: dict[tuple[str, str], list[Training]] = {}
    for one in trainings:
        groups.setdefault((one.task, one.name), []).append(one)
    found = []
    for (task, name), own in groups.items():
        for base in bases[:1] if name in bases else bases:
            other = groups.get((task, base), [])
            compared = compare(TASKS[task], own, other) if base != name else None
            if compared:
                found.append(compared)
    return found


def line(one: Comparison) -> str:
    """A comparison in words."""
    scale, unit = (1.0, "pp") if TASKS[one.task].figure == "accuracy" else (100.0, "%")
    worse = one.worse
    return (
        f"{one.task:4s}  {one.name:34s} against {one.against:13s} worse by {scale * worse.value:+.2f} {unit} "
        f"({scale * worse.low:+.2f} to {scale * worse.high:+.2f}, {worse.count} seeds), "
        f"allowed {scale * one.margin:.2f} {unit}: {'met' if one.met else 'MISSED'}; {one.speed_up:.2f} times as fast"
    )


def write(folder: Path, head: dict[str, Any], trainings: Sequence[Training], bases: Sequence[str]) -> list[Comparison]:
    """Write ``quality.json``, and return its comparisons.

    Args:
        folder: for it.
        head: machine and options.
        trainings: all.
        bases: names of the baselines.
    """
    found = comparisons(trainings, bases)
    content = {
        **head,
        "trainings": [asdict(one) for one in trainings],
        "comparisons": [{**asdict(one), "met": one.met} for one in found],
    }
    (folder / FILE).write_text(json.dumps(content, indent=1) + "\n")
    return found


def merged(files: Sequence[Path]) -> tuple[dict[str, Any], list[Training]]:
    """The head of the first file, and the trainings of all.

    Args:
        files: that :func:`write` wrote, each with other seeds, tasks or configurations.

    Raises:
        ValueError: two of them have the same training, or they are of different cohorts.
    """
    contents = [json.loads(file.read_text()) for file in files]
    seen: dict[tuple[str, str, int], Path] = {}
    trainings = []
    for file, content in zip(files, contents, strict=True):
        if content["cohort"] != contents[0]["cohort"]:
            raise ValueError(f"{file} is of cohort {content['cohort']}, {files[0]} of {contents[0]['cohort']}")
        for one in (Training(**values) for values in content["trainings"]):
            other = seen.setdefault((one.task, one.name, one.seed), file)
            if other is not file:
                raise ValueError(f"{other} and {file} both have {one.task}, {one.name}, seed {one.seed}; leave one out")
            trainings.append(one)
    head = {key: value for key, value in contents[0].items() if key not in ("trainings", "comparisons")}
    return head, trainings
