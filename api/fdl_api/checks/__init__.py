"""The catalogue of all checks: :data:`CHECKS`, one :class:`CheckInfo` for each stable name.

docs/reference/checks.md is generated from it (:mod:`fdl_api.checks.page`).
"""

from typing import Final

from fdl_api.checks import devices, machine, pairs, software
from fdl_api.checks.model import GROUPS, CheckInfo, Finding

CHECKS: Final[tuple[CheckInfo, ...]] = (*devices.CHECKS, *software.CHECKS, *machine.CHECKS, *pairs.CHECKS)

__all__ = ["CHECKS", "GROUPS", "CheckInfo", "Finding"]
