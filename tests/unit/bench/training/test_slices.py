"""Slices of real processes: what they measure is looked at for sense, never for speed."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench.training.arena import Arena
from bench.training.catalog import BY_NAME
from bench.training.cohorts import Cohort
from bench.training.measure import Outcome, Timing
from bench.training.workloads import WORKLOADS

PAIR = Cohort("1:2", (2.0, 1.0))
SIZE = WORKLOADS["mlp"].batch_size


@pytest.fixture
def arena(tmp_path: Path) -> Iterator[Arena]:
    made = Arena(tmp_path, "cpu", {})
    yield made
    made.close()
    assert list(tmp_path.iterdir()) == []


def measured(arena: Arena, name: str, seconds: float = 3.0, sizes: tuple[int, int] = (SIZE, SIZE)) -> Outcome:
    knobs = {"anchor": 1, "max_anchor": 4}
    outcome = arena.run(BY_NAME[name], PAIR, "mlp", Timing(0.5, seconds), sizes=sizes, seed=1, knobs=knobs)
    assert outcome.reason == ""
    assert outcome.load is not None
    return outcome


needs_two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two ranks need two cores")


@needs_two_cores
def test_solo_counts_each_rank_and_the_fastest_runs_alone(arena: Arena) -> None:
    assert len(measured(arena, "solo").rates) == 2
    assert len(measured(arena, "fastest alone").rates) == 1


@needs_two_cores
def test_ddp_commits_the_same_steps_on_all_ranks_with_their_own_sizes(arena: Arena) -> None:
    span = measured(arena, "DDP proportional", sizes=(SIZE // 2, SIZE)).span
    assert span is not None
    assert span.samples == (span.syncs * SIZE // 2, span.syncs * SIZE)
    assert span.compute == ()


@needs_two_cores
def test_fdl_is_measured_through_its_own_runtime(arena: Arena) -> None:
    span = measured(arena, "fdl cpu-cadence", 5.0).span
    assert span is not None
    assert all(samples > 0 for samples in span.samples)
    assert 1 <= span.anchor <= 4
    assert all(0.0 < seconds <= span.seconds * 1.05 for seconds in span.compute)
    assert span.comm >= 0.0


@needs_two_cores
def test_a_rank_that_ends_is_told_with_its_last_words(arena: Arena) -> None:
    outcome = arena.run(BY_NAME["PostLocalSGD"], PAIR, "mlp", Timing(0.5, 3.0), sizes=(0, SIZE), seed=1)
    assert outcome.reason.startswith("a rank ended before the first commit (")
    assert "rank-0.log" in outcome.reason
    assert outcome.rates == []
