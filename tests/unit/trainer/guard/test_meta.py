import itertools

import pytest

from fdl_trainer.guard import STABLE, Judgement, Phase, Verdict
from fdl_trainer.guard.meta import MetaMemory, is_cliff, meta

SPOKE = Judgement(Verdict.SUPPRESS_GROWTH, "level", "It rose.")


@pytest.mark.parametrize(
    ("before", "now", "cliff"),
    [(0.1, 0.06, True), (0.1, 0.071, False), (0.1, 0.2, False), (0.0, 0.1, False), (0.1, 0.0, False)],
)
def test_a_cliff_is_a_fall_of_more_than_thirty_percent(before: float, now: float, cliff: bool) -> None:
    assert is_cliff(before, now) is cliff


def test_a_smooth_decay_is_no_cliff() -> None:
    rates = [0.1 * 0.97**i for i in range(200)]
    assert not any(is_cliff(a, b) for a, b in itertools.pairwise(rates))


def test_a_cliff_halves_a_steady_anchor() -> None:
    memory = MetaMemory(anchors=(40, 40, 40, 40))
    memory, judged = meta(memory, STABLE, cliff=True, anchor=40, phase=Phase.PROBE)
    assert (judged.verdict, judged.factor) == (Verdict.NUDGE_DOWN, 0.5)
    assert judged.why == "The learning rate fell by more than 30%."
    assert memory.anchors == (40,) * 5


def test_a_rising_anchor_is_cut_deeper_and_a_falling_one_less() -> None:
    factors = [
        meta(MetaMemory(anchors=before), STABLE, cliff=True, anchor=anchor, phase=Phase.STABLE)[1].factor
        for before, anchor in [((10, 20), 40), ((40, 40), 40), ((80, 60), 40)]
    ]
    assert factors == sorted(factors)
    assert factors[0] == pytest.approx(0.5 - 0.5 * (40 - 70 / 3) / (70 / 3))
    assert factors[0] < factors[1] == 0.5 < factors[2]


@pytest.mark.parametrize(
    ("phase", "patience", "factor"), [(Phase.WARMUP, 5, 0.3), (Phase.STABLE, 3, 0.5), (Phase.MATURE, 2, 0.7)]
)
def test_guards_that_never_rest_cut_the_anchor_once(phase: Phase, patience: int, factor: float) -> None:
    memory, factors = MetaMemory(), []
    for _ in range(patience + 1):
        memory, judged = meta(memory, SPOKE, cliff=False, anchor=10, phase=phase)
        factors.append(judged.factor)
    assert factors == [1.0] * (patience - 1) + [factor, 1.0]


def test_a_calm_window_ends_the_pattern_and_the_probe_phase_has_none() -> None:
    memory = MetaMemory()
    for judged in [SPOKE, SPOKE, STABLE, SPOKE, SPOKE]:
        memory, said = meta(memory, judged, cliff=False, anchor=10, phase=Phase.STABLE)
        assert said is STABLE
    for _ in range(9):
        memory, said = meta(memory, SPOKE, cliff=False, anchor=10, phase=Phase.PROBE)
        assert said is STABLE


def test_both_watchers_multiply() -> None:
    memory = MetaMemory(unrest=2, anchors=(10,))
    judged = meta(memory, SPOKE, cliff=True, anchor=10, phase=Phase.STABLE)[1]
    assert judged.factor == 0.25
    assert judged.why == "The learning rate fell by more than 30% and the guards spoke 3 windows in a row."
