"""ElChe: how many batches each rank trains before the next averaging.

The slowest rank, the *anchor rank*, trains ``anchor`` batches in a window, and every other rank as many as it can
in the same time. The anchor grows while the fixed cost of a window (averaging, filling the loader) is more than
``overhead_target`` of it. Everything here is host integers and doubles over numbers that all ranks share, with
operations that IEEE 754 fixes to the last bit, so that all ranks plan alike without asking.

Source of the formulas: floDl's ElChe at its newest values, with the ring flushed on a step change of speed and
without a dead zone when the anchor changes.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Protocol

from fdl_trainer import guard
from fdl_trainer.guard import Verdict
from fdl_trainer.ledger import apportion

RING = 5
"""Windows over which a rank's speed is averaged."""
STEP_CHANGE = 0.2
"""Relative distance from the mean at which a sample is suspect; two in one direction are a change of speed."""
EMPTY_LIMIT = 5
"""Empty windows in a row after which a rank's speed is no longer known."""
FIRST_QUOTA = 2
"""Batches of a rank whose speed is not known."""
RATIO_CAP = 64.0
"""How many times the anchor a quota may be."""
SLOW_COHORT = 0.85
"""Ranks at or above this part of the slowest rank's time a batch may be the anchor rank."""
CHALLENGE = 1.10
"""A rank takes the anchor over from one in the slow cohort only if it is slower by this factor."""
MIN_OVERHEAD_TARGET, MAX_OVERHEAD_TARGET = 0.01, 0.50
MAX_GROWTH = 2.0
STABLE_AFTER, MATURE_AFTER = 5, 20
REARM_AFTER = 5
"""Stable verdicts in a row that let a latched anchor grow again."""


class Policy(StrEnum):
    """When ranks average."""

    SYNC = "sync"
    """All train the same number of batches."""
    CADENCE = "cadence"
    """All train for the same time."""


class Phase(StrEnum):
    """How much is known; phases only go forward."""

    PROBE = "probe"
    WARMUP = "warmup"
    STABLE = "stable"
    MATURE = "mature"


class ElcheKnobs(Protocol):
    """What ElChe reads of :class:`fdl_api.run.ElcheSpec`."""

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
    def divergence_threshold(self) -> float: ...
    @property
    def guard(self) -> str: ...


@dataclass(frozen=True)
class RankReport:
    """What a rank did in a committed window, from the reduced tail.

    Args:
        uid: the rank.
        batches: micro-batches that it contributed.
        compute_ms: milliseconds that it spent on them without waiting for data.
        wait_ms: milliseconds that it waited for data, the first batch of the window left out.
    """

    uid: str
    batches: int
    compute_ms: float
    wait_ms: float


@dataclass(frozen=True)
class RankSpeed:
    """What is known of one rank.

    Args:
        ring: newest accepted samples, milliseconds a batch, oldest first.
        suspect: a sample far from the mean that waits for the next one; 0 when there is none.
        reports: windows in which the rank moved. The first one warms caches and is never a sample.
        empty: windows in a row in which it did not move.
        quota: batches planned for its window; 0 before the first plan.
    """

    ring: tuple[float, ...] = ()
    suspect: float = 0.0
    reports: int = 0
    empty: int = 0
    quota: int = 0

    @property
    def ms_per_batch(self) -> float:
        """Mean of the ring in milliseconds a batch; 0 when the speed is not known."""
        return sum(self.ring) / len(self.ring) if self.ring else 0.0


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
        divergence: newest values of the guard's D, oldest first.
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
    divergence: tuple[float, ...] = ()

    @property
    def phase(self) -> Phase:
        """How far the calibration is."""
        if self.calibrations >= MATURE_AFTER:
            return Phase.MATURE
        if self.calibrations >= STABLE_AFTER:
            return Phase.STABLE
        return Phase.WARMUP if self.calibrations else Phase.PROBE

    def ms_per_batch(self, uid: str) -> float:
        """Smoothed milliseconds a batch of a rank; 0 when unknown."""
        return self.ranks[uid].ms_per_batch if uid in self.ranks else 0.0


def create(spec: ElcheKnobs, policy: Policy) -> ElcheState:
    """State before the first window."""
    return ElcheState(anchor=1 if policy is Policy.SYNC else spec.anchor)


