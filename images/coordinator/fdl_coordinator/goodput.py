"""Goodput: which part of the cohort's computing power went into committed samples.

Each rank's own speed and the time in which it could have worked at that speed are taken from the same windows, so that
a machine that others load slows both alike, and the figure cannot exceed 1 (research: committed samples over the
integral of the rates that were available, so dead ranks lower the denominator and recoveries count as loss).
"""

import math
from dataclasses import dataclass

from fdl_api.wire import WindowCommitted

MEMORY_SECONDS = 60.0
"""Windows lose weight by 1/e in this time: the figure is about the last minute or two."""
LEAST_SECONDS = 1.0
"""With less observed time than this there is no figure: reports that had to wait come in a burst."""
FORGOTTEN_SECONDS = 1e-3


@dataclass(slots=True)
class Share:
    """What one rank did lately, all weighted by age.

    Attributes:
        samples: committed samples.
        busy: seconds of computing for them.
        present: seconds in which it took part.
    """

    samples: float = 0.0
    busy: float = 0.0
    present: float = 0.0

    @property
    def possible(self) -> float:
        """Samples that it would have done had it computed all the time; it was there at least while it computed."""
        return self.samples / self.busy * max(self.present, self.busy) if self.busy > 0 else 0.0


class Goodput:
    """Takes in the windows as one rank after the other commits them; the first that tells of all ranks counts."""

    def __init__(self) -> None:
        self._shares: dict[str, Share] = {}
        self._observed = 0.0
        self._window: int | None = None
        self._at = 0.0

    def committed(self, report: WindowCommitted, now: float) -> None:
        """Count a window.

        Args:
            report: a commit; those without figures of the ranks, and second reports of a window, are ignored.
            now: seconds on the coordinator's clock.

        Windows that nobody told of (the one that tells died, or the line was cut) count like this one.
        """
        if not report.ranks or (self._window is not None and report.window <= self._window):
            return
        before, seconds = self._window, max(0.0, now - self._at)
        self._window, self._at = report.window, now
        if before is None:
            return
        alike = report.window - before
        self._age(seconds)
        self._observed += seconds
        for rank in report.ranks:
            share = self._shares.setdefault(rank.uid, Share())
            share.samples += alike * rank.samples
            share.busy += alike * rank.compute_ms / 1000.0
            share.present += seconds

    def restarted(self) -> None:
        """The cohort starts from a checkpoint: windows may be counted again, and nobody trained until now."""
        self._window = None

    @property
    def value(self) -> float | None:
        """Committed samples over possible ones, 0..1; ``None`` while too little was seen."""
        possible = sum(share.possible for share in self._shares.values())
        if self._observed < LEAST_SECONDS or possible <= 0:
            return None
        return sum(share.samples for share in self._shares.values()) / possible

    def _age(self, seconds: float) -> None:
        factor = math.exp(-seconds / MEMORY_SECONDS)
        self._observed *= factor
        for uid, share in list(self._shares.items()):
            share.samples, share.busy, share.present = (
                share.samples * factor,
                share.busy * factor,
                share.present * factor,
            )
            if share.present < FORGOTTEN_SECONDS:
                del self._shares[uid]
