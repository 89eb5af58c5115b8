"""Which tests may run side by side (``pytest -n 2 --dist loadscope``, as ``make test`` does), and no time limits.

Property tests assert no times, so that a busy machine fails none of them.

Tests of one group run in one worker, one after the other: those that share the end-to-end cluster, those that start
clusters of their own, those that share the API server, and otherwise the tests of one file. Much of the first two is
waiting, in which the others can work. Without ``-n`` all run in one process, in the listed order.
"""

from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("fdl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fdl")

GROUPS = (
    (PurePosixPath("tests/e2e/local"), "machine"),
    (PurePosixPath("tests/e2e/images"), "images"),
    (PurePosixPath("tests/e2e"), "cluster"),
    (PurePosixPath("tests/apiserver"), "server"),
)


def group_of(nodeid: str) -> str:
    """Name of the group of a test."""
    path = PurePosixPath(nodeid.partition("::")[0])
    return next((name for folder, name in GROUPS if folder in path.parents), str(path))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hand out whole groups, in the order of the command line."""
    from xdist.scheduler import LoadScopeScheduling  # only where pytest-xdist is installed and used

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group_of(nodeid)

    config.option.loadscopereorder = False
    return ByGroup(config, log)


RERUN_LINES = 40


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Why tests were run again: a test that needs a second try may tell of a fault that comes seldom."""
    reports = terminalreporter.getreports("rerun")
    if reports:
        terminalreporter.section("why tests were run again")
    for report in reports:
        terminalreporter.write_line(f"--- {report.nodeid}")
        terminalreporter.write_line("\n".join(report.longreprtext.splitlines()[-RERUN_LINES:]))
