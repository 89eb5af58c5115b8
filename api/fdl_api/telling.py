"""How far a run is, as a line of a log: often enough to see that it goes on, rarely enough to read. Pure."""

import math
from dataclasses import dataclass

TELL_SECONDS = 10.0
"""Least time between two lines, but for the first and the last of a run."""


@dataclass(frozen=True)
class Reached:
    """Where a run is after a commit.

    Attributes:
        window: the committed window.
        samples: samples behind the run since its start, skipped ones included.
        total: samples of the whole run; 0 where not known.
        ranks: ranks that took part.
        loss: mean loss of the window; None where the script reports none.
        final: nothing is left to train.
    """

    window: int
    samples: int
    total: int
    ranks: int
    loss: float | None
    final: bool


class Teller:
    """Says when a line is due, and what it is. Of commits that come faster, those between are not told."""

    def __init__(self) -> None:
        self._told: Reached | None = None
        self._at = 0.0

    def line(self, reached: Reached, now: float) -> str:
        """The line after a commit; empty while the last one is recent, or where nothing has moved.

        Args:
            reached: where the run is.
            now: seconds of any monotonic clock.
        """
        before = self._told
        if before is not None:
            moved = reached.window != before.window or reached.samples != before.samples
            if not moved or (now - self._at < TELL_SECONDS and not reached.final):
                return ""
        rate = _rate(before, reached, now - self._at)
        self._told, self._at = reached, now
        return ", ".join(filter(None, (_share(reached), _ranks(reached.ranks), rate, _loss(reached.loss))))


def _share(reached: Reached) -> str:
    part = f" ({math.floor(100 * reached.samples / reached.total)} % of {reached.total})" if reached.total else ""
    return f"window {reached.window}: {reached.samples} samples trained{part}"


def _ranks(ranks: int) -> str:
    return f"{ranks} rank{'s' if ranks != 1 else ''}"


def _rate(before: Reached | None, reached: Reached, seconds: float) -> str:
    """Since the last line; none after the first, nor where training went back."""
    if before is None or seconds <= 0.0 or reached.samples <= before.samples:
        return ""
    return f"{(reached.samples - before.samples) / seconds:.0f} samples/s"


def _loss(loss: float | None) -> str:
    return f"loss {loss:.4g}" if loss is not None and math.isfinite(loss) else ""
