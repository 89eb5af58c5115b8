"""Tests that need real devices: ``python -m pytest tests/device`` on a machine with one or two of them.

Elsewhere each is skipped and says what it lacks. Figures that the tests measure are printed at the end, and written as
JSON to the file that ``FDL_DEVICE_FIGURES`` names.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

FIGURES: dict[str, Any] = {}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "devices(n): needs n CUDA or ROCm devices")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here, there = Path(__file__).parent, torch.cuda.device_count() if torch.cuda.is_available() else 0
    for item in items:
        if here in item.path.parents:
            wanted = next((mark.args[0] for mark in item.iter_markers("devices")), 1)
            if there < wanted:
                item.add_marker(
                    pytest.mark.skip(reason=f"needs {wanted} CUDA or ROCm device(s), this machine has {there}")
                )


@pytest.fixture
def figure() -> Callable[[str, Any], None]:
    """Keep a measured figure for the summary; several of one name are listed."""

    def keep(name: str, value: Any) -> None:
        FIGURES.setdefault(name, []).append(value)

    return keep


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not FIGURES:
        return
    terminalreporter.section("figures of the devices")
    for name, values in FIGURES.items():
        terminalreporter.write_line(f"{name}: {values}")
    target = os.environ.get("FDL_DEVICE_FIGURES")
    if target:
        Path(target).write_text(json.dumps(FIGURES, indent=1))
