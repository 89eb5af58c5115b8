"""How far clocks may be apart: limits of the probers' check, and the rule over the reports of all nodes. Pure."""

from collections.abc import Mapping
from typing import Final

WARN_SECONDS: Final = 2.0
FAR_SECONDS: Final = 30.0
RESOLUTION_SECONDS: Final = 1.0
"""An offset is taken from the Date header of the API server's answers, which has whole seconds."""


def away(offset: float) -> float:
    """How far apart two clocks are for certain, in seconds, when they were measured to be ``offset`` apart."""
    return max(0.0, abs(offset) - RESOLUTION_SECONDS)


def astray(offsets: Mapping[str, float]) -> tuple[str, ...]:
    """Nodes whose clock is more than :data:`WARN_SECONDS` from the median of all nodes' clocks, by name.

    The API server's own clock does not matter here, since all offsets are against it. Of an even number of nodes both
    middle values count, so that of two nodes both are named: nothing tells which of them is wrong.

    Args:
        offsets: each node's clock minus the API server's, in seconds.
    """
    if not offsets:
        return ()
    sizes = sorted(offsets.values())  # by hand: on every node the module statistics would take 0.4 MB
    middle = (sizes[(len(sizes) - 1) // 2], sizes[len(sizes) // 2])
    return tuple(
        name for name, offset in sorted(offsets.items()) if max(away(offset - each) for each in middle) > WARN_SECONDS
    )
