"""Efficiency, and where the time went.

With r_i the own rate of rank i (batches a millisecond at its mean batch), the power of a cohort is ``S(t)``, the sum
over the ranks that are alive. *Efficiency* is committed batches over ``integral S dt``. Time is split by what a rank
did in it, weighted by its rate, so that the parts sum to one; the part "compute" is the efficiency but for noise in the
batches' times.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Spent(StrEnum):
    """What a rank does with its time."""

    COMPUTE = "compute"
    """Batches that were committed."""
    DATA = "data"
    """Waiting for data, the loader's fill included."""
    WAIT = "wait"
    """Waiting for slower ranks."""
    REDUCE = "reduce"
    """The averaging itself, as far as no training goes on beside it."""
    CHANGE = "change"
    """Detecting a death and forming a new group."""
    STALL = "stall"
    """Standing still by the script."""
    LOST = "lost"
    """Work of a rank that died before it was committed."""


@dataclass(frozen=True)
class WindowRow:
    """One committed window.

    Args:
        window: its number.
        ended_ms: virtual time of its commit.
        wall_ms: time since the commit before.
        ranks: members that took part.
        anchor: batches of the anchor rank, as planned.
        batches: committed batches of all.
        power: ``integral S dt`` over the window, in batches.
        quotas: batches committed by the first ranks (:data:`SHOWN`), by number.
        notes: events and guards' actions.
    """

    window: int
    ended_ms: float
    wall_ms: float
    ranks: int
    anchor: int
    batches: int
    power: float
    quotas: Mapping[int, int]
    notes: tuple[str, ...] = ()

    @property
    def efficiency(self) -> float:
        """Committed batches over those that the ranks could have done in the time."""
        return self.batches / self.power if self.power > 0.0 else 0.0


SHOWN = 8
"""Ranks whose quotas are kept for each window."""


@dataclass
class Account:
    """The books of a simulation."""

    rows: list[WindowRow] = field(default_factory=list)
    spent: dict[Spent, float] = field(default_factory=lambda: dict.fromkeys(Spent, 0.0))

    def spend(self, what: Spent, rate: float, ms: float) -> None:
        """Book time of one rank."""
        self.spent[what] += rate * ms

    @property
    def efficiency(self) -> float:
        """Of the whole run, calibration and growth of the anchor included."""
        return _efficiency(self.rows)

    @property
    def steady_efficiency(self) -> float:
        """Of the second half of the windows."""
        return _efficiency(self.rows[len(self.rows) // 2 :])

    def shares(self) -> dict[Spent, float]:
        """Parts of the ranks' time, weighted by rate; they sum to one."""
        total = sum(self.spent.values())
        return {what: value / total if total > 0.0 else 0.0 for what, value in self.spent.items()}


def _efficiency(rows: list[WindowRow]) -> float:
    power = sum(row.power for row in rows)
    return sum(row.batches for row in rows) / power if power > 0.0 else 0.0
