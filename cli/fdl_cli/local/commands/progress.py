"""Progress of a build: which program, how many of how many, for how long."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from fdl_cli.local.build import Report
from fdl_cli.local.commands.common import console, say


@contextmanager
def build_progress() -> Iterator[Report]:
    """A bar on a terminal, a line a program elsewhere; nothing at all if nothing is built."""
    bar = Progress(
        SpinnerColumn(),
        TextColumn("Building {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )
    report, stop = _bar(bar) if console.is_terminal else _lines()
    try:
        yield report
    finally:
        stop()


def _first_time(total: int) -> None:
    say(
        f"Building the cluster's {total} programs from pinned sources; the first time takes 15 to 25 minutes on 2 cores"
    )


def _bar(bar: Progress) -> tuple[Report, Callable[[], None]]:
    tasks: list[object] = []

    def report(done: int, total: int, what: str) -> None:
        if not tasks:
            _first_time(total)
            bar.start()
            tasks.append(bar.add_task(what, total=total))
        bar.update(bar.tasks[0].id, completed=done, description=what)

    return report, bar.stop


def _lines() -> tuple[Report, Callable[[], None]]:
    said: list[str] = []

    def report(done: int, total: int, what: str) -> None:
        if not said:
            _first_time(total)
        said.append(what)
        say(f"  [{min(done + 1, total)}/{total}] {what}")

    return report, lambda: None
