"""What a rank writes while it trains: one line whenever samples are committed.

Lines go to a file without buffering: a slice ends with SIGKILL for all its ranks, so that nobody has to agree on the
end. All times are on the monotonic clock, which the processes of a machine share.
"""

import json
import math
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

BEGAN = ".began"
"""Suffix of the file that says when a rank began."""
POINTS = 150
"""Of a loss curve, at most."""


@dataclass(frozen=True, slots=True)
class Mark:
    """The state of a rank, or of a cohort, at a commit.

    Attributes:
        at: moment, seconds.
        samples: committed so far, by rank.
        compute: seconds of compute so far, by rank; () where it cannot be told from communication.
        data: seconds of waiting for data so far, by rank.
        comm: seconds inside the averaging so far, without waiting for late ranks.
        anchor: batches of the slowest rank in the window, where there is such a thing.
        syncs: averages so far.
        loss: sum over all ranks' samples so far of their training loss; NaN where it is not known.
    """

    at: float
    samples: tuple[int, ...]
    compute: tuple[float, ...] = ()
    data: tuple[float, ...] = ()
    comm: float = 0.0
    anchor: int = 0
    syncs: int = 0
    loss: float = math.nan


class MarkFile:
    """Writes marks."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, **values: Any) -> None:
        """One line; ``at`` is now."""
        os.write(self._file, (json.dumps({"at": time.monotonic(), **values}) + "\n").encode())


def write_began(marks: Path) -> None:
    """Note, beside a rank's mark file, that it is about to train its first batch."""
    marks.with_suffix(BEGAN).write_text(str(time.monotonic()))


def read_began(marks: Sequence[Path]) -> float | None:
    """When the first of some ranks began to train; None when none has said."""
    files = [path.with_suffix(BEGAN) for path in marks]
    moments = [float(file.read_text()) for file in files if file.exists()]
    return min(moments, default=None)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Complete lines of a mark file; the last one may be cut by the end of its writer."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]
    return [json.loads(line) for line in lines if line]


def merge(files: Sequence[Iterable[dict[str, Any]]]) -> list[Mark]:
    """Marks of a cohort whose ranks all commit at the same points: the n-th marks of all ranks belong together.

    A commit counts once all ranks have marked it; its moment is the last one's.
    """
    merged = []
    for number, together in enumerate(zip(*files, strict=False), start=1):
        compute = tuple(float(line["compute"]) for line in together if line.get("compute") is not None)
        merged.append(
            Mark(
                at=max(float(line["at"]) for line in together),
                samples=tuple(int(line["samples"]) for line in together),
                compute=compute if len(compute) == len(together) else (),
                comm=min(float(line.get("comm", 0.0)) for line in together),
                syncs=number,
                loss=sum(float(line.get("loss", math.nan)) for line in together),
            )
        )
    return merged


@dataclass
class Span:
    """Committed work between two commits.

    Attributes:
        seconds: between the first and the last commit of the span.
        samples: by rank.
        compute: seconds, by rank; () if unknown.
        data: seconds, by rank.
        comm: seconds.
        syncs: averages.
        anchor: last one.
    """

    seconds: float
    samples: tuple[int, ...]
    compute: tuple[float, ...] = ()
    data: tuple[float, ...] = ()
    comm: float = 0.0
    syncs: int = 0
    anchor: int = 0
    rates: list[tuple[float, float]] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Committed samples a second of the whole cohort."""
        return sum(self.samples) / self.seconds


def span(marks: Sequence[Mark], since: float, until: float) -> Span | None:
    """Work between the first commit at or after ``since`` and the last one at or before ``until``.

    Both ends are commits, so that neither a half-done window counts nor its time. None if there are not two of them.
    """
    inside = [mark for mark in marks if since <= mark.at <= until]
    if len(inside) < 2:
        return None
    first, last = inside[0], inside[-1]
    return Span(
        seconds=last.at - first.at,
        samples=_less(last.samples, first.samples),
        compute=_less(last.compute, first.compute),
        data=_less(last.data, first.data),
        comm=last.comm - first.comm,
        syncs=last.syncs - first.syncs,
        anchor=last.anchor,
        rates=[
            (after.at, sum(_less(after.samples, before.samples)) / (after.at - before.at))
            for before, after in pairwise(inside)
            if after.at > before.at
        ],
    )


def _less(later: Sequence[Any], earlier: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(a - b for a, b in zip(later, earlier, strict=True))


def curve(marks: Sequence[Mark], began: float) -> list[tuple[float, int, float]]:
    """The training loss over time: (seconds, committed samples, mean loss of the samples since the point before).

    Points are commits, :data:`POINTS` at most, of about equal numbers of samples. It ends where the loss is not finite.

    Args:
        marks: in order.
        began: when the first batch was begun, on the clock of the marks.
    """
    points: list[tuple[float, int, float]] = []
    if not marks:
        return points
    least = sum(marks[-1].samples) / POINTS
    seen, lost = 0, 0.0
    for mark in marks:
        samples = sum(mark.samples)
        if not math.isfinite(mark.loss):
            break
        if samples > seen and samples - seen >= least:
            points.append((mark.at - began, samples, (mark.loss - lost) / (samples - seen)))
            seen, lost = samples, mark.loss
    return points
