"""The checks: each a pure function from facts to what a person should know.

Names, severities and remedies are the catalogue's (:mod:`fdl_api.checks`). A check that does not apply to a node is not
in its report.
"""

from collections.abc import Callable, Iterator

from fdl_api.report import Check
from fdl_prober.checks import data, devices, fabric, host, libtorch, nccl
from fdl_prober.facts import Facts

ALL: tuple[Callable[[Facts], Iterator[Check]], ...] = (
    *devices.ALL,
    *libtorch.ALL,
    *nccl.ALL,
    *fabric.ALL,
    *data.ALL,
    *host.ALL,
)


def run(facts: Facts) -> tuple[Check, ...]:
    """All checks that apply to the node, in a fixed order."""
    return tuple(check for source in ALL for check in source(facts))
