"""Whether the nodes' clocks agree with each other, by their reports laid side by side."""

from collections.abc import Sequence

from fdl_api import skew
from fdl_api.reasons import ClusterReason
from fdl_operator.plan.findings import Finding, Seen, listed


def clocks_agree(seen: Sequence[Seen]) -> Finding:
    """Whether no node's clock is far from the median of all. Each prober measures its own against the API server's."""
    offsets = {
        each.row.name: each.report.host.clock_offset_seconds
        for each in seen
        if each.report is not None and each.report.host.clock_offset_seconds is not None
    }
    if astray := skew.astray(offsets):
        sentence = (
            f"the clock of {listed(astray)} is more than {skew.WARN_SECONDS:g} s from the median of all "
            f"{len(offsets)} nodes"
        )
        return Finding(False, ClusterReason.CLOCKS_DIFFER, sentence)
    if len(offsets) < 2:
        return Finding(None, ClusterReason.CLOCK_UNKNOWN, "fewer than two fresh reports tell their node's clock")
    return Finding(True, ClusterReason.AS_EXPECTED, f"{len(offsets)} nodes have the same time")
