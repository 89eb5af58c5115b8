"""Property tests here assert no times: a busy machine must not fail them."""

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile("trainer", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("trainer")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whole runs of real processes get a second try (see CONTRIBUTING.md, Tests); the summary names it."""
    for item in items:
        if item.path.name in ("test_runtime_processes.py", "test_runtime_scripts.py"):
            item.add_marker(pytest.mark.flaky(reruns=1))
