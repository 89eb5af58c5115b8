"""When the cohort starts: one pure rule (research of floDl's join window, counted in members)."""

from enum import StrEnum

from fdl_api.run import JoinSpec

STARTING_SECONDS = 20.0
"""How much longer than the join window members are waited for that are starting already, at most; never longer than the
window itself, so that who wants no wait has none."""


class Verdict(StrEnum):
    """What to do about a cohort that has not started."""

    FORM = "form"
    WAIT = "wait"
    FAIL = "fail"


def decide(ready: int, target: int, elapsed: float, join: JoinSpec, *, starting: int = 0) -> Verdict:
    """Decide whether the cohort forms now.

    Args:
        ready: members that could train at once.
        target: members after which nobody else is waited for.
        elapsed: seconds since the first member dialled.
        join: the run's join settings; times in seconds.
        starting: members that are not ready and whose pods are on nodes, so that they may be ready soon.

    More capacity is never refused while the window is open; after it a quorum is enough, but for a moment for those
    that are starting: a short run would be over before they come. After the cap a missing quorum is a failure.
    """
    if ready > 0 and ready >= target and ready >= join.min_members:
        return Verdict.FORM
    if elapsed < join.window_seconds:
        return Verdict.WAIT
    if ready >= join.min_members:
        patience = join.window_seconds + min(STARTING_SECONDS, join.window_seconds)
        return Verdict.WAIT if starting > 0 and elapsed < min(patience, join.cap_seconds) else Verdict.FORM
    if elapsed < join.cap_seconds:
        return Verdict.WAIT
    return Verdict.FAIL
