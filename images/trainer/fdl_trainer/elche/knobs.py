"""What ElChe reads of a run's configuration."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Protocol

from fdl_trainer.guard import GuardKnobs


class Policy(StrEnum):
    """When ranks average."""

    SYNC = "sync"
    """After every batch; all train the same number of batches, or fixed shares."""
    CADENCE = "cadence"
    """After a window; all train for the same time."""


class ElcheKnobs(GuardKnobs, Protocol):
    """What ElChe reads of :class:`fdl_api.run.ElcheSpec`, which says what each knob means."""

    @property
    def anchor(self) -> int: ...
    @property
    def min_anchor(self) -> int | None: ...
    @property
    def max_anchor(self) -> int: ...
    @property
    def overhead_target(self) -> float: ...
    @property
    def dead_zone(self) -> float: ...
    @property
    def max_batch_diff(self) -> int | None: ...
    @property
    def relax_up(self) -> bool: ...
    @property
    def partition_ratios(self) -> Sequence[float] | None: ...
