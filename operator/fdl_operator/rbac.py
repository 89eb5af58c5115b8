"""What the operator may do, as data: the chart's roles say the same, and a test runs the operator with exactly this.

It may neither exec into pods nor change them, never lists Secrets, and holds no right on finalizers.
"""

from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of a role, and why it is there."""

    groups: tuple[str, ...]
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    why: str
    names: tuple[str, ...] = ()

    def render(self) -> dict[str, Any]:
        """The rule as in a Role or ClusterRole."""
        body: dict[str, Any] = {
            "apiGroups": list(self.groups),
            "resources": list(self.resources),
            "verbs": list(self.verbs),
        }
        if self.names:
            body["resourceNames"] = list(self.names)
        return body


CLUSTER_RULES: Final = (
    Rule(("fdl.dev",), ("fdlruns",), ("list", "watch", "delete"), "see runs; delete one when its time to live is over"),
    Rule(("fdl.dev",), ("fdlclusters",), ("get", "list", "watch", "create"), "read settings; make the missing default"),
    Rule(("fdl.dev",), ("fdlruns/status", "fdlclusters/status"), ("patch",), "write both statuses"),
    Rule(("",), ("pods",), ("get", "list", "watch", "create", "delete"), "members, coordinators, deep checks"),
    Rule(("",), ("secrets",), ("get", "create"), "keys of a run; never listed, never changed"),
    Rule(("",), ("configmaps", "services"), ("list", "watch", "create", "patch", "delete"), "objects of a run"),
    Rule(
        ("networking.k8s.io",),
        ("networkpolicies",),
        ("list", "watch", "create", "patch", "delete"),
        "who may reach a run's pods",
    ),
    Rule(
        ("policy",),
        ("poddisruptionbudgets",),
        ("list", "watch", "create", "patch", "delete"),
        "keep drains from taking a run below its minimum",
    ),
    Rule(("",), ("nodes",), ("list", "watch"), "where members can run"),
    Rule(("events.k8s.io",), ("events",), ("create",), "tell people of transitions"),
)
"""In all watched namespaces. Lists of the run's objects ask for metadata only."""


TAINT_RULES: Final = (Rule(("",), ("nodes",), ("patch",), "the taint fdl.dev/quarantine, where the chart allows it"),)
"""Given only with the chart's operator.taintNodes; an admission policy beside it admits no other change of a node."""


def namespace_rules(lease: str) -> tuple[Rule, ...]:
    """In the operator's own namespace: leader election with the Lease of this name."""
    leases = ("coordination.k8s.io",)
    return (
        Rule(leases, ("leases",), ("create",), "leader election: names cannot limit a creation"),
        Rule(leases, ("leases",), ("get", "update"), "leader election", names=(lease,)),
    )
