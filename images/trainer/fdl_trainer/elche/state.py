"""ElChe's memory, and its JSON."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fdl_trainer.elche.speed import RankSpeed
from fdl_trainer.guard import GuardState, Phase, watch

STABLE_AFTER, MATURE_AFTER = 5, 20
"""Calibrations after which a phase begins."""


@dataclass(frozen=True)
class ElcheState:
    """ElChe's whole memory; equal on all ranks at a boundary.

    Args:
        anchor: batches of the anchor rank in a window.
        staged: anchor that waits for the guard's word; 0 when none does.
        anchor_rank: UID of the slowest rank; empty while no speed is known.
        calibrations: windows that gave at least one sample of speed.
        ranks: what is known of each member.
        growth_latched: the guard has stopped growth.
        stable_run: stable verdicts in a row.
        cap_binding: the window would be longer than a data epoch, so that growth is pointless.
        moved: the anchor or its rank changed and the quotas have not followed yet.
        window_ms: planned length of the window in milliseconds, from its start to the last batch's end; 0 while not
            known, and in sync modes.
        guard: what the guards remember and did.
        shares: what is believed of the members' relative speeds before they are measured (:mod:`..elche.hints`), or
            their fixed shares in sync modes; empty when nothing is.
    """

    anchor: int
    staged: int = 0
    anchor_rank: str = ""
    calibrations: int = 0
    ranks: Mapping[str, RankSpeed] = field(default_factory=dict)
    growth_latched: bool = False
    stable_run: int = 0
    cap_binding: bool = False
    moved: bool = False
    window_ms: float = 0.0
    guard: GuardState = field(default_factory=GuardState)
    shares: Mapping[str, float] = field(default_factory=dict)

    @property
    def phase(self) -> Phase:
        """How far the calibration is."""
        if self.calibrations >= MATURE_AFTER:
            return Phase.MATURE
        if self.calibrations >= STABLE_AFTER:
            return Phase.STABLE
        return Phase.WARMUP if self.calibrations else Phase.PROBE

    @property
    def is_settled(self) -> bool:
        """Whether the phase is stable or mature."""
        return self.calibrations >= STABLE_AFTER

    def ms_per_batch(self, uid: str) -> float:
        """Smoothed milliseconds a batch of a rank; 0 when unknown."""
        return self.ranks[uid].ms_per_batch if uid in self.ranks else 0.0


def to_json(state: ElcheState) -> dict[str, Any]:
    """The state as JSON data; :func:`from_json` gives back an equal state, bit for bit."""
    return {
        "anchor": state.anchor,
        "staged": state.staged,
        "anchorRank": state.anchor_rank,
        "calibrations": state.calibrations,
        "ranks": {
            uid: [list(speed.ring), speed.suspect, speed.reports, speed.empty, speed.quota, speed.lease]
            for uid, speed in state.ranks.items()
        },
        "growthLatched": state.growth_latched,
        "stableRun": state.stable_run,
        "capBinding": state.cap_binding,
        "moved": state.moved,
        "windowMs": state.window_ms,
        "guard": watch.to_json(state.guard),
        "shares": dict(state.shares),
    }


def from_json(data: Mapping[str, Any]) -> ElcheState:
    """Inverse of :func:`to_json`.

    Raises:
        KeyError: if a field is missing.
    """
    return ElcheState(
        anchor=data["anchor"],
        staged=data["staged"],
        anchor_rank=data["anchorRank"],
        calibrations=data["calibrations"],
        ranks={uid: RankSpeed(tuple(ring), *rest) for uid, (ring, *rest) in data["ranks"].items()},
        growth_latched=data["growthLatched"],
        stable_run=data["stableRun"],
        cap_binding=data["capBinding"],
        moved=data["moved"],
        window_ms=data["windowMs"],
        guard=watch.from_json(data["guard"]),
        shares=dict(data.get("shares", {})),  # checkpoints from before it was there have none
    )
