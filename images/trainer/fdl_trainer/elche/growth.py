"""The anchor: grows under the pressure of fixed cost, as far as the guard allows, and shrinks only by its word.

``overhead = F / (A m_s + F)`` with F the fixed cost of a window (averaging and loader fill), A the anchor, and m_s the
anchor rank's milliseconds a batch. Above the target T (twice T before the phase is stable) the anchor is to become
``ceil(A min(overhead / T, 2))``. The proposal is *staged*: it is applied with the guard's word "stable" and dropped
with any other (floDl's window pressure).
"""

import math
from dataclasses import replace

from fdl_api.spec_policy import RATIO_CAP
from fdl_trainer.elche.knobs import ElcheKnobs, Policy
from fdl_trainer.elche.state import ElcheState
from fdl_trainer.guard import Verdict

MIN_OVERHEAD_TARGET, MAX_OVERHEAD_TARGET = 0.01, 0.50
"""Bounds of T."""
MAX_GROWTH = 2.0
"""Most that an anchor grows in a window."""
REARM_AFTER = 5
"""Stable verdicts in a row that let a latched anchor grow again."""
LEAST_FACTOR = 0.1
"""Least that a nudge leaves of an anchor."""


def proposal(state: ElcheState, reduce_ms: float, fill_ms: float, spec: ElcheKnobs, policy: Policy) -> int:
    """Anchor that the pressure of fixed cost asks for, or 0 when it may or need not grow.

    Args:
        state: the state with this window's speeds.
        reduce_ms: cost of the averaging itself, without waiting for late ranks, in milliseconds.
        fill_ms: excess of the anchor rank's first batch over its steady rate (loader fill), in milliseconds.
        spec: the run's knobs.
        policy: in sync the anchor never moves.
    """
    slow_ms = state.ms_per_batch(state.anchor_rank)
    fixed_ms = reduce_ms + fill_ms
    if policy is Policy.SYNC or state.growth_latched or state.cap_binding or slow_ms <= 0.0:
        return 0
    if not math.isfinite(fixed_ms) or fixed_ms <= 0.0 or state.calibrations < 2:
        return 0
    target = min(max(spec.overhead_target, MIN_OVERHEAD_TARGET), MAX_OVERHEAD_TARGET)
    overhead = fixed_ms / (state.anchor * slow_ms + fixed_ms)
    if overhead <= (target if state.is_settled else 2.0 * target):
        return 0
    floor = spec.min_anchor if spec.min_anchor is not None else spec.anchor
    proposed = max(math.ceil(state.anchor * min(overhead / target, MAX_GROWTH)), floor)
    proposed = min(proposed, spec.max_anchor, ceiling(state, spec))
    return proposed if proposed > state.anchor else 0


def ceiling(state: ElcheState, spec: ElcheKnobs) -> int:
    """Largest anchor at which the spread of the quotas stays within ``max_batch_diff``: D / (R - 1).

    R is the ratio of the slowest to the fastest time a batch: quotas are A and R A, and R A - A <= D.
    """
    speeds = [speed.ms_per_batch for speed in state.ranks.values() if speed.ring]
    if not spec.max_batch_diff or not speeds:
        return spec.max_anchor
    ratio = min(max(speeds) / min(speeds), RATIO_CAP)
    return spec.max_anchor if ratio <= 1.0 else max(1, math.floor(spec.max_batch_diff / (ratio - 1.0)))


def apply_verdict(
    state: ElcheState, verdict: Verdict, spec: ElcheKnobs, policy: Policy, factor: float = 0.5
) -> ElcheState:
    """Commit or drop the staged anchor.

    Args:
        state: state with or without a staged anchor.
        verdict: the guard's word.
        spec: the run's knobs.
        policy: in sync the anchor never moves.
        factor: for a nudge or a rollback, what is left of the anchor; taken into 0.1..1. It may go below
            ``min_anchor``: the guard's word is stronger.
    """
    if policy is Policy.SYNC:
        return replace(state, staged=0)
    anchor, latched, run = state.anchor, True, 0
    if verdict is Verdict.STABLE:
        run = state.stable_run + 1
        latched = state.growth_latched and run < REARM_AFTER
        anchor = state.staged or state.anchor
        if spec.relax_up and not state.staged and not latched:
            anchor = max(anchor, min(anchor + 1, ceiling(state, spec), spec.max_anchor))
    elif verdict is not Verdict.SUPPRESS_GROWTH:
        anchor = min(state.anchor, math.ceil(state.anchor * min(max(factor, LEAST_FACTOR), 1.0)))
    anchor = max(anchor, 1)
    return replace(
        state,
        anchor=anchor,
        staged=0,
        growth_latched=latched,
        stable_run=run,
        moved=state.moved or anchor != state.anchor,
    )
