"""All guards together: one signal a window in, one judgement out.

The level guard's threshold is meant for the largest learning rate of the training; D falls at least in proportion to
the rate, so the threshold falls with it. When the rate falls off a cliff, what the guards remember is of another
regime: they start afresh and growth of the anchor is allowed again (or, with the meta controller, the anchor is cut).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

from fdl_trainer.guard.growth import GrowthMemory, growth
from fdl_trainer.guard.journal import Action, Journal, Record
from fdl_trainer.guard.level import is_measured, level, remember
from fdl_trainer.guard.meta import MetaMemory, is_cliff, meta
from fdl_trainer.guard.persistent import IGNORED, persistent
from fdl_trainer.guard.verdict import STABLE, Judgement, Signal, Verdict, gravest

LEAST_SCALE = 1e-3
"""The threshold is never scaled below this part of itself."""


class GuardKnobs(Protocol):
    """What the guards read of :class:`fdl_api.run.ElcheSpec`."""

    @property
    def divergence_threshold(self) -> float: ...
    @property
    def guard(self) -> str: ...
    @property
    def meta_controller(self) -> bool: ...


@dataclass(frozen=True)
class GuardState:
    """What all guards remember; equal on all ranks.

    Args:
        ring: the level guard's newest D, oldest first.
        growth: the growth guard's memory.
        meta: the meta controller's memory.
        hot: windows in a row above the hard limit.
        measured: windows with a D, counted up to the number that persistent divergence ignores.
        steps: most batches of a rank in the previous window, which the next D is of.
        lr: learning rate of the previous window; 0 when not known.
        peak_lr: largest learning rate until now.
        journal: what was done.
    """

    ring: tuple[float, ...] = ()
    growth: GrowthMemory = field(default_factory=GrowthMemory)
    meta: MetaMemory = field(default_factory=MetaMemory)
    hot: int = 0
    measured: int = 0
    steps: int = 0
    lr: float = 0.0
    peak_lr: float = 0.0
    journal: Journal = field(default_factory=Journal)


def judge(state: GuardState, signal: Signal, knobs: GuardKnobs) -> tuple[GuardState, Judgement, bool]:
    """Judge a committed window of a run in which the anchor may move.

    Returns:
        The new state with the action in its journal, the judgement, and whether growth of the anchor is to be allowed
        again because the learning rate fell.
    """
    cliff = is_cliff(state.lr, signal.lr)
    if cliff:
        state = replace(state, ring=(), growth=GrowthMemory(), hot=0)
    state, judged = _guards(state, signal, knobs)
    if knobs.meta_controller:
        memory, nudge = meta(state.meta, judged, cliff=cliff, anchor=signal.anchor, phase=signal.phase)
        state, judged = replace(state, meta=memory), gravest(judged, nudge)
    records = []
    loosen = cliff and judged.verdict is Verdict.STABLE
    if judged.verdict is not Verdict.STABLE:
        records.append(Record(signal.window, judged.guard, Action(judged.verdict.value), judged.why))
    elif loosen:
        why = f"The learning rate fell from {state.lr:.3g} to {signal.lr:.3g}; the anchor may grow again."
        records.append(Record(signal.window, "learningRate", Action.LOOSEN, why))
    known = signal.lr if signal.lr > 0.0 else state.lr
    state = replace(
        state,
        steps=signal.steps,
        lr=known,
        peak_lr=max(state.peak_lr, known),
        journal=state.journal.add(records),
    )
    return state, judged, loosen


def quarantined(state: GuardState, window: int, uids: Sequence[str]) -> GuardState:
    """Enter ranks whose models were not finite into the journal."""
    records = [
        Record(window, "finite", Action.QUARANTINE, f"The model of rank {uid} is not finite; its batches do not count.")
        for uid in uids
    ]
    return replace(state, journal=state.journal.add(records))


def is_apart(state: GuardState, window: int) -> bool:
    """Whether the copies were above the hard limit at the window that was committed last."""
    return state.hot > 0 or bool(rollback(state, window))


def rollback(state: GuardState, window: int) -> str:
    """Why the training has to go back to its last checkpoint after the window that was committed last, or nothing."""
    return next((record.why for record in state.journal.of(window) if record.action is Action.ROLLBACK), "")


def together(state: GuardState) -> GuardState:
    """The state when all ranks start from one checkpoint: their copies are equal."""
    return replace(state, hot=0)


def scaled_threshold(threshold: float, lr: float, peak_lr: float) -> float:
    """The level guard's threshold at a learning rate: in proportion to the largest one; as it is when unknown."""
    if lr <= 0.0 or peak_lr <= 0.0:
        return threshold
    return threshold * min(1.0, max(lr / peak_lr, LEAST_SCALE))


def to_json(state: GuardState) -> dict[str, Any]:
    """The state as JSON data; :func:`from_json` gives back an equal state, bit for bit."""
    return {**asdict(replace(state, journal=Journal())), "journal": state.journal.to_json()}


def from_json(data: Mapping[str, Any]) -> GuardState:
    """Inverse of :func:`to_json`.

    Raises:
        KeyError: if the journal or a memory is missing.
        TypeError: if a field is not known.
    """
    memory = {**data["meta"], "anchors": tuple(data["meta"]["anchors"])}
    parts = {
        "ring": tuple(data["ring"]),
        "growth": GrowthMemory(**data["growth"]),
        "meta": MetaMemory(**memory),
        "journal": Journal.from_json(data["journal"]),
    }
    return GuardState(**{**data, **parts})


def _guards(state: GuardState, signal: Signal, knobs: GuardKnobs) -> tuple[GuardState, Judgement]:
    """The guard of the run's choice, and persistent divergence; the meta controller judges over them."""
    if knobs.guard == "none" or not is_measured(signal.divergence):
        return state, STABLE
    hot, lasting = persistent(state.hot, signal.divergence, knobs.divergence_threshold, state.measured)
    state = replace(state, hot=hot, measured=min(state.measured + 1, IGNORED))
    if knobs.guard == "growth":
        memory, judged = growth(state.growth, signal.divergence, state.steps, signal.lr, state.lr)
        state = replace(state, growth=memory)
    else:
        state = replace(state, ring=remember(state.ring, signal.divergence))
        threshold = scaled_threshold(knobs.divergence_threshold, signal.lr, max(state.peak_lr, signal.lr))
        judged = level(state.ring, threshold)
    return state, gravest(judged, lasting)