def observe(
    state: ElcheState,
    reports: Sequence[RankReport],
    *,
    reduce_ms: float,
    fill_ms: float,
    spec: ElcheKnobs,
    policy: Policy,
    divergence: float = 0.0,
) -> ElcheState:
    """Learn from a committed window: speeds, anchor rank, and the anchor under the guard's verdict.

    Args:
        state: what was known before.
        reports: one report a member, in member order.
        reduce_ms: cost of the averaging itself, without waiting for late ranks, in milliseconds.
        fill_ms: excess of the anchor rank's first batch over its steady rate (loader fill), in milliseconds.
        spec: the run's knobs.
        policy: sync or cadence.
        divergence: the guard's D of this window; 0 when not measured.

    Returns:
        The new state; its quotas are those of before until :func:`assign` makes new ones.
    """
    ranks = dict(state.ranks)
    calibrated = False
    for report in reports:
        known = ranks.get(report.uid, RankSpeed())
        sample = _sample(known, report, policy)
        ranks[report.uid] = _learn(known, report.batches, sample)
        calibrated |= sample > 0.0
    state = replace(
        state,
        ranks=ranks,
        calibrations=state.calibrations + calibrated,
        divergence=guard.remember(state.divergence, divergence),
    )
    state = _elect(state, [report.uid for report in reports])
    state = replace(state, staged=_proposal(state, reduce_ms, fill_ms, spec, policy))
    watched = policy is not Policy.SYNC and spec.guard != "none"
    verdict = guard.level(state.divergence, spec.divergence_threshold) if watched else Verdict.STABLE
    return apply_verdict(state, verdict, spec, policy)


def apply_verdict(
    state: ElcheState, verdict: Verdict, spec: ElcheKnobs, policy: Policy, factor: float = 0.5
) -> ElcheState:
    """Commit or drop the staged anchor.

    Args:
        state: state with or without a staged anchor.
        verdict: the guard's word.
        spec: the run's knobs.
        policy: in sync the anchor never moves.
        factor: for a nudge, what is left of the anchor; taken into 0.1..1. A nudge may go below ``min_anchor``.
    """
    if policy is Policy.SYNC:
        return replace(state, staged=0)
    anchor, latched, run = state.anchor, True, 0
    if verdict is Verdict.STABLE:
        run = state.stable_run + 1
        latched = state.growth_latched and run < REARM_AFTER
        anchor = state.staged or state.anchor
        if spec.relax_up and not state.staged and not latched:
            anchor = min(anchor + 1, _ceiling(state, spec), max(spec.max_anchor, anchor))
    elif verdict is Verdict.NUDGE_DOWN:
        anchor = max(1, min(state.anchor, math.ceil(state.anchor * min(max(factor, 0.1), 1.0))))
    anchor = max(anchor, 1)
    return replace(
        state,
        anchor=anchor,
        staged=0,
        growth_latched=latched,
        stable_run=run,
        moved=state.moved or anchor != state.anchor,
    )


def assign(
    state: ElcheState,
    members: Sequence[str],
    *,
    spec: ElcheKnobs,
    policy: Policy,
    epoch_batches: int,
    leaving: Collection[str] = (),
) -> ElcheState:
    """Plan the quotas of the next window and forget who is no member any more.

    Args:
        state: state after :func:`observe`.
        members: ranks of the next window, in order.
        spec: the run's knobs.
        policy: sync: the anchor for all; cadence: in proportion to speed.
        epoch_batches: micro-batches in a data epoch, which no window may exceed.
        leaving: members that train nothing more.

    Returns:
        The state with a quota for each member, 0 for those that leave, at least 1 for the others.
    """
    state = replace(state, ranks={uid: state.ranks.get(uid, RankSpeed()) for uid in members})
    if not state.ms_per_batch(state.anchor_rank):
        state = _elect(state, members)
    working = [uid for uid in members if uid not in leaving]
    wanted = {uid: _quota(state, state.ranks[uid], spec, policy) for uid in working}
    capped, binding = _cap(wanted, epoch_batches)
    ranks = {uid: replace(speed, quota=capped.get(uid, 0)) for uid, speed in state.ranks.items()}
    return replace(state, ranks=ranks, cap_binding=binding, moved=False)


