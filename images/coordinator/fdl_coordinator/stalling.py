"""When a member that is alive keeps the others waiting for too long: one pure rule, and the figure that it needs.

Late is not dead (docs/protocol.md, Liveness): whoever is slow is waited for. The limits are set so that the long pauses
of a healthy script (an evaluation, a checkpoint, a compilation, its first batch) do not reach them. Whoever passes them
is *suspended*: the others go on, and it comes back as a joiner once it goes on.
"""

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

WINDOWS = 10.0
"""Usual windows for which the others wait at least: where a window takes minutes, a pause of minutes is no stall."""
PATIENCE = 10.0
"""How many times longer a pause may be where a long one is to be expected: before a rank's first commit (compilation),
while a checkpoint is written, and as long as nobody knows how long a window takes."""
KEPT_WINDOWS = 12
FORGIVEN_SECONDS = 3600.0
"""A stall this long after the last one counts as the first again."""
LONGEST_PENANCE = 16.0


@dataclass(frozen=True, slots=True)
class Sight:
    """What is known of one rank.

    Attributes:
        member: UID of its member.
        waiting: it waits for the others, in a reduce or at the door of an epoch.
        seconds: since when: since its phase or its progress counter last changed.
        slow: a long pause is to be expected of it now.
    """

    member: str
    waiting: bool
    seconds: float
    slow: bool = False


def limits(usual: float | None, floor: float) -> tuple[float, float]:
    """Seconds without progress that are too many for a rank, and for one that is expected to be slow.

    Args:
        usual: seconds that a window usually takes; ``None`` while unknown.
        floor: never fewer seconds than these.
    """
    patient = PATIENCE * floor
    limit = max(floor, WINDOWS * usual) if usual is not None else patient
    return limit, max(limit, patient)


def stalled(sights: Sequence[Sight], usual: float | None, floor: float, least: int) -> frozenset[str]:
    """UIDs of the members without which the others should go on; empty when nobody is to be blamed.

    Args:
        sights: all ranks of the present epoch.
        usual: see :func:`limits`.
        floor: likewise.
        least: members that must remain.

    A member stalls when one of its ranks has work to do and made no progress for longer than the limit. It is only
    blamed when everybody else has waited for that long: as long as anyone else is busy, nobody is held up. So ranks
    that all stand still (a shared volume hangs, the network is cut in two) are left as they are.
    """
    limit, patient = limits(usual, floor)
    late = {s.member for s in sights if not s.waiting and s.seconds > (patient if s.slow else limit)}
    others = [s for s in sights if s.member not in late]
    if not late or len({s.member for s in others}) < max(1, least):
        return frozenset()
    return frozenset(late) if all(s.waiting and s.seconds > limit for s in others) else frozenset()


def unheard_since(heard: Sequence[tuple[bool, float]]) -> float | None:
    """When anybody was last heard, where nobody is; ``None`` while somebody is, or where nobody is expected to be.

    Args:
        heard: of each rank that trains, whether it is heard, and when it last was (seconds on any clock).
    """
    if not heard or any(now for now, _ in heard):
        return None
    return max(at for _, at in heard)


def penance(stalls: int, floor: float) -> float:
    """Seconds from a suspension for which a member is not taken back: none at first, then twice as many each time.

    Args:
        stalls: how often it was suspended, this time included.
        floor: see :func:`limits`.
    """
    return 0.0 if stalls <= 1 else floor * min(LONGEST_PENANCE, 2.0 ** (stalls - 2))


class WindowTimes:
    """How long a window usually takes: the median of the last ones, so that a stall itself does not count."""

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=KEPT_WINDOWS)
        self._last: tuple[int, float] | None = None

    def committed(self, window: int, now: float) -> None:
        """A window was committed; later reports of the same one are ignored."""
        if self._last is not None:
            before, at = self._last
            if window <= before:
                return
            self._seconds.append((now - at) / (window - before))
        self._last = (window, now)

    def restarted(self) -> None:
        """Windows may be counted again, and nobody trained until now."""
        self._last = None

    @property
    def usual(self) -> float | None:
        """Seconds; ``None`` before the second commit."""
        return statistics.median(self._seconds) if self._seconds else None
