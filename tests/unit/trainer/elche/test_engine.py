import itertools
import json
import math
from collections.abc import Mapping, Sequence
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdl_api.run import ElcheSpec
from fdl_trainer import elche
from fdl_trainer.elche import NOWHERE, ElcheState, Hardware, Phase, Policy, RankReport, Seated, Seating
from fdl_trainer.elche.speed import RankSpeed, stands_out
from fdl_trainer.guard import Verdict

FOREVER = 10**9
"""Micro-batches of a data epoch that never binds."""


class Cohort:
    """Plays windows of ranks with known milliseconds a batch through the planner."""

    def __init__(self, spec: ElcheSpec, members: Sequence[str], policy: Policy = Policy.CADENCE) -> None:
        self.spec, self.policy, self.epoch_batches = spec, policy, FOREVER
        self.reduce_ms, self.fill_ms = 0.0, 0.0
        first = {uid: elche.first_quota(elche.create(spec, policy), policy) for uid in members}
        self.state = elche.admit(elche.create(spec, policy), first)
        self.history: list[tuple[int, dict[str, int]]] = []

    @property
    def quotas(self) -> dict[str, int]:
        return elche.quotas(self.state, list(self.state.ranks), self.policy)

    def window(self, ms: Mapping[str, float], wait_ms: float = 0.0, divergence: float = 0.0) -> None:
        quotas = self.quotas
        self.history.append((self.state.anchor, quotas))
        reports = [RankReport(uid, quotas[uid], ms[uid] * quotas[uid], wait_ms * (quotas[uid] - 1)) for uid in ms]
        self.state = elche.observe(
            self.state,
            reports,
            reduce_ms=self.reduce_ms,
            fill_ms=self.fill_ms,
            spec=self.spec,
            policy=self.policy,
            divergence=divergence,
        )
        self.state = elche.assign(
            self.state, list(ms), spec=self.spec, policy=self.policy, epoch_batches=self.epoch_batches
        )

    def windows(self, count: int, ms: Mapping[str, float]) -> None:
        for _ in range(count):
            self.window(ms)


def distinct(values: Sequence[object]) -> list[object]:
    return [value for i, value in enumerate(values) if i == 0 or value != values[i - 1]]


def test_golden_vector() -> None:
    """Two ranks of 4 and 9.2 ms, a reduce of 20 ms, a fill of 4 ms, a target of 5 %."""
    cohort = Cohort(ElcheSpec(anchor=10, overhead_target=0.05), ["fast", "slow"])
    cohort.reduce_ms, cohort.fill_ms = 20.0, 4.0
    cohort.windows(25, {"fast": 4.0, "slow": 9.2})
    assert distinct([anchor for anchor, _ in cohort.history]) == [10, 20, 40, 49, 50]
    assert distinct([quotas for _, quotas in cohort.history])[:3] == [
        {"fast": 2, "slow": 2},
        {"fast": 23, "slow": 10},
        {"fast": 46, "slow": 20},
    ]
    assert cohort.quotas == {"fast": 115, "slow": 50}


def test_the_first_window_is_two_batches_each_and_no_sample_of_speed() -> None:
    cohort = Cohort(ElcheSpec(), ["a", "b"])
    cohort.window({"a": 4000.0, "b": 9000.0})
    assert cohort.history[0][1] == {"a": 2, "b": 2}
    assert cohort.state.calibrations == 0
    assert not any(speed.ring for speed in cohort.state.ranks.values())
    cohort.window({"a": 4.0, "b": 9.2})
    assert cohort.state.calibrations == 1
    assert cohort.quotas == {"a": 23, "b": 10}


def test_phases_only_go_forward() -> None:
    cohort = Cohort(ElcheSpec(), ["a"])
    phases = []
    for _ in range(25):
        cohort.window({"a": 4.0})
        phases.append(cohort.state.phase)
    expected = [Phase.PROBE] + [Phase.WARMUP] * 4 + [Phase.STABLE] * 15 + [Phase.MATURE] * 5
    assert phases == expected


