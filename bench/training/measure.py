"""Waits through a slice whose ranks have been started, and reads what they committed."""

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.training.catalog import Method
from bench.training.job import Job
from bench.training.machine import Load
from bench.training.marks import Mark, Span, curve, merge, read_began, read_lines, span
from bench.training.slowness import Clock

STARTUP_LIMIT = 60.0
"""Seconds to the first commit of all ranks."""
PACKAGE_STARTUP_LIMIT = 30.0
"""The same for peers of other packages, which may hang."""


class SliceError(Exception):
    """The slice gives no figures; the message says why."""


class RankEndedError(SliceError):
    """A process ended on its own; its log says why."""


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds of a slice: not measured, then measured."""

    warm_up: float
    measured: float


@dataclass
class Outcome:
    """What a slice gave.

    Attributes:
        method: name.
        reason: why there are no figures; empty when there are.
        rates: samples a second, by rank.
        span: the committed work; None without figures and for ranks that train alone.
        swap_at: moment of the swap, 0 without.
        started: seconds from the start of the ranks to the first commit of all.
        load: of the machine during the slice.
        curve: training loss from the first batch on, see :func:`bench.training.marks.curve`; () of ranks that train
            side by side.
    """

    method: str
    reason: str = ""
    rates: list[float] = field(default_factory=list)
    span: Span | None = None
    swap_at: float = 0.0
    started: float = 0.0
    load: Load | None = None
    curve: list[tuple[float, int, float]] = field(default_factory=list)

    @property
    def rate(self) -> float:
        """Of all ranks together."""
        return sum(self.rates)

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def measure(method: Method, jobs: Sequence[Job], swaps: bool, timing: Timing, dead: Callable[[], bool]) -> Outcome:
    """Wait for the start, the warm-up and the end.

    Args:
        method: what runs.
        jobs: of its ranks.
        swaps: speeds swap half-way through the measured time.
        timing: how long.
        dead: whether a process has ended, which none should.

    Raises:
        SliceError: no figures.
    """
    outcome = Outcome(method.name, started=_await_start(method, jobs, dead))
    since = time.monotonic() + timing.warm_up
    until = since + timing.measured
    if swaps:
        outcome.swap_at = since + timing.measured / 2.0
        Clock(Path(jobs[0].clock)).set(outcome.swap_at)
    while time.monotonic() < until:
        if dead():
            raise RankEndedError("a rank ended while it was measured")
        time.sleep(0.1)
    lines = [read_lines(Path(job.marks)) for job in jobs]
    marks = _reported(lines) if method.kind == "fdl" else merge(lines)
    began = read_began([Path(job.marks) for job in jobs])
    if method.kind != "solo" and began is not None:
        outcome.curve = curve(marks, began)
    if method.kind in ("solo", "fastest"):
        spans = [span(merge([one]), since, until) for one in lines]
        outcome.rates = [found.rate for found in spans if found is not None]
        if len(outcome.rates) < len(jobs):
            raise SliceError(f"a rank did not finish two batches in {timing.measured:.0f} s")
        return outcome
    found = span(marks, since, until)
    if found is None:
        raise SliceError(f"fewer than two averages in {timing.measured:.0f} s")
    outcome.span = found
    outcome.rates = [samples / found.seconds for samples in found.samples]
    return outcome


def _await_start(method: Method, jobs: Sequence[Job], dead: Callable[[], bool]) -> float:
    began = time.monotonic()
    files = [Path(job.marks) for job in (jobs[:1] if method.kind == "fdl" else jobs)]
    limit = PACKAGE_STARTUP_LIMIT if method.package else STARTUP_LIMIT
    while not all(file.exists() and file.stat().st_size for file in files):
        if dead():
            raise RankEndedError("a rank ended before the first commit")
        if time.monotonic() > began + limit:
            raise SliceError(f"no commit within {limit:.0f} s")
        time.sleep(0.02)
    return time.monotonic() - began


def _reported(lines: Sequence[Sequence[dict[str, Any]]]) -> list[Mark]:
    """Marks of the one rank of fdl that reports for all."""
    return [
        Mark(
            at=line["at"],
            samples=tuple(line["samples"]),
            compute=tuple(line["compute"]),
            data=tuple(line["data"]),
            comm=line["comm"],
            anchor=line["anchor"],
            syncs=line["syncs"],
            loss=line["loss"],
        )
        for one in lines
        for line in one
    ]
