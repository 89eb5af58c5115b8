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
MAX_SUBJECT: Final = 300
MAX_MESSAGE: Final = 600
MAX_EVIDENCE: Final = 16
"""A report is one annotation of a node, and all of them together may have 256 KiB."""

GROUPS: Final[tuple[Group, ...]] = ("devices", "libtorch", "nccl", "fabric", "data", "host")


def plain(text: str, limit: int = 96) -> str:
    """Printable letters of a text, of bounded length.

    Names of files and variables may be any bytes: Python keeps those that are no UTF-8 as surrogates, which no JSON
    takes.
    """
    decoded = text.encode(errors="surrogateescape").decode(errors="replace")
    return "".join(letter for letter in decoded if letter.isprintable())[:limit]


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
    by: Literal["prober", "operator", "members"] = "prober"

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
        return Check(
            name=self.name,
            severity="pass",
            subject=plain(subject, MAX_SUBJECT),
            message=plain(message, MAX_MESSAGE),
        )

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
        told = list((evidence or {}).items())[:MAX_EVIDENCE]
        return Check(
            name=self.name,
            reason=reason,
            severity=entry.severity,
            subject=plain(subject, MAX_SUBJECT),
            message=plain(message, MAX_MESSAGE),
            remedy=entry.remedy,
            persistence=entry.persistence,
            blocking=entry.blocking,
            evidence={plain(key, MAX_SUBJECT): plain(str(value), MAX_MESSAGE) for key, value in told},
        )
