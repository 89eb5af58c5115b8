"""The table of nodes within what the API server stores: an object has at most about 1.5 MB."""

from collections.abc import Callable, Sequence
from typing import Final

from fdl_api.cluster import NodeProblem, NodeStatus

MAX_BYTES: Final = 1_000_000
"""Bytes of the rows as JSON; conditions, quarantine and metadata come on top."""
SHORT: Final = 160
"""Characters of a message that is shortened."""


def fitting(rows: Sequence[NodeStatus], limit: int = MAX_BYTES) -> tuple[NodeStatus, ...]:
    """Rows of at most ``limit`` bytes: shortened step by step, and at last without nodes that are ready.

    Remedies go first, then warnings; the nodes' own reports have all of it.
    """
    shortened: Sequence[NodeStatus] = rows
    for step in _STEPS:
        shortened = [_changed(row, step) for row in rows]
        sizes = [_size(row) for row in shortened]
        if sum(sizes) <= limit:
            return tuple(shortened)
    left, kept = limit, set()
    for index in sorted(range(len(sizes)), key=lambda index: shortened[index].ready):
        if sizes[index] <= left:
            left -= sizes[index]
            kept.add(index)
    return tuple(row for index, row in enumerate(shortened) if index in kept)


def _size(row: NodeStatus) -> int:
    return len(row.model_dump_json(by_alias=True)) + 1


def _changed(row: NodeStatus, step: Callable[[NodeProblem], NodeProblem | None]) -> NodeStatus:
    problems = tuple(found for problem in row.problems if (found := step(problem)) is not None)
    return row if problems == row.problems else row.model_copy(update={"problems": problems})


def _whole(problem: NodeProblem) -> NodeProblem | None:
    return problem


def _without_remedy(problem: NodeProblem) -> NodeProblem | None:
    return problem.model_copy(update={"remedy": ""})


def _short_errors(problem: NodeProblem) -> NodeProblem | None:
    if problem.severity != "error":
        return None
    return problem.model_copy(update={"remedy": "", "message": problem.message[:SHORT]})


_STEPS: Final = (_whole, _without_remedy, _short_errors)