def test_speed_is_the_mean_of_the_last_five_windows() -> None:
    cohort = Cohort(ElcheSpec(), ["a"])
    for ms in [50.0, 9.0, 10.0, 11.0, 10.5, 9.5, 10.2]:
        cohort.window({"a": ms})
    assert cohort.state.ranks["a"].ring == (10.0, 11.0, 10.5, 9.5, 10.2)
    assert cohort.state.ms_per_batch("a") == pytest.approx(10.24)


def test_a_step_change_of_speed_flushes_the_ring_with_the_second_window() -> None:
    cohort = Cohort(ElcheSpec(), ["a"])
    cohort.windows(8, {"a": 10.0})
    cohort.window({"a": 23.0})
    assert cohort.state.ms_per_batch("a") == 10.0
    cohort.window({"a": 23.0})
    assert cohort.state.ranks["a"].ring == (23.0, 23.0)


def test_after_a_swap_of_speeds_the_shares_are_right_again_after_two_windows() -> None:
    cohort = Cohort(ElcheSpec(), ["a", "b"])
    cohort.windows(8, {"a": 4.0, "b": 9.2})
    assert cohort.quotas == {"a": 23, "b": 10}
    cohort.windows(2, {"a": 9.2, "b": 4.0})
    assert cohort.quotas == {"a": 10, "b": 23}


@given(
    ratio=st.floats(1.4, 8.0) | st.floats(0.125, 0.7),
    part=st.floats(0.0, 1.0),
    before=st.integers(1, 10),
)
def test_a_change_within_a_window_is_known_after_two_whole_ones(ratio: float, part: float, before: int) -> None:
    """The window of the change is measured at a speed in between, which is nobody's."""
    cohort = Cohort(ElcheSpec(), ["a"])
    cohort.windows(1 + before, {"a": 10.0})
    cohort.window({"a": 10.0 * (part + (1.0 - part) * ratio)})
    cohort.windows(2, {"a": 10.0 * ratio})
    assert cohort.state.ms_per_batch("a") == pytest.approx(10.0 * ratio, rel=0.06)


def test_a_lone_outlier_is_left_out() -> None:
    cohort = Cohort(ElcheSpec(), ["a"])
    for ms in [10.0, 10.0, 10.0, 50.0, 10.0, 10.0]:
        cohort.window({"a": ms})
    assert cohort.state.ms_per_batch("a") == 10.0
    assert cohort.state.ranks["a"].suspect == 0.0


def test_jitter_to_both_sides_counts() -> None:
    cohort = Cohort(ElcheSpec(), ["a"])
    for ms in [10.0, 10.0, 10.0, 14.0, 7.0]:
        cohort.window({"a": ms})
    assert cohort.state.ranks["a"].ring == (10.0, 10.0, 14.0, 7.0)


NOISY = (9.0, 10.5, 11.0, 10.0, 9.5)


@pytest.mark.parametrize(
    ("ring", "sample", "apart"),
    [
        ((10.0, 10.0, 10.5), 12.5, True),  # of one speed: any suspect sample
        ((10.0,), 12.5, True),
        (NOISY, 12.5, False),  # within what noise does
        (NOISY, 16.0, False),
        (NOISY, 17.0, True),  # extremes of 1.22 to 1: from 1.67 to 1 on
        (NOISY, 6.1, False),
        (NOISY, 5.9, True),
        ((9.0, 10.0, 11.0), 23.0, False),  # the range of three says too little
    ],
)
def test_a_sample_stands_out_of_steady_ones_or_far_out_of_noise(
    ring: tuple[float, ...], sample: float, apart: bool
) -> None:
    assert stands_out(RankSpeed(ring), sample) is apart


@given(st.permutations(NOISY), st.sampled_from([8.0, 12.5]), st.sampled_from([0.25, 1 / 2.3, 2.3, 4.0]))
def test_an_earlier_outlier_does_not_hide_a_change_of_speed_from_noisy_samples(
    samples: Sequence[float], outlier: float, ratio: float
) -> None:
    cohort = Cohort(ElcheSpec(), ["a"])
    for ms in [10.0, *samples, outlier, 10.0 * ratio]:
        cohort.window({"a": ms})
    cohort.window({"a": 10.0 * ratio})
    assert cohort.state.ms_per_batch("a") == pytest.approx(10.0 * ratio)


