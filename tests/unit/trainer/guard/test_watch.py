import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdl_api.run import ElcheSpec
from fdl_trainer.guard import (
    Action,
    GuardState,
    Judgement,
    Phase,
    Signal,
    Verdict,
    is_apart,
    judge,
    quarantined,
    rollback,
    together,
    watch,
)
from fdl_trainer.guard.journal import KEPT
from fdl_trainer.guard.persistent import persistent
from fdl_trainer.guard.verdict import gravest

LEVEL = ElcheSpec(guard="level", divergence_threshold=0.05)


def play(
    spec: ElcheSpec, divergences: list[float], rates: list[float] | None = None
) -> tuple[GuardState, list[Judgement]]:
    state, judged = GuardState(), []
    for i, divergence in enumerate(divergences):
        signal = Signal(i + 1, divergence, 10, rates[i] if rates else 0.0, 10, Phase.STABLE)
        state, said, _ = judge(state, signal, spec)
        judged.append(said)
    return state, judged


def verdicts(judged: list[Judgement]) -> list[Verdict]:
    return [said.verdict for said in judged]


def test_the_gravest_judgement_wins_and_of_equals_the_one_that_leaves_least() -> None:
    calm, stop = Judgement(), Judgement(Verdict.SUPPRESS_GROWTH)
    half, tenth = Judgement(Verdict.NUDGE_DOWN, factor=0.5), Judgement(Verdict.NUDGE_DOWN, factor=0.1)
    back = Judgement(Verdict.ROLLBACK, factor=0.5)
    assert gravest(calm, stop) is stop
    assert gravest(half, stop, tenth) is tenth
    assert gravest(tenth, back) is back


def test_copies_that_stay_far_apart_end_in_a_rollback() -> None:
    state, judged = play(LEVEL, [9.0, 9.0, 9.0, 0.6, 0.6, 0.6, 0.6])
    assert verdicts(judged)[:3] == [Verdict.STABLE] * 3, "copies start far apart"
    assert verdicts(judged)[3:] == [
        Verdict.SUPPRESS_GROWTH,
        Verdict.NUDGE_DOWN,
        Verdict.ROLLBACK,
        Verdict.SUPPRESS_GROWTH,
    ]
    assert state.journal.counts == {"suppressGrowth": 2, "nudgeDown": 1, "rollback": 1}
    assert judged[5].why == "Divergence 0.6 is above the hard limit of 0.5 for the window 3 in a row."
    assert state.journal.of(6) == [(6, "persistent", "rollback", judged[5].why)]


def test_copies_are_apart_from_the_first_window_above_the_limit_to_the_rollback_and_together_after_a_restart() -> None:
    state, apart, back = GuardState(), [], []
    for window, divergence in enumerate([0.01, 0.01, 0.01, 0.6, 0.6, 0.6, 0.01, 0.6], start=1):
        state, _, _ = judge(state, Signal(window, divergence, 10, 0.0, 10, Phase.STABLE), LEVEL)
        apart.append(is_apart(state, window))
        back.append(bool(rollback(state, window)))
    assert apart == [False, False, False, True, True, True, False, True]
    assert back == [False] * 5 + [True, False, False]
    assert (state.hot, together(state)) == (1, replace(state, hot=0))


def test_one_window_below_the_limit_ends_persistence() -> None:
    hot, seen = 0, []
    for divergence in [0.6, 0.6, 0.4, 0.6, 0.6]:
        hot, said = persistent(hot, divergence, 0.05, measured=3)
        seen.append(said.verdict)
    assert Verdict.ROLLBACK not in seen


def test_after_a_fall_of_the_learning_rate_the_guard_loosens_and_does_not_fire() -> None:
    """D rose twice; the rate falls tenfold, D a hundredfold, and then rises a little again."""
    divergences = [0.03, 0.04, 0.0004, 0.0005, 0.0006]
    state, judged = play(LEVEL, divergences, rates=[0.1, 0.1, 0.01, 0.01, 0.01])
    assert verdicts(judged) == [Verdict.STABLE] * 5
    assert state.journal.counts == {"loosen": 1}
    assert state.ring == (0.0004, 0.0005, 0.0006), "what was before is of another regime"
    assert state.journal.last[0].why == "The learning rate fell from 0.1 to 0.01; the anchor may grow again."


def test_the_threshold_falls_with_the_learning_rate() -> None:
    rising = [0.001, 0.002, 0.003]
    assert verdicts(play(LEVEL, rising)[1])[-1] is Verdict.STABLE
    late = play(LEVEL, [0.0, *rising], rates=[0.1, 0.075, 0.0055, 0.004])[1]
    assert verdicts(late)[-1] is Verdict.STABLE, "a cliff on the way"
    rates = [0.1 * 0.8**i for i in range(20)]
    state, judged = play(LEVEL, [0.0] * 17 + rising, rates)
    assert verdicts(judged)[-1] is Verdict.SUPPRESS_GROWTH
    assert watch.scaled_threshold(0.05, 0.0, 0.1) == 0.05
    assert watch.scaled_threshold(0.05, 1e-9, 0.1) == pytest.approx(0.05e-3)
    assert state.peak_lr == 0.1


def test_the_meta_controller_speaks_only_where_it_is_wanted() -> None:
    rates = [0.1, 0.1, 0.01]
    wanted = ElcheSpec(guard="none", meta_controller=True)
    state, judged = play(wanted, [0.0] * 3, rates)
    assert (judged[-1].verdict, judged[-1].factor, judged[-1].guard) == (Verdict.NUDGE_DOWN, 0.5, "meta")
    assert state.journal.counts == {"nudgeDown": 1}
    assert verdicts(play(ElcheSpec(guard="none"), [0.0] * 3, rates)[1])[-1] is Verdict.STABLE


def test_the_growth_guard_takes_the_place_of_the_level_guard() -> None:
    rising = [0.06 * 1.4**i for i in range(4)]
    assert play(ElcheSpec(guard="growth"), rising)[1][-1].guard == "growth"
    assert play(LEVEL, rising)[1][-1].guard == "level"
    assert set(verdicts(play(ElcheSpec(guard="none"), rising)[1])) == {Verdict.STABLE}


def test_the_journal_is_bounded_and_counts_everything() -> None:
    state = GuardState()
    for window in range(50):
        state = quarantined(state, window, ["a", "b"])
    assert state.journal.counts == {Action.QUARANTINE: 100}
    assert len(state.journal.last) == KEPT
    assert state.journal.last[-1].window == 49


@given(
    divergences=st.lists(st.floats(0, 2), max_size=30),
    rates=st.lists(st.floats(0, 1), min_size=30, max_size=30),
    guard=st.sampled_from(["level", "growth", "none"]),
    meta=st.booleans(),
)
def test_the_state_survives_json_whatever_happened(
    divergences: list[float], rates: list[float], guard: str, meta: bool
) -> None:
    spec = ElcheSpec.model_validate({"guard": guard, "metaController": meta})
    state, judged = play(spec, divergences, rates)
    assert watch.from_json(json.loads(json.dumps(watch.to_json(state)))) == state
    assert all(0.0 < said.factor <= 1.0 for said in judged)
    assert sum(state.journal.counts.values()) >= sum(said.verdict is not Verdict.STABLE for said in judged)
