"""Which of a cohort's ways to be placed a new member takes.

A pod that could go to either of two kinds of nodes would need two images. So members fill the best way up to the
devices of its nodes, then the next one. Other runs' devices are not counted: a pod that they leave no place moves on.
"""

from collections import Counter
from typing import Final

from fdl_api.placement import Placement
from fdl_operator.model import CreateMember, DeletePod
from fdl_operator.plan.draft import Draft

PATIENCE: Final = 10.0
"""A pod waits this many times longer before it tries another way than when its own way is no longer one."""


def choose(draft: Draft, cohort: str, *, but: str = "") -> Placement:
    """The way for one more member: the best with room, else the best.

    Args:
        draft: the draft; the cohort has at least one way.
        cohort: name of the cohort.
        but: digest of a way that was tried in vain.
    """
    options = draft.options[cohort]
    free = _free(draft, cohort)
    return next((option for option in free if option.digest != but), options[0])


def elsewhere(draft: Draft, cohort: str, but: str) -> bool:
    """Whether a member may be tried in another way than this one."""
    return any(option.digest != but for option in _free(draft, cohort))


def _free(draft: Draft, cohort: str) -> list[Placement]:
    options = draft.options[cohort]
    known = {option.digest for option in options}
    first = {option.variant: option.digest for option in reversed(options)}
    deleted = {action.name for action in draft.deletes if isinstance(action, DeletePod)}
    living = [
        pod
        for pod in draft.member_pods()
        if pod.cohort == cohort and not pod.ended and pod.deleted_at is None and pod.name not in deleted
    ]
    # A way's digest changes with the nodes that it leaves out; the variant says where an older pod belongs.
    used = Counter(pod.placement if pod.placement in known else first.get(pod.variant, "") for pod in living)
    used.update(
        action.placement.digest
        for action in draft.creates
        if isinstance(action, CreateMember) and action.cohort == cohort
    )
    return [option for option in options if option.room is None or used[option.digest] < option.room]