def test_five_empty_windows_make_a_speed_unknown() -> None:
    cohort = Cohort(ElcheSpec(), ["a", "b"])
    cohort.windows(7, {"a": 4.0, "b": 9.2})
    assert cohort.state.anchor_rank == "b"
    for empty in range(5):
        assert cohort.state.ms_per_batch("b") == pytest.approx(9.2), empty
        reports = [RankReport("a", 10, 40.0, 0.0), RankReport("b", 0, 0.0, 0.0)]
        cohort.state = elche.observe(
            cohort.state, reports, reduce_ms=0, fill_ms=0, spec=cohort.spec, policy=Policy.CADENCE
        )
    assert cohort.state.ms_per_batch("b") == 0.0
    assert cohort.state.anchor_rank == "a"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -1.0, 0.0])
def test_a_time_that_cannot_be_is_no_sample(bad: float) -> None:
    cohort = Cohort(ElcheSpec(), ["a"])
    cohort.windows(4, {"a": 10.0})
    cohort.window({"a": bad})
    assert cohort.state.ms_per_batch("a") == 10.0


def test_waiting_for_data_makes_a_rank_slow_in_cadence_but_not_in_sync() -> None:
    for policy, expected in ((Policy.CADENCE, 12.0), (Policy.SYNC, 10.0)):
        cohort = Cohort(ElcheSpec(), ["a"], policy)
        for _ in range(3):
            cohort.window({"a": 10.0}, wait_ms=2.0)
        assert cohort.state.ms_per_batch("a") == expected


def test_the_anchor_rank_has_hysteresis() -> None:
    cohort = Cohort(ElcheSpec(), ["a", "b"])
    cohort.windows(8, {"a": 10.0, "b": 9.0})
    assert cohort.state.anchor_rank == "a"
    cohort.windows(10, {"a": 10.0, "b": 10.8})
    assert cohort.state.anchor_rank == "a", "a challenger must be slower by a tenth"
    cohort.windows(10, {"a": 10.0, "b": 11.2})
    assert cohort.state.anchor_rank == "b"


def test_a_changed_anchor_rank_moves_the_quotas_without_dead_zone() -> None:
    cohort = Cohort(ElcheSpec(anchor=100, dead_zone=0.5), ["a", "b"])
    cohort.windows(8, {"a": 10.0, "b": 9.0})
    assert cohort.quotas == {"a": 100, "b": 111}
    cohort.windows(10, {"a": 10.0, "b": 11.5})
    assert cohort.state.anchor_rank == "b"
    assert cohort.quotas == {"a": 115, "b": 100}


def test_small_changes_of_speed_leave_the_quotas() -> None:
    cohort = Cohort(ElcheSpec(anchor=100), ["a", "b"])
    cohort.windows(8, {"a": 5.0, "b": 10.0})
    assert cohort.quotas == {"a": 200, "b": 100}
    cohort.windows(8, {"a": 4.8, "b": 10.0})
    assert cohort.quotas == {"a": 200, "b": 100}
    cohort.windows(8, {"a": 4.7, "b": 10.0})
    assert cohort.quotas["a"] > 210


def test_a_quota_is_at_most_64_times_the_anchor_and_at_least_one() -> None:
    cohort = Cohort(ElcheSpec(anchor=3), ["fast", "slow"])
    cohort.windows(5, {"fast": 1.0, "slow": 1000.0})
    assert cohort.quotas == {"fast": 3 * 64, "slow": 3}
    # Before the phase is stable the anchor rank stays, however slow another one turns out to be.
    cohort = Cohort(ElcheSpec(anchor=3), ["slow", "slower"])
    cohort.windows(3, {"slow": 10.0, "slower": 10.0})
    cohort.windows(2, {"slow": 10.0, "slower": 1000.0})
    assert cohort.quotas["slower"] == 1


