"""What is wrong in the environment that a run gives its members: the check ``nccl-environment``, before any pod. Pure.

Only what the spec itself says is judged. Values that come from a Secret or a ConfigMap, and what an image sets, are
not known before the container is there.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fdl_api.checks.model import plain
from fdl_api.checks.software import NCCL_ENVIRONMENT
from fdl_api.names import TRAINER_CONTAINER
from fdl_api.nccl_env import OWN, Trouble, troubles
from fdl_api.report import Check
from fdl_api.run import Cohort, FdlRunSpec, Vendor

_ANY_MODE: Final = frozenset({"visible-devices"})
"""Findings that are none of NCCL's, so that they count in all modes."""
MAX_VALUE: Final = 64
"""Characters of a value in a sentence."""


@dataclass(frozen=True, slots=True)
class _Variable:
    """A variable of a member: its value, ``None`` where that comes from elsewhere, and who sets it."""

    value: str | None
    where: str


def found(spec: FdlRunSpec) -> tuple[Check, ...]:
    """What is wrong in the environment of a run's members: each thing once, what does not work first.

    A finding of severity ``fail`` is permanent: the environment of a run cannot be edited.
    """
    told: dict[tuple[str, str], Check] = {}
    for cohort in spec.cohorts:
        if cohort.vendor is Vendor.CPU:
            continue
        given: dict[str, _Variable] = {name: _Variable(value, "fdl's own") for name, value in OWN.items()}
        for entry in spec.trainer.env:
            given[entry.name] = _Variable(None if entry.value_from else entry.value or "", "spec.trainer.env")
        for name, text in template_env(cohort):
            given[name] = _Variable(text, f"spec.cohorts[{cohort.name}].podTemplate")
        for trouble in troubles({name: each.value for name, each in given.items() if each.value is not None}):
            if spec.mode.is_nccl or trouble.reason in _ANY_MODE:
                check = _check(trouble, given)
                told.setdefault((check.reason, check.message), check)
    return tuple(sorted(told.values(), key=lambda check: check.severity != "fail"))


def sentence(check: Check) -> str:
    """A finding with its way out, in one line."""
    return f"{check.message}. {check.remedy} ({check.name}/{check.reason})"


def _check(trouble: Trouble, given: Mapping[str, _Variable]) -> Check:
    said = [f"{name}={plain(given[name].value or '', MAX_VALUE)} ({given[name].where})" for name in trouble.variables]
    names = ", ".join(trouble.variables)
    return NCCL_ENVIRONMENT.found(trouble.reason, f"{' and '.join(said)}: {trouble.message}", names)


def template_env(cohort: Cohort) -> Iterator[tuple[str, str | None]]:
    """Variables that a pod template gives the trainer; ``None`` where the value comes from elsewhere.

    A template is opaque, so anything may be anywhere.
    """
    spec = (cohort.pod_template or {}).get("spec")
    containers: Any = spec.get("containers") if isinstance(spec, dict) else None
    for container in containers if isinstance(containers, list) else ():
        if not isinstance(container, dict) or container.get("name") != TRAINER_CONTAINER:
            continue
        entries = container.get("env")
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and entry.get("name"):
                value = entry.get("value")
                yield str(entry["name"]), None if entry.get("valueFrom") else str(value if value is not None else "")
