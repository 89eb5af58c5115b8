"""Which tests may run side by side (``pytest -n 2``, as ``make test`` does).

Tests of one group run in one worker, one after the other: those that share the end-to-end cluster, those that start
clusters of their own, those that share the API server, and otherwise the tests of one file. Much of the first two is
waiting, in which the others can work. Without ``-n`` all run in one process, in the listed order.
"""

from pathlib import Path

import pytest

HERE = Path(__file__).parent
GROUPS = (
    (HERE / "e2e" / "local", "machine"),
    (HERE / "e2e" / "images", "images"),
    (HERE / "e2e", "cluster"),
    (HERE / "apiserver", "server"),
)


def group_of(path: Path) -> str:
    """Name of the group of a test file."""
    return next((name for folder, name in GROUPS if folder in path.parents), path.relative_to(HERE).as_posix())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark each test with its group, where pytest-xdist is there to use it."""
    if config.pluginmanager.hasplugin("xdist"):
        for item in items:
            item.add_marker(pytest.mark.xdist_group(group_of(item.path)))