def test_max_batch_diff_bounds_each_move_and_the_spread() -> None:
    cohort = Cohort(ElcheSpec(anchor=10, max_batch_diff=5), ["fast", "slow"])
    cohort.reduce_ms = 1000.0
    cohort.windows(12, {"fast": 4.0, "slow": 8.0})
    moves = [quotas["fast"] for _, quotas in cohort.history]
    assert max(abs(a - b) for a, b in itertools.pairwise(moves)) == 5
    assert cohort.quotas == {"fast": 20, "slow": 10}
    assert cohort.state.anchor == 10, "twice the speed at an anchor above 5 would spread further"


def test_max_batch_diff_of_zero_is_lockstep() -> None:
    cohort = Cohort(ElcheSpec(anchor=7, max_batch_diff=0), ["fast", "slow"])
    cohort.windows(8, {"fast": 1.0, "slow": 9.0})
    assert cohort.quotas == {"fast": 7, "slow": 7}


def test_a_window_is_never_longer_than_a_data_epoch() -> None:
    cohort = Cohort(ElcheSpec(anchor=50), ["fast", "slow"])
    cohort.epoch_batches, cohort.reduce_ms = 57, 1000.0
    cohort.windows(9, {"fast": 4.0, "slow": 9.2})
    assert sum(cohort.quotas.values()) == 57
    assert cohort.quotas["fast"] / cohort.quotas["slow"] == pytest.approx(2.3, rel=0.1)
    assert cohort.state.cap_binding
    assert cohort.state.anchor == 50, "a longer window could not be used"


def test_with_more_ranks_than_batches_each_still_has_one() -> None:
    members = [f"r{i}" for i in range(9)]
    cohort = Cohort(ElcheSpec(), members)
    cohort.epoch_batches = 4
    cohort.windows(4, dict.fromkeys(members, 5.0))
    assert set(cohort.quotas.values()) == {1}


def test_growth_stops_at_max_anchor() -> None:
    cohort = Cohort(ElcheSpec(anchor=10, max_anchor=32), ["a"])
    cohort.reduce_ms = 1e6
    cohort.windows(10, {"a": 1.0})
    assert cohort.state.anchor == 32


def test_rising_divergence_holds_growth_and_five_calm_windows_release_it() -> None:
    cohort = Cohort(ElcheSpec(anchor=10), ["a", "b"])
    ms = {"a": 4.0, "b": 9.2}
    cohort.windows(2, ms)
    cohort.reduce_ms = 1000.0
    for divergence in (0.1, 0.2, 0.3):
        cohort.window(ms, divergence=divergence)
    held = cohort.state.anchor
    assert cohort.state.growth_latched
    for _ in range(4):
        cohort.window(ms, divergence=0.1)
    assert cohort.state.anchor == held
    cohort.window(ms, divergence=0.1)
    assert not cohort.state.growth_latched
    cohort.window(ms, divergence=0.1)
    assert cohort.state.anchor > held


def test_without_a_guard_divergence_does_not_matter() -> None:
    cohort = Cohort(ElcheSpec(anchor=10, guard="none"), ["a"])
    cohort.reduce_ms = 1000.0
    for divergence in (0.1, 0.2, 0.3, 0.4, 0.5, 0.6):
        cohort.window({"a": 4.0}, divergence=divergence)
    assert not cohort.state.growth_latched


@pytest.mark.parametrize(("factor", "anchor"), [(0.5, 20), (0.01, 4), (2.0, 40)])
def test_a_nudge_cuts_the_anchor_even_below_its_minimum(factor: float, anchor: int) -> None:
    spec = ElcheSpec(anchor=40, min_anchor=30)
    state = ElcheState(anchor=40, staged=80)
    after = elche.apply_verdict(state, Verdict.NUDGE_DOWN, spec, Policy.CADENCE, factor)
    assert (after.anchor, after.staged, after.growth_latched) == (anchor, 0, True)


