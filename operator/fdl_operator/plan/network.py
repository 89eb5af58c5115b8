"""What NCCL modes ask of nodes: one version for a cohort, and an interface where members are on several nodes."""

from collections.abc import Iterator
from typing import Any

from fdl_api.placement import Communicator
from fdl_api.run import Cohort
from fdl_operator.plan.draft import Draft

SOCKET_INTERFACE = "NCCL_SOCKET_IFNAME"


def communicator(draft: Draft, cohort: Cohort) -> Communicator | None:
    """What placement has to look for; ``None`` in modes without NCCL."""
    if not draft.spec.mode.is_nccl:
        return None
    ceiling = sum(other.ceiling for other in draft.spec.cohorts if other.vendor is cohort.vendor)
    given = SOCKET_INTERFACE in {*(entry.name for entry in draft.spec.trainer.env), *_in_template(cohort)}
    running = draft.attempt_start is not None
    return Communicator(version(draft, cohort.name) if running else "", spans=ceiling > 1, interface_given=given)


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


def _in_template(cohort: Cohort) -> Iterator[str]:
    """Names of the variables that a pod template sets; a template is opaque, so anything may be anywhere."""
    spec = (cohort.pod_template or {}).get("spec")
    containers: Any = spec.get("containers") if isinstance(spec, dict) else None
    for container in containers if isinstance(containers, list) else ():
        entries = container.get("env") if isinstance(container, dict) else None
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict):
                yield str(entry.get("name"))