def quotas(state: ElcheState, members: Sequence[str], policy: Policy = Policy.CADENCE) -> dict[str, int]:
    """Planned batches of each member, in order; those that were never planned get two (in sync: at most the anchor)."""
    return {uid: state.ranks[uid].quota if uid in state.ranks else first_quota(state, policy) for uid in members}


def keep(state: ElcheState, members: Sequence[str]) -> ElcheState:
    """Forget all ranks but these; if the anchor rank is gone, another one is elected."""
    state = replace(state, ranks={uid: state.ranks[uid] for uid in members if uid in state.ranks})
    return state if state.anchor_rank in state.ranks else _elect(replace(state, anchor_rank=""), members)


def admit(state: ElcheState, joiners: Mapping[str, int]) -> ElcheState:
    """Take ranks of unknown speed in, with the quotas of their first window."""
    return replace(state, ranks={**state.ranks, **{uid: RankSpeed(quota=first) for uid, first in joiners.items()}})


def first_quota(state: ElcheState, policy: Policy) -> int:
    """Batches of a rank of unknown speed: few, since everybody waits for it."""
    return state.anchor if policy is Policy.SYNC else FIRST_QUOTA


def to_json(state: ElcheState) -> dict[str, Any]:
    """The state as JSON data; :func:`from_json` gives back an equal state, bit for bit."""
    return {
        "anchor": state.anchor,
        "staged": state.staged,
        "anchorRank": state.anchor_rank,
        "calibrations": state.calibrations,
        "ranks": {
            uid: [list(speed.ring), speed.suspect, speed.reports, speed.empty, speed.quota]
            for uid, speed in state.ranks.items()
        },
        "growthLatched": state.growth_latched,
        "stableRun": state.stable_run,
        "capBinding": state.cap_binding,
        "moved": state.moved,
        "divergence": list(state.divergence),
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
        ranks={
            uid: RankSpeed(tuple(ring), suspect, reports, empty, quota)
            for uid, (ring, suspect, reports, empty, quota) in data["ranks"].items()
        },
        growth_latched=data["growthLatched"],
        stable_run=data["stableRun"],
        cap_binding=data["capBinding"],
        moved=data["moved"],
        divergence=tuple(data["divergence"]),
    )


def _sample(known: RankSpeed, report: RankReport, policy: Policy) -> float:
    """Milliseconds a batch that a report tells, or 0 when it tells nothing."""
    if report.batches <= 0 or known.reports == 0:
        return 0.0
    # Sync ranks wait for each other after every batch, so only compute tells them apart.
    cost_ms = report.compute_ms + (report.wait_ms if policy is Policy.CADENCE else 0.0)
    sample = cost_ms / report.batches
    return sample if math.isfinite(sample) and sample > 0.0 else 0.0


def _learn(known: RankSpeed, batches: int, sample: float) -> RankSpeed:
    """One rank's memory after a window with ``batches`` batches and a sample (0: none)."""
    if batches <= 0:
        empty = known.empty + 1
        return replace(known, empty=empty, ring=() if empty >= EMPTY_LIMIT else known.ring)
    known = replace(known, empty=0, reports=known.reports + 1)
    return _push(known, sample) if sample > 0.0 else known


def _push(known: RankSpeed, sample: float) -> RankSpeed:
    """Take a sample in: a lone outlier is left out, two in one direction replace the ring."""
    mean = known.ms_per_batch
    if not known.ring or abs(sample - mean) <= STEP_CHANGE * mean:
        return replace(known, ring=(*known.ring, sample)[-RING:], suspect=0.0)
    if known.suspect == 0.0:
        return replace(known, suspect=sample)
    if (known.suspect > mean) == (sample > mean):
        return replace(known, ring=(known.suspect, sample), suspect=0.0)
    # One above and one below are jitter, which the mean has to see.
    return replace(known, ring=(*known.ring, known.suspect, sample)[-RING:], suspect=0.0)


