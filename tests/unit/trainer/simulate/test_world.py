"""ElChe as a whole, in virtual time."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fdl_api.run import ElcheSpec, Mode
from fdl_trainer import ledger
from fdl_trainer.plan import PlanSpec
from fdl_trainer.simulate import text
from fdl_trainer.simulate.account import Spent, WindowRow
from fdl_trainer.simulate.scenario import Event, Kind, Scenario, parse_event, parse_rates
from fdl_trainer.simulate.world import World

ELCHE = ElcheSpec()


def play(
    rates: str,
    *events: str,
    mode: Mode = Mode.CPU_CADENCE,
    spec: ElcheSpec = ELCHE,
    deadlines: bool = False,
    **fields: Any,
) -> World:
    fields = {"windows": 60, **fields}
    scenario = Scenario(parse_rates(rates, 20.0), events=[parse_event(event) for event in events], **fields)
    world = World(scenario, replace(PlanSpec.of(mode, spec), deadlines=deadlines))
    world.run()
    return world


@pytest.mark.parametrize("rates", ["1:1", "1:2.3", "1:4", "1:1:4", "1:2:4:8"])
def test_unequal_ranks_lose_nothing_but_the_averaging(rates: str) -> None:
    account = play(rates).account
    assert account.steady_efficiency == pytest.approx(20 * 10 / (20 * 10 + 10), abs=1e-3)
    assert account.shares()[Spent.WAIT] < 0.005


def test_in_lockstep_the_slowest_sets_the_pace() -> None:
    """The bound of equal batches: N r_min / S, here 2 / 3.3, times what the averaging after each batch leaves."""
    account = play("1:2.3", mode=Mode.CPU_SYNC).account
    assert account.efficiency == pytest.approx(2 / 3.3 * 20 / 30, rel=1e-3)


def test_a_dear_averaging_makes_windows_long_until_it_is_cheap() -> None:
    world = play("1:2.3", reduce_ms=100.0, windows=100)
    assert world.control.elche.anchor * 20.0 == pytest.approx(100.0 * 19, rel=0.03)
    assert world.account.steady_efficiency == pytest.approx(0.95, abs=1e-3)


@pytest.mark.parametrize("rates", ["1:2.3", "1:4", "1:1:4"])
@pytest.mark.parametrize("deadlines", [True, False])
def test_after_a_swap_of_speeds_the_third_window_is_at_the_new_optimum(rates: str, deadlines: bool) -> None:
    rows = play(rates, "swap@w41", deadlines=deadlines).account.rows
    best = rows[39].efficiency
    assert rows[40].efficiency < 0.8 * best
    assert all(row.efficiency >= 0.95 * best for row in rows[42:])


@settings(max_examples=40, deadline=None)
@given(
    rates=st.lists(st.floats(1.0, 4.0), min_size=2, max_size=6),
    mode=st.sampled_from([Mode.CPU_CADENCE, Mode.CPU_ASYNC]),
    anchor=st.integers(8, 40),
    reduce_ms=st.floats(0.0, 10.0),
    jitter=st.sampled_from([0.0, 0.03]),
)
def test_within_three_windows_after_a_swap_any_cohort_is_back_at_its_optimum(
    rates: Sequence[float], mode: Mode, anchor: int, reduce_ms: float, jitter: float
) -> None:
    """Also with overlap, where the plan of a window is made before the one ahead of it is trained."""
    ms = [20.0 / rate for rate in rates]
    scenario = Scenario(
        ms, windows=60, jitter=jitter, reduce_ms=reduce_ms, events=[parse_event("swap@w41")], batch_size=1
    )
    world = World(scenario, PlanSpec.of(mode, ElcheSpec(anchor=anchor, max_anchor=anchor)))
    rows = world.run().rows
    before = _rate(rows[30:40])
    assert _rate(rows[42:45]) >= 0.95 * before
    assert all(row.efficiency >= 0.85 * before for row in rows[42:])


@pytest.mark.parametrize(("mode", "after"), [(Mode.CPU_CADENCE, 1), (Mode.CPU_ASYNC, 2)])
@pytest.mark.parametrize("rates", ["1:2.3", "1:4", "1:1:4"])
def test_the_noise_of_a_busy_machine_keeps_no_change_of_speed_back(rates: str, mode: Mode, after: int) -> None:
    """Windows that scatter by 5 %: work is shared well again as early as without noise, whatever the noise was."""
    late = []
    for seed in range(12):
        spec = ElcheSpec(anchor=20, max_anchor=20)
        world = play(rates, "swap@w41", mode=mode, spec=spec, deadlines=True, window_jitter=0.05, seed=seed)
        rows = world.account.rows
        if _rate(rows[40 + after : 45 + after]) < 0.95 * _rate(rows[20:40]):
            late.append(seed)
    assert late == []


def _rate(rows: Sequence[WindowRow]) -> float:
    """Efficiency over several windows: with overlap, a window's own is moved by what was trained ahead of it."""
    return sum(row.batches for row in rows) / sum(row.power for row in rows)


