"""A process's place among those that a rank spans. No torch: the agent starts from it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from fdl_api.run import ElcheSpec, Mode

COMPANION_SECONDS = 0.5
"""Time that a process which failed leaves the agent to find the one that failed first: the death of one breaks the
collective of the others within milliseconds, and their words would say less."""

_RANK, _SIZE, _STORE = "FDL_INNER_RANK", "FDL_INNER_SIZE", "FDL_INNER_STORE"


@dataclass(frozen=True)
class Place:
    """Where a process stands.

    Attributes:
        rank: 0 leads.
        size: processes of the rank.
        store: file by which they find each other.
    """

    rank: int
    size: int
    store: Path

    def environment(self) -> dict[str, str]:
        """The variables that tell a process its place."""
        return {_RANK: str(self.rank), _SIZE: str(self.size), _STORE: str(self.store)}


def place_here(environment: Mapping[str, str] = os.environ) -> Place | None:
    """This process's place; None where a rank is one process."""
    if _RANK not in environment:
        return None
    return Place(int(environment[_RANK]), int(environment[_SIZE]), Path(environment[_STORE]))


def problem(mode: Mode, knobs: ElcheSpec) -> str:
    """Why a rank cannot span its member in such a run, as a sentence; empty if it can.

    The API server refuses the same; a run file can be written without it.
    """
    what = "spec.cohorts[].rankSpans is member, and"
    if mode.is_nccl:
        return f"{what} spec.mode is {mode.value}: such a rank averages in the host's memory; use a mode of cpu-*."
    if knobs.average == "gradients":
        return f"{what} spec.elche.average is gradients: shards have no sums of a window; use parameters."
    if knobs.average_state_every:
        return f"{what} spec.elche.averageStateEvery is set: the optimizer's state is sharded, too; leave it out."
    return ""
