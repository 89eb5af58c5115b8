"""When to look again, and when to write. Pure."""

from collections.abc import Mapping
from datetime import datetime

from fdl_api.report import Report
from fdl_prober.settings import Settings

BACKOFF_FIRST_SECONDS = 5.0
BACKOFF_LAST_SECONDS = 120.0
REFRESH_LAST_SECONDS = 300.0
JITTER = 0.2


def refresh_seconds(settings: Settings, max_age_seconds: int) -> float:
    """Age at which an unchanged report is written again: a third of what the cluster allows, so that two lost
    writes do not make a node stale; at most 300 s, so that 5,000 nodes cost under 20 writes a second.
    """
    if settings.refresh_seconds is not None:
        return settings.refresh_seconds
    return min(max_age_seconds / 3, REFRESH_LAST_SECONDS)


def look_again_seconds(period: float, waits: int, spread: float) -> float:
    """Time to the next look.

    Args:
        period: time between looks at a node that is in order, in seconds.
        waits: looks in a row in which something was still missing: a driver, or the FdlCluster. The first repeats come
            quickly (it is perhaps just starting), later ones ever slower.
        spread: random number from 0 to 1, so that a cluster's probers do not march in step.
    """
    base = period
    if waits:
        base = min(BACKOFF_FIRST_SECONDS * 2 ** min(waits - 1, 10), max(period, BACKOFF_LAST_SECONDS))
    return base * (1 + JITTER * (2 * spread - 1))


def must_write(
    written: tuple[Mapping[str, str], Report] | None,
    desired: tuple[Mapping[str, str], Report],
    limit_seconds: float,
    now: datetime,
) -> bool:
    """Whether labels or report changed since the last write, or the last report is as old as the limit."""
    if written is None:
        return True
    changed = dict(written[0]) != dict(desired[0]) or written[1].material() != desired[1].material()
    return changed or written[1].age(now).total_seconds() >= limit_seconds