def _elect(state: ElcheState, members: Sequence[str]) -> ElcheState:
    """Choose the anchor rank, with hysteresis."""
    speeds = {uid: ms for uid in members if (ms := state.ms_per_batch(uid)) > 0.0}
    if not speeds:
        return state
    present = speeds.get(state.anchor_rank, 0.0)
    if present and state.phase not in (Phase.STABLE, Phase.MATURE):
        return state
    slowest = max(speeds.values())
    if present >= SLOW_COHORT * slowest and slowest <= CHALLENGE * present:
        return state
    if present >= SLOW_COHORT * slowest:
        elected = next(uid for uid, ms in speeds.items() if ms == slowest)
    else:
        elected = next(uid for uid, ms in speeds.items() if ms >= SLOW_COHORT * slowest)
    return replace(state, anchor_rank=elected, moved=state.moved or elected != state.anchor_rank)


def _proposal(state: ElcheState, reduce_ms: float, fill_ms: float, spec: ElcheKnobs, policy: Policy) -> int:
    """Anchor that the pressure of fixed cost asks for, or 0 when it may or need not grow."""
    slow_ms = state.ms_per_batch(state.anchor_rank)
    fixed_ms = reduce_ms + fill_ms
    if policy is Policy.SYNC or state.growth_latched or state.cap_binding or slow_ms <= 0.0:
        return 0
    if not math.isfinite(fixed_ms) or fixed_ms <= 0.0 or state.calibrations < 2:
        return 0
    target = min(max(spec.overhead_target, MIN_OVERHEAD_TARGET), MAX_OVERHEAD_TARGET)
    overhead = fixed_ms / (state.anchor * slow_ms + fixed_ms)
    limit = target if state.phase in (Phase.STABLE, Phase.MATURE) else 2.0 * target
    if overhead <= limit:
        return 0
    floor = spec.min_anchor if spec.min_anchor is not None else spec.anchor
    proposed = max(math.ceil(state.anchor * min(overhead / target, MAX_GROWTH)), floor)
    proposed = min(proposed, spec.max_anchor, _ceiling(state, spec))
    return proposed if proposed > state.anchor else 0


def _ceiling(state: ElcheState, spec: ElcheKnobs) -> int:
    """Largest anchor at which the spread of the quotas stays within ``max_batch_diff``: D / (R - 1)."""
    speeds = [speed.ms_per_batch for speed in state.ranks.values() if speed.ring]
    if not spec.max_batch_diff or not speeds:
        return spec.max_anchor
    ratio = min(max(speeds) / min(speeds), RATIO_CAP)
    return spec.max_anchor if ratio <= 1.0 else max(1, math.floor(spec.max_batch_diff / (ratio - 1.0)))


def _quota(state: ElcheState, speed: RankSpeed, spec: ElcheKnobs, policy: Policy) -> int:
    """Batches for one rank before the window cap."""
    if policy is Policy.SYNC:
        return state.anchor
    slow_ms = state.ms_per_batch(state.anchor_rank)
    if not speed.ring or slow_ms <= 0.0:
        return FIRST_QUOTA
    if spec.max_batch_diff == 0:
        return state.anchor
    target = max(1, _round(state.anchor * min(slow_ms / speed.ms_per_batch, RATIO_CAP)))
    # A window too short for a small change to matter keeps its quota, but never against a new anchor.
    if not state.moved and speed.quota and abs(target - speed.quota) <= spec.dead_zone * speed.quota:
        return speed.quota
    if spec.max_batch_diff is not None and speed.quota:
        target = min(max(target, speed.quota - spec.max_batch_diff), speed.quota + spec.max_batch_diff)
    return max(1, target)


def _cap(wanted: dict[str, int], epoch_batches: int) -> tuple[dict[str, int], bool]:
    """Scale quotas down so that a window does not exceed a data epoch; at least one batch each wins over the cap."""
    if sum(wanted.values()) <= epoch_batches:
        return wanted, False
    shares = dict(zip(wanted, apportion(list(wanted.values()), epoch_batches), strict=True))
    for uid in [uid for uid, share in shares.items() if share == 0]:
        largest = max(shares, key=lambda other: shares[other])
        shares[largest] = max(1, shares[largest] - 1)
        shares[uid] = 1
    return shares, True


def _round(value: float) -> int:
    """Nearest integer, halves away from zero (the value is positive)."""
    return math.floor(value + 0.5)
