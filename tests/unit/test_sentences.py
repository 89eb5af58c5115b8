"""No sentence in any program says the same thing twice."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.sentences import told_twice

ROOT = Path(__file__).parents[2]
PACKAGES = (
    "api/fdl_api",
    "operator/fdl_operator",
    "cli/fdl_cli",
    "images/coordinator/fdl_coordinator",
    "images/trainer/fdl_trainer",
    "images/prober/fdl_prober",
)


def test_a_repeated_remedy_is_noticed() -> None:
    assert told_twice("a: put it where it belongs now (b: put it where it belongs)") == "put it where it belongs"
    assert told_twice("node a lacks label x; node b lacks label y") == ""


@pytest.mark.parametrize("package", PACKAGES)
def test_no_sentence_of_a_program_repeats_itself(package: str) -> None:
    found = list(_texts(ROOT / package))
    assert len(found) > 10, "the sentences are looked for at the wrong place"
    twice = {where: words for where, text in found if (words := told_twice(text))}
    assert not twice


def _texts(package: Path) -> Iterator[tuple[str, str]]:
    """Texts of more than ten words that are no docstrings, with file and line; names stand for what is filled in."""
    for path in sorted(package.rglob("*.py")):
        tree = ast.parse(path.read_text())
        said = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
        nested = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if node in said or id(node) in nested:
                continue
            text = _text(node)
            if len(text.split()) > 10:
                yield f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}", text


def _text(node: ast.AST) -> str:
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    if isinstance(node, ast.FormattedValue):
        return f"{{{ast.unparse(node.value)}}}"
    return "".join(_text(part) for part in node.values) if isinstance(node, ast.JoinedStr) else ""
