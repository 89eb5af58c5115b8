"""Fields that are part of the API but whose behaviour is not in this release.

Each is refused by the API server, so that no field is ever silently ignored. The change that adds a
behaviour removes its row here, and with it the rule in the CRD.
"""

from dataclasses import dataclass
from typing import Final

from fdl_api.model import Rule


@dataclass(frozen=True, slots=True)
class NotYet:
    """One refused value.

    Attributes:
        field: path of the field, relative to ``spec``.
        when: CEL expression over the spec that is true for the refused value.
        instead: the way out, as the end of a sentence.
        value: the refused value, as it is written in YAML; ``None`` when every value is refused.
    """

    field: str
    when: str
    instead: str
    value: str | None = None

    def rule(self) -> Rule:
        """The rule that refuses it, to be put on the spec."""
        what = "this field" if self.value is None else f"'{self.value}'"
        return Rule(
            f"!({self.when})",
            f"spec.{self.field}: {what} is not available in this release; {self.instead}",
            field_path=f".{self.field}",
            forbidden=True,
        )


def _set(field: str, instead: str) -> NotYet:
    parts = field.split(".")
    present = [f"has(self.{'.'.join(parts[: depth + 1])})" for depth in range(len(parts))]
    return NotYet(field, " && ".join(present), instead)


def _value(field: str, value: str, instead: str) -> NotYet:
    return NotYet(field, f"self.{field} == '{value}'", instead, value)


def _true(field: str, instead: str) -> NotYet:
    return NotYet(field, f"self.{field}", instead, "true")


RUN: Final = (
    _set("trainer.source.git", "use spec.trainer.source.image, configMap or volume"),
    _set("trainer.source.revision", "use spec.trainer.source.image, configMap or volume"),
    _value("join.start", "manual", "use 'auto', or create the run with spec.runPolicy.suspend: true and release it"),
    _value("join.start", "hybrid", "use 'auto'"),
    _true("join.walkIns", "leave it out: members are the pods of spec.cohorts"),
    _value("network.policy", "strict", "use 'basic' and add an egress policy of your own"),
    _set("scheduling.queueName", "leave it out: the run starts as soon as its members can be placed"),
    _true("scheduling.podGroup", "leave it out: spec.runPolicy.startupDeadlineSeconds frees half-placed runs"),
    _set("scheduling.topology", "use spec.cohorts[].nodeSelector or an affinity in spec.cohorts[].podTemplate"),
)
"""Refused values of FdlRun spec."""

CLUSTER: Final = (
    _set("dashboard", "leave it out: kubectl get fdlruns and the coordinator's /state.json show the state"),
)
"""Refused values of FdlCluster spec."""
