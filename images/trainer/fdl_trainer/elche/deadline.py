"""Windows that end by time for ranks whose batches take unequal time.

A rank with jitter that does a fixed number of batches is early or late, and when it is late everybody waits:
``cv k_N / sqrt(a)`` of the window for N ranks with a coefficient of variation cv and anchor a (k_2 = 0.56,
k_8 = 1.42). A rank that stops when its next batch would end past the window's end is off by at most half a batch:
``m / (2 W)`` of the window W. So such a rank gets more batches than its quota, stops by :func:`should_stop`, and what
it did not train is leased anew. Its true count is in the tail, so that the average's weights are right.

A rank whose last sample was far off may have a new speed, of which only the next sample makes sure. Until then it stops
by time as well, and if it seems faster by a sample that stands out it is given what it could do then. So the window
that is planned from the first sample after a change of speed is shared well already. With overlap a window is trained
after the plan of the next one is made: who was given more than that plan would give it stops by time, too.
"""

import math
from collections.abc import Mapping

from fdl_trainer.elche.speed import RankSpeed, stands_out

JITTERY = 0.05
"""Spread of the samples, ``(max - min) / mean``, from which a rank stops by time."""
LEAST_SAMPLES = 3
"""Samples without which the spread says nothing."""
MORE = 0.25
"""Part of the quota that such a rank is given beyond it, for windows in which it is fast."""
MOST = 4.0
"""Most that a rank which seems faster is given, in quotas: near the end of the data, what one is given others lack."""


def spread(speed: RankSpeed) -> float:
    """Relative spread of a rank's samples, ``(max - min) / mean``; 0 with fewer than three."""
    if len(speed.ring) < LEAST_SAMPLES:
        return 0.0
    return (max(speed.ring) - min(speed.ring)) / speed.ms_per_batch


def is_jittery(speed: RankSpeed) -> bool:
    """Whether a rank stops by time: its samples scatter, or the last one was far off and may be a new speed."""
    return spread(speed) >= JITTERY or speed.suspect > 0.0


def lease(speed: RankSpeed, quota: int, *, bounded: bool = False) -> int:
    """Batches to give to a rank with a quota: more than the quota where it stops by time.

    Args:
        speed: what is known of it.
        quota: of the window.
        bounded: the user bounds how far quotas may move or lie apart, so that a suspicion moves none.
    """
    if not quota or not is_jittery(speed):
        return quota
    told = speed.suspect > 0.0 and stands_out(speed, speed.suspect) and not bounded
    faster = speed.ms_per_batch / speed.suspect if told else 1.0
    return quota + math.ceil((min(max(faster, 1.0 + MORE), MOST) - 1.0) * quota)


def window_ms(ranks: Mapping[str, RankSpeed]) -> float:
    """Planned length of a window in milliseconds: the longest quota at the known speeds; 0 while none is known."""
    return max((speed.quota * speed.ms_per_batch for speed in ranks.values()), default=0.0)


def should_stop(elapsed_ms: float, ms_per_batch: float, window_ms: float, done: int, lease: int) -> bool:
    """Whether a rank ends its window before its next batch.

    Args:
        elapsed_ms: milliseconds since it began the window, waiting for data included.
        ms_per_batch: its smoothed speed.
        window_ms: planned length of the window; 0 when the rank stops by count alone.
        done: batches that it has done. It does at least one: a rank that did none would never be measured.
        lease: batches that it was given.
    """
    if done >= lease:
        return True
    return window_ms > 0.0 and done > 0 and elapsed_ms + ms_per_batch / 2.0 > window_ms
