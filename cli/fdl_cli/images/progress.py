"""Progress of builds: one live line on a terminal, one line a step elsewhere."""

import time
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

_QUIET_SECONDS: Final = 30.0


class Reporter:
    """Shows which image is at which step, and for how long."""

    def __init__(self, console: Console) -> None:
        """Args: console: where to write."""
        self._console = console
        self._progress = Progress(
            TextColumn("[bold]{task.fields[image]}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._image = ""
        self._total = 0
        self._step: tuple[int, str] = (0, "")
        self._started = 0.0
        self._said = 0.0

    def __enter__(self) -> Self:
        """Start drawing."""
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop drawing."""
        self._progress.stop()

    def note(self, text: str) -> None:
        """Say a sentence."""
        self._console.print(escape(text), highlight=False, soft_wrap=True)

    def begin(self, image: str, total: int) -> None:
        """A piece of work of ``total`` steps starts."""
        self._image, self._total, self._step = image, total, (0, "")
        self._started = self._said = time.monotonic()
        self._task = self._progress.add_task("starting", total=total, image=image)

    def step(self, number: int, text: str) -> None:
        """Step ``number`` (from 1) starts."""
        if self._task is None or (number, text) == self._step:
            return
        self._step = (number, text)
        self._progress.update(self._task, completed=number - 1, description=escape(text))
        self._say()

    def tick(self) -> None:
        """Output came: where there is no live line, say now and then that the same step still runs."""
        if self._task is not None and time.monotonic() - self._said > _QUIET_SECONDS:
            self._say()

    def done(self, text: str) -> None:
        """The piece of work ended well."""
        if self._task is not None:
            self._progress.remove_task(self._task)
            self._task = None
        self.note(text)

    def _say(self) -> None:
        self._said = time.monotonic()
        if not self._console.is_terminal:
            number, text = self._step
            elapsed = self._said - self._started
            self.note(f"{self._image}: step {number} of {self._total}, {elapsed:.0f} s: {text}")


def size_text(count: int) -> str:
    """Bytes for people, in powers of 1000."""
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
