import math

import pytest

from fdl_trainer.guard import Judgement, Verdict
from fdl_trainer.guard.growth import GrowthMemory, growth


def play(values: list[float], steps: int = 10, rates: list[float] | None = None) -> tuple[GrowthMemory, list[Verdict]]:
    memory, judged = GrowthMemory(), []
    for i, value in enumerate(values):
        memory, said = growth(memory, value, steps, rates[i] if rates else 0.0, rates[i - 1] if rates and i else 0.0)
        judged.append(said.verdict)
    return memory, judged


def test_the_rate_of_steady_growth_is_right_from_the_first_sample_on() -> None:
    """The bias correction: without it the first rate would be a tenth of the true one."""
    memory = GrowthMemory()
    for window in range(6):
        memory, _ = growth(memory, 0.01 * math.exp(0.002 * 10 * window), 10)
        assert memory.rate == pytest.approx(0.002 if window else 0.0)


def test_slow_growth_stops_the_anchor_with_the_third_window_and_every_third_after() -> None:
    _, judged = play([0.01 * math.exp(0.002 * 10 * window) for window in range(8)])
    assert [said is Verdict.SUPPRESS_GROWTH for said in judged] == [False] * 3 + [True, False, False, True, False]


def test_fast_growth_nudges_and_wins_over_slow_growth() -> None:
    memory, judged = play([0.01 * math.exp(0.02 * 10 * window) for window in range(4)])
    assert judged[-1] is Verdict.NUDGE_DOWN
    assert (memory.fast, memory.slow) == (0, 3), "firing resets only its own streak"


def test_a_divergence_of_nothing_breaks_the_chain() -> None:
    memory, judged = play([1e-3, 1e-9, 1e3, 1e3, 1e3])
    assert set(judged) == {Verdict.STABLE}
    assert memory.rate == 0.0


def test_a_rise_of_the_learning_rate_explains_an_equal_rise_of_divergence() -> None:
    values = [0.01 * 1.3**window for window in range(6)]
    assert Verdict.NUDGE_DOWN in play(values)[1]
    memory, judged = play(values, rates=[1e-3 * 1.3**window for window in range(6)])
    assert set(judged) == {Verdict.STABLE}
    assert memory.rate == pytest.approx(0.0, abs=1e-15)


def test_falling_divergence_is_calm_and_a_falling_learning_rate_explains_nothing() -> None:
    assert set(play([1.0, 0.5, 0.25, 0.12, 0.06], rates=[0.5**window for window in range(5)])[1]) == {Verdict.STABLE}


def test_a_judgement_says_its_figures() -> None:
    memory = GrowthMemory(divergence=0.1, fast=2, slow=2)
    judged: Judgement = growth(memory, 0.2, 10)[1]
    assert judged.why == "Divergence grows by 6.93% a step, above 1.0% in 3 windows."
