"""What NCCL modes ask of nodes: one version for a cohort, and an interface where members are on several nodes."""

from fdl_api.network import communicator
from fdl_api.placement import Communicator
from fdl_api.run import Cohort
from fdl_operator.plan.draft import Draft


def asked(draft: Draft, cohort: Cohort) -> Communicator | None:
    """What placement has to look for; ``None`` in modes without NCCL."""
    running = draft.attempt_start is not None
    return communicator(draft.spec, cohort, version=version(draft, cohort.name) if running else "")


def version(draft: Draft, cohort: str) -> str:
    """major.minor of a cohort's NCCL; empty where it is not known.

    It is chosen with the first members of an attempt and stays: a second one could not talk to them.
    """
    options = draft.options.get(cohort)
    if options:
        return options[0].nccl
    return next((row.nccl for row in draft.status.cohorts if row.name == cohort), "")


def versions(draft: Draft) -> tuple[str, ...]:
    """What the resolved run says of the cohorts' versions; nothing in modes without NCCL."""
    if not draft.spec.mode.is_nccl:
        return ()
    known = {cohort.name: version(draft, cohort.name) for cohort in draft.spec.cohorts}
    return tuple(f"{name}={text}" for name, text in known.items() if text)
