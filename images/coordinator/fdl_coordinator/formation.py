"""When the cohort starts: one pure rule (research of floDl's join window, counted in members)."""

from enum import StrEnum

from fdl_api.run import JoinSpec


class Verdict(StrEnum):
    """What to do about a cohort that has not started."""

    FORM = "form"
    WAIT = "wait"
    FAIL = "fail"


def decide(ready: int, target: int, elapsed: float, join: JoinSpec) -> Verdict:
    """Decide whether the cohort forms now.

    Args:
        ready: members that could train at once.
        target: members after which nobody else is waited for.
        elapsed: seconds since the first member dialled.
        join: the run's join settings; times in seconds.

    More capacity is never refused while the window is open; after it a quorum is enough; after the cap
    a missing quorum is a failure.
    """
    if ready > 0 and ready >= target and ready >= join.min_members:
        return Verdict.FORM
    if elapsed < join.window_seconds:
        return Verdict.WAIT
    if ready >= join.min_members:
        return Verdict.FORM
    if elapsed < join.cap_seconds:
        return Verdict.WAIT
    return Verdict.FAIL
