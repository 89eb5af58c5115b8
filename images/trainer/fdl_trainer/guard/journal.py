"""What the guards did: counters over the whole run and the newest actions, for status. Replicated, bounded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, NamedTuple

KEPT = 8
"""Newest actions that are kept."""


class Action(StrEnum):
    """What a guard did."""

    SUPPRESS_GROWTH = "suppressGrowth"
    NUDGE_DOWN = "nudgeDown"
    ROLLBACK = "rollback"
    LOOSEN = "loosen"
    """The learning rate fell: what the guards remembered no longer applies, and the anchor may grow again."""
    QUARANTINE = "quarantine"
    """A rank's model was not finite, so that its batches of the window do not count."""


class Record(NamedTuple):
    """One action: the window after which it was taken, who took it, what it was, and why, as a sentence."""

    window: int
    guard: str
    action: Action
    why: str


@dataclass(frozen=True)
class Journal:
    """Actions since the start of the run.

    Args:
        counts: how often each action was taken; actions never taken are absent.
        last: the newest :data:`KEPT` records, oldest first.
    """

    counts: Mapping[Action, int] = field(default_factory=dict)
    last: tuple[Record, ...] = ()

    def add(self, records: Sequence[Record]) -> "Journal":
        """The journal with more records."""
        counts = dict(self.counts)
        for record in records:
            counts[record.action] = counts.get(record.action, 0) + 1
        return replace(self, counts=counts, last=(*self.last, *records)[-KEPT:]) if records else self

    def of(self, window: int) -> list[Record]:
        """Records of one window that are still kept."""
        return [record for record in self.last if record.window == window]

    def to_json(self) -> dict[str, Any]:
        """As JSON data."""
        return {"counts": {str(key): value for key, value in self.counts.items()}, "last": [list(r) for r in self.last]}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Journal":
        """Inverse of :meth:`to_json`."""
        counts = {Action(key): value for key, value in data["counts"].items()}
        last = tuple(Record(window, guard, Action(action), why) for window, guard, action, why in data["last"])
        return cls(counts, last)