def test_relax_up_lets_the_anchor_creep() -> None:
    spec = ElcheSpec(anchor=10, max_anchor=12, relax_up=True)
    state = elche.create(spec, Policy.CADENCE)
    anchors = []
    for _ in range(4):
        state = elche.apply_verdict(state, Verdict.STABLE, spec, Policy.CADENCE)
        anchors.append(state.anchor)
    assert anchors == [11, 12, 12, 12]


def test_in_sync_all_train_one_batch_for_ever() -> None:
    cohort = Cohort(ElcheSpec(anchor=10), ["a", "b"], Policy.SYNC)
    cohort.reduce_ms = 1000.0
    cohort.windows(30, {"a": 4.0, "b": 9.2})
    assert {tuple(quotas.values()) for _, quotas in cohort.history} == {(1, 1)}


def test_a_joiner_starts_with_two_batches_and_is_measured_in_its_second_window() -> None:
    cohort = Cohort(ElcheSpec(), ["a", "b"])
    cohort.windows(8, {"a": 4.0, "b": 8.0})
    cohort.state = elche.admit(cohort.state, {"new": elche.first_quota(cohort.state, Policy.CADENCE)})
    ms = {"a": 4.0, "b": 8.0, "new": 2.0}
    assert cohort.quotas["new"] == 2
    cohort.window(ms)
    assert cohort.quotas["new"] == 2
    cohort.window(ms)
    assert cohort.quotas == {"a": 20, "b": 10, "new": 40}


def test_when_the_anchor_rank_dies_another_takes_over_and_the_dead_are_forgotten() -> None:
    cohort = Cohort(ElcheSpec(), ["a", "b", "c"])
    cohort.windows(3, {"a": 4.0, "b": 5.0, "c": 9.2})
    assert cohort.state.anchor_rank == "c"
    cohort.state = elche.keep(cohort.state, ["a", "b"])
    assert cohort.state.anchor_rank == "b"
    assert set(cohort.state.ranks) == {"a", "b"}


def test_those_that_leave_get_nothing() -> None:
    cohort = Cohort(ElcheSpec(), ["a", "b"])
    cohort.windows(3, {"a": 4.0, "b": 8.0})
    state = elche.assign(
        cohort.state, ["a", "b"], spec=cohort.spec, policy=Policy.CADENCE, epoch_batches=FOREVER, leaving=["a"]
    )
    assert elche.quotas(state, ["a", "b"]) == {"a": 0, "b": 10}


times = st.floats(0.01, 1e4)


@given(
    speeds=st.lists(st.lists(times, min_size=3, max_size=3), min_size=1, max_size=20),
    reduce_ms=st.floats(0, 1e5),
    anchor=st.integers(1, 100),
    diff=st.none() | st.integers(0, 50),
    epoch_batches=st.integers(1, 1000),
    policy=st.sampled_from(Policy),
    guard=st.sampled_from(["none", "level", "growth"]),
    ratios=st.none() | st.just((0.2, 0.3, 0.5)) | st.just((0.5, 0.5)),
    distances=st.lists(st.floats(0.0, 10.0), min_size=20, max_size=20),
)
def test_whatever_is_measured_quotas_stay_in_their_bounds_and_the_state_survives_json(
    speeds: list[list[float]],
    reduce_ms: float,
    anchor: int,
    diff: int | None,
    epoch_batches: int,
    policy: Policy,
    guard: Literal["none", "level", "growth"],
    ratios: tuple[float, ...] | None,
    distances: list[float],
) -> None:
    spec = ElcheSpec(
        anchor=anchor, max_anchor=200, max_batch_diff=diff, guard=guard, meta_controller=True, partition_ratios=ratios
    )
    cohort = Cohort(spec, ["a", "b", "c"], policy)
    cohort.reduce_ms, cohort.epoch_batches = reduce_ms, epoch_batches
    for ms, divergence in zip(speeds, distances, strict=False):
        cohort.window(dict(zip("abc", ms, strict=True)), divergence=divergence)
        total = sum(cohort.quotas.values())
        assert all(quota >= 1 for quota in cohort.quotas.values())
        assert total <= max(epoch_batches, 3)
        assert 1 <= cohort.state.anchor <= 200
        assert elche.from_json(json.loads(json.dumps(elche.to_json(cohort.state)))) == cohort.state


