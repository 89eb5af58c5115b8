"""The environment that a run gives its members: told before any pod starts, since it can never be edited."""

from fdl_api import run_env
from fdl_api.reasons import ConditionType, Ended, Progress
from fdl_api.run import Vendor
from fdl_operator.plan.draft import Draft


def describe(draft: Draft) -> None:
    """The condition EnvironmentSound, for runs with devices, and why the run must not start (``draft.forbidden``).

    A run that has started is left alone: its members know better than a rule that came with a newer operator.
    """
    if all(cohort.vendor is Vendor.CPU for cohort in draft.spec.cohorts):
        return
    checks = run_env.found(draft.spec)
    if not checks:
        draft.condition(ConditionType.ENVIRONMENT_SOUND, True, Progress.AS_EXPECTED)
        return
    if draft.attempt == 0:
        draft.forbidden = " | ".join(run_env.sentence(check) for check in checks if check.severity == "fail")
    reason = Ended.ENVIRONMENT_FORBIDDEN if draft.forbidden else Progress.ENVIRONMENT_DOUBTFUL
    draft.condition(ConditionType.ENVIRONMENT_SOUND, False, reason, " | ".join(map(run_env.sentence, checks)))
