"""The checks: each a pure function from facts to what a person should know.

Names, severities and remedies are the catalogue's (:mod:`fdl_api.checks`). A check that does not apply to a node is not
in its report.
"""

from collections.abc import Callable, Iterable, Iterator

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


MAX_ALIKE = 16
"""Findings of one kind that are told one by one."""


def _bounded(found: Iterable[Check]) -> Iterator[Check]:
    """The findings of one check: of each kind the first ones, and how many more there are."""
    kinds: dict[str, list[Check]] = {}
    for check in found:
        kinds.setdefault(check.reason, []).append(check)
    for alike in kinds.values():
        yield from alike[:MAX_ALIKE]
        if len(alike) > MAX_ALIKE:
            message = f"{len(alike) - MAX_ALIKE} more are like that"
            yield alike[0].model_copy(update={"subject": "others", "message": message, "evidence": {}})


def run(facts: Facts) -> tuple[Check, ...]:
    """All checks that apply to the node, in a fixed order."""
    return tuple(check for source in ALL for check in _bounded(source(facts)))