@pytest.mark.parametrize("noise", ["jitter", "window_jitter"])
def test_deadlines_win_where_batches_take_unequal_time(noise: str) -> None:
    by_count, by_time = (
        play("1x8", deadlines=deadlines, windows=80, **{noise: 0.15}).account.steady_efficiency
        for deadlines in (False, True)
    )
    assert by_time > by_count + 0.02


def test_with_overlap_the_averaging_costs_nothing() -> None:
    assert play("1:2.3", mode=Mode.CPU_ASYNC).account.steady_efficiency > 0.995


def test_time_is_accounted_for_to_the_last_part() -> None:
    world = play("1:2:4", "death:1@w10", "join:3@w20", "leave:0@w30", "stall:2:5@w35", jitter=0.2, fill_ms=5.0)
    shares = world.account.shares()
    assert sum(shares.values()) == pytest.approx(1.0)
    assert all(share > 0.0 for share in shares.values())
    assert shares[Spent.COMPUTE] == pytest.approx(world.account.efficiency, abs=0.02)
    assert [row.ranks for row in world.account.rows[8:32:2]] == [3, 2, 2, 2, 2, 2, 3, 3, 3, 3, 3, 2]


def test_a_rank_a_hundred_times_slower_does_not_hold_the_others_up() -> None:
    world = play("1:100:100", windows=100, spec=ElcheSpec(anchor=1, max_anchor=8))
    quotas = 8 + 2 * 64 * 8  # 64 times the anchor is the most that a quota may be
    assert world.account.steady_efficiency == pytest.approx(quotas / (201 * (8 + 0.5)), rel=0.01)
    assert play("1:100:100", mode=Mode.CPU_SYNC).account.efficiency < 0.015


def test_a_rank_that_stalls_through_ten_windows_keeps_its_place_and_its_speed() -> None:
    world = play("1:2.3", *(f"stall:1:1@w{window}" for window in range(20, 30)), windows=80)
    assert {uid: speed.quota for uid, speed in world.control.elche.ranks.items()} == {"r0": 10, "r1": 23}
    assert world.account.rows[-1].efficiency == pytest.approx(0.952, abs=1e-3)


def test_growing_divergence_stops_the_anchor_and_is_told() -> None:
    free = play("1:2.3", reduce_ms=500.0, windows=10)
    world = play("1:2.3", reduce_ms=500.0, windows=10, divergence=0.01)
    assert world.control.elche.anchor < free.control.elche.anchor
    assert text.data(world)["guard"]["counts"]["suppressGrowth"] >= 1
    assert "level: suppressGrowth" in text.render(world)


def test_an_epoch_of_the_data_bounds_the_window() -> None:
    world = play("1:2.3", epoch_batches=40, windows=20)
    assert max(row.batches for row in world.account.rows) <= 40


def test_the_same_seed_gives_the_same_course() -> None:
    first, second, other = (play("1:2.3", jitter=0.2, windows=20, seed=seed) for seed in (1, 1, 2))
    assert text.data(first) == text.data(second) != text.data(other)


def test_a_run_without_ranks_left_ends() -> None:
    world = play("1:2.3", "death:0@w5", "death:1@w5")
    assert len(world.account.rows) == 4
    assert "0.0" in text.render(World(Scenario([20.0], windows=0), PlanSpec.of(Mode.CPU_CADENCE, ELCHE)))


events = st.builds(
    Event,
    kind=st.sampled_from(Kind),
    window=st.integers(1, 25),
    rank=st.integers(0, 6),
    value=st.floats(0.2, 5.0),
)


@settings(max_examples=25, deadline=None)
@given(
    ms=st.lists(st.floats(1.0, 100.0), min_size=1, max_size=5),
    script=st.lists(events, max_size=6),
    mode=st.sampled_from([Mode.CPU_SYNC, Mode.CPU_CADENCE, Mode.CPU_ASYNC]),
    jitter=st.sampled_from([0.0, 0.3]),
    deadlines=st.booleans(),
    guard=st.sampled_from(["level", "growth"]),
    epoch_batches=st.none() | st.integers(1, 200),
)
def test_whatever_happens_every_batch_is_booked_and_nobody_works_for_two(
    ms: Sequence[float],
    script: Sequence[Event],
    mode: Mode,
    jitter: float,
    deadlines: bool,
    guard: str,
    epoch_batches: int | None,
) -> None:
    scenario = Scenario(ms, windows=25, jitter=jitter, events=script, epoch_batches=epoch_batches, divergence=0.02)
    spec = ElcheSpec.model_validate({"guard": guard, "metaController": True})
    world = World(scenario, replace(PlanSpec.of(mode, spec), deadlines=deadlines))
    account = world.run()
    control = world.control
    batches = sum(row.batches for row in account.rows)
    total = control.ledger.total
    assert control.samples == batches * scenario.batch_size == total - ledger.remaining(control.ledger)
    assert sum(account.shares().values()) == pytest.approx(1.0 if account.rows else 0.0)
    assert all(a.ended_ms < b.ended_ms for a, b in zip(account.rows, account.rows[1:], strict=False))
    if jitter == 0.0:
        assert all(row.efficiency <= 1.0 + 1e-9 for row in account.rows) or mode is Mode.CPU_ASYNC