@given(ratio=st.floats(1.0, 60.0), slow=st.floats(0.1, 1000.0), anchor=st.integers(10, 200))
def test_steady_ranks_end_within_one_batch_of_equal_time(ratio: float, slow: float, anchor: int) -> None:
    spec = ElcheSpec(anchor=anchor, max_anchor=100000)
    cohort = Cohort(spec, ["fast", "slow"])
    cohort.windows(8, {"fast": slow / ratio, "slow": slow})
    quotas = cohort.quotas
    assert abs(quotas["fast"] / ratio - quotas["slow"]) <= 1.0 + 1e-9


def test_a_window_is_measured_with_data_waits_only_if_every_rank_that_counts_has_one() -> None:
    """The wait for a window's first batch is its fill, so a rank with one batch has none."""
    cohort = Cohort(ElcheSpec(anchor=1), ["fast", "slow"])
    for _ in range(2):
        cohort.window({"fast": 4.0, "slow": 8.0}, wait_ms=4.0)
    assert cohort.quotas == {"fast": 2, "slow": 1}
    assert cohort.state.ranks["fast"].ring == (8.0,), "8 ms with the wait, as long as both had two batches"
    cohort.window({"fast": 4.0, "slow": 8.0}, wait_ms=4.0)
    assert cohort.state.ranks["fast"].suspect == 4.0, "now all are measured without"
    assert cohort.state.ranks["slow"].suspect == 8.0


def test_a_rank_that_is_not_finite_is_in_the_journal_and_keeps_its_speed() -> None:
    cohort = Cohort(ElcheSpec(), ["a", "b"])
    cohort.windows(3, {"a": 4.0, "b": 8.0})
    reports = [RankReport("a", 20, 80.0, 0.0), RankReport("b", 0, 80.0, 0.0)]
    state = elche.observe(
        cohort.state,
        reports,
        reduce_ms=0,
        fill_ms=0,
        spec=cohort.spec,
        policy=Policy.CADENCE,
        window=4,
        quarantined=["b"],
    )
    assert state.ms_per_batch("b") == 8.0
    (record,) = state.guard.journal.last
    assert (record.window, record.guard, record.action) == (4, "finite", "quarantine")
    assert record.why == "The model of rank b is not finite; its batches do not count."


def test_growth_is_allowed_again_when_the_learning_rate_falls() -> None:
    cohort = Cohort(ElcheSpec(anchor=10), ["a"])
    latched = cohort.state = ElcheState(anchor=10, growth_latched=True)
    for lr in (0.1, 0.01):
        latched = elche.observe(
            latched, [], reduce_ms=0, fill_ms=0, spec=cohort.spec, policy=Policy.CADENCE, lr=lr, divergence=0.02
        )
        assert latched.growth_latched is (lr == 0.1)
    assert latched.guard.journal.counts == {"loosen": 1}


def test_ratios_are_fixed_shares_in_sync_modes() -> None:
    spec = ElcheSpec(partition_ratios=(0.7, 0.3))
    cohort = Cohort(spec, ["a", "b"], Policy.SYNC)
    cohort.state = elche.believe(cohort.state, ["a", "b"], NOWHERE, spec, Policy.SYNC)
    cohort.windows(3, {"a": 4.0, "b": 9.2})
    assert cohort.quotas == {"a": 7, "b": 3}
    cohort.state = elche.admit(cohort.state, {"c": 1})
    cohort.state = elche.believe(cohort.state, ["a", "b", "c"], NOWHERE, spec, Policy.SYNC)
    cohort.windows(2, {"a": 4.0, "b": 9.2, "c": 5.0})
    assert cohort.quotas == {"a": 1, "b": 1, "c": 1}, "two ratios do not fit three ranks"


