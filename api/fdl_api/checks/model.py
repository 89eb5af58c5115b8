"""What is fixed about each check: its name, what it looks at, and each thing that it may find with a remedy.

The text of a finding in a report says what was seen; everything else of it comes from here, so that the reference page,
the prober and whoever reads a report cannot disagree.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from fdl_api.report import Check, Persistence, Severity

Group = Literal["devices", "libtorch", "nccl", "fabric", "data", "host"]
Place = Literal["cluster", "local", "both"]
GROUPS: Final[tuple[Group, ...]] = ("devices", "libtorch", "nccl", "fabric", "data", "host")


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check may find.

    Attributes:
        reason: stable name, unique within the check.
        severity: how grave it is.
        persistence: whether it may pass without a person at this machine.
        when: when it is found, as the end of a table row.
        remedy: what to do about it, as sentences.
        blocking: whether it keeps every member off the node.
    """

    reason: str
    severity: Severity
    persistence: Persistence
    when: str
    remedy: str
    blocking: bool = False


@dataclass(frozen=True, slots=True)
class CheckInfo:
    """One check.

    Attributes:
        name: stable name.
        group: row of the reference page.
        looks_at: what it looks at.
        findings: what it may find.
        place: on nodes of a cluster, on a machine outside of one (``fdl_prober --local``), or on both.
        by: who makes it.
    """

    name: str
    group: Group
    looks_at: str
    findings: tuple[Finding, ...]
    place: Place = "both"
    by: Literal["prober", "operator"] = "prober"

    def finding(self, reason: str) -> Finding:
        """The finding of a name.

        Raises:
            KeyError: the check has none of this name.
        """
        for entry in self.findings:
            if entry.reason == reason:
                return entry
        raise KeyError(f"check {self.name} has no finding {reason}")

    def passed(self, message: str, subject: str = "") -> Check:
        """A look that found nothing wrong."""
        return Check(name=self.name, severity="pass", subject=subject, message=message)

    def found(
        self, reason: str, message: str, subject: str = "", evidence: Mapping[str, object] | None = None
    ) -> Check:
        """Something found.

        Args:
            reason: which of the check's findings.
            message: what was seen, the same words as long as nothing changes: a new sentence is a write.
            subject: the device, variant or interface that it is about.
            evidence: what it was concluded from, by name.

        Raises:
            KeyError: the check has no such finding.
        """
        entry = self.finding(reason)
        return Check(
            name=self.name,
            reason=reason,
            severity=entry.severity,
            subject=subject,
            message=message,
            remedy=entry.remedy,
            persistence=entry.persistence,
            blocking=entry.blocking,
            evidence={key: str(value) for key, value in (evidence or {}).items()},
        )
