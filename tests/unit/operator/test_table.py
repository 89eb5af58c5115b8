"""The table of nodes is cut to what the API server stores, the least needed first."""

import pytest

from fdl_api.cluster import NodeProblem, NodeStatus
from fdl_operator.plan.table import SHORT, fitting

LONG = "m" * 400


def row(number: int, *, ready: bool = True) -> NodeStatus:
    problems = (
        NodeProblem(check="w", severity="warning", message=LONG, remedy="r" * 400),
        NodeProblem(check="e", severity="error", message=LONG, remedy="r" * 400),
    )
    return NodeStatus(name=f"n{number}", ready=ready, problems=problems)


def size(rows: tuple[NodeStatus, ...]) -> int:
    return sum(len(each.model_dump_json(by_alias=True)) + 1 for each in rows)


ROWS = tuple(row(number, ready=number % 2 == 0) for number in range(10))


def test_what_fits_is_left_as_it_is() -> None:
    assert fitting(ROWS) == ROWS


@pytest.mark.parametrize(
    ("limit", "problems", "remedies", "message"), [(15_000, 2, set(), 400), (6_000, 1, set(), SHORT)]
)
def test_remedies_go_first_then_warnings(limit: int, problems: int, remedies: set[str], message: int) -> None:
    cut = fitting(ROWS, limit)
    assert size(cut) <= limit and len(cut) == len(ROWS)
    for each in cut:
        assert len(each.problems) == problems and len(each.problems[-1].message) == message
        assert {problem.remedy for problem in each.problems} - {""} == remedies
        assert each.problems[-1].severity == "error"


def test_at_last_ready_nodes_are_left_out_and_the_order_stays() -> None:
    cut = fitting(ROWS, 2_000)
    assert size(cut) <= 2_000 and [each.name for each in cut if not each.ready] == ["n1", "n3", "n5", "n7", "n9"]
    assert [each.name for each in cut] == sorted(each.name for each in cut)


def test_five_thousand_nodes_with_problems_fit() -> None:
    many = tuple(row(number) for number in range(5000))
    assert size(fitting(many)) <= 1_000_000
