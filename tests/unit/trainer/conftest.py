"""Whole runs of real processes get a second try (see CONTRIBUTING.md, Tests); the summary names it."""

import inspect
from typing import Any

import pytest

from tests.unit.trainer.cluster import loopback_run


def names_in(function: Any) -> set[str]:
    """Global names that a function uses, in what is nested in it too."""
    codes, names = [inspect.unwrap(function).__code__], set()
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        codes += [inner for inner in code.co_consts if inspect.iscode(inner)]
    return names


def starts_a_run(item: pytest.Item) -> bool:
    """Whether a test starts a run of real processes itself."""
    if not isinstance(item, pytest.Function):
        return False
    function = inspect.unwrap(item.function)
    return any(function.__globals__.get(name) is loopback_run for name in names_in(function))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark them."""
    for item in items:
        if starts_a_run(item):
            item.add_marker(pytest.mark.flaky(reruns=1))