def unequal(**millicores: int) -> Seating:
    return Seating(len(millicores), {uid: Seated(-1, Hardware("cpu", "x", 1, cpu)) for uid, cpu in millicores.items()})


@pytest.mark.parametrize(
    ("spec", "seating"),
    [(ElcheSpec(partition_ratios=(0.8, 0.2)), NOWHERE), (ElcheSpec(), unequal(a=16000, b=1000))],
)
def test_ratios_or_devices_seed_the_first_windows_of_a_cadence_and_no_more(spec: ElcheSpec, seating: Seating) -> None:
    state = elche.believe(elche.create(spec, Policy.CADENCE), ["a", "b"], seating, spec, Policy.CADENCE)
    first = elche.first_quotas(state, ["a", "b"], ["a", "b"], Policy.CADENCE)
    assert first == {"a": 8, "b": 2}
    cohort = Cohort(spec, ["a", "b"])
    cohort.state = elche.admit(state, first)
    cohort.window({"a": 8.0, "b": 4.0})
    assert cohort.quotas == {"a": 8, "b": 2}, "the first window is no sample"
    cohort.window({"a": 8.0, "b": 4.0})
    assert cohort.quotas == {"a": 10, "b": 20}, "what is measured counts, however wrong the guess was"
    joined = elche.believe(cohort.state, ["b", "c"], unequal(b=1000, c=16000), spec, Policy.CADENCE)
    assert elche.first_quotas(joined, ["c"], ["b", "c"], Policy.CADENCE) == {"c": 2}, "a joiner's are two in any case"


def test_what_is_believed_is_part_of_the_state_that_ranks_give_each_other() -> None:
    state = elche.believe(
        elche.create(ElcheSpec(), Policy.CADENCE), ["a", "b"], unequal(a=4000, b=1000), ElcheSpec(), Policy.CADENCE
    )
    assert state.shares == {"a": 2.0, "b": 1.0}
    data = json.loads(json.dumps(elche.to_json(state)))
    assert elche.from_json(data) == state
    del data["shares"]
    assert elche.from_json(data).shares == {}, "a checkpoint of an earlier release"


def test_a_jittery_rank_gets_more_than_its_quota_and_a_deadline_if_ranks_can_stop_by_time() -> None:
    cohort = Cohort(ElcheSpec(anchor=20), ["a", "b"])
    for i in range(8):
        cohort.window({"a": 4.0 + 0.5 * (i % 2), "b": 8.0})
    for deadlines in (True, False):
        state = elche.assign(
            cohort.state,
            ["a", "b"],
            spec=cohort.spec,
            policy=Policy.CADENCE,
            epoch_batches=FOREVER,
            deadlines=deadlines,
        )
        quota = state.ranks["a"].quota
        given = elche.quotas(state, ["a", "b"])
        assert given["b"] == state.ranks["b"].quota == 20
        assert given["a"] == (quota + math.ceil(quota / 4) if deadlines else quota)
        assert elche.deadline_ms(state, "a") == (state.window_ms if deadlines else 0.0)
        assert elche.deadline_ms(state, "b") == 0.0
        assert state.window_ms == pytest.approx(160.0, rel=0.03)


def test_what_a_resume_keeps_is_said() -> None:
    spec = ElcheSpec(max_anchor=30, partition_ratios=(0.5, 0.5))
    state = ElcheState(anchor=40, ranks={"a": elche.RankSpeed((4.0,)), "b": elche.RankSpeed((9.0,))})
    assert elche.resume_notes(state, ["x", "b", "y"], spec) == [
        "The anchor of 40 batches and what the guards remember are kept.",
        "The speeds of 1 of 2 ranks are forgotten: they are not in this cohort.",
        "2 of 3 ranks have not been measured: they start with a few batches.",
        "The anchor is above elche.maxAnchor (30); it stays, but does not grow.",
    ]
    assert elche.resume_notes(ElcheState(anchor=4), [], ElcheSpec()) == [
        "The anchor of 4 batches and what the guards remember are kept."
    ]
