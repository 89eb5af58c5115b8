"""Slices of real processes: what they measure is looked at for sense, never for speed."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from bench.training.arena import Arena
from bench.training.catalog import BY_NAME
from bench.training.cohorts import Cohort
from bench.training.measure import Outcome, Timing
from bench.training.quality import tasks
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


def test_the_learning_rate_warms_up_and_falls_to_nothing() -> None:
    assert tasks.cosine(0.0) == pytest.approx(0.04)
    assert tasks.cosine(0.05) == pytest.approx(1.0)
    assert tasks.cosine(1.0) == pytest.approx(0.0, abs=1e-12)


def test_worse_is_positive_for_less_accuracy_and_for_more_loss() -> None:
    conv, gpt = tasks.TASKS["conv"], tasks.TASKS["gpt"]
    assert conv.worse_by(93.0, 93.5) == pytest.approx(0.5)
    assert gpt.worse_by(2.02, 2.0) == pytest.approx(0.01)


def test_comparisons_are_paired_by_seed() -> None:
    found = tasks.compare(
        tasks.TASKS["gpt"], "fdl", tasks.ALONE, alone=[(2.0, 10.0), (3.0, 10.0)], own=[(2.01, 8.0), (3.0, 5.0)]
    )
    assert found.worse.value == pytest.approx(0.0025)
    assert found.met
    assert found.speed_up == pytest.approx((1.25 + 2.0) / 2)


def test_the_figure_of_a_model_that_knows_nothing_is_chance() -> None:
    class Constant(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(torch.zeros(len(x), dtype=torch.long), 10).float()

    assert tasks.examine(tasks.TASKS["conv"], Constant()) == pytest.approx(10.0, abs=1.0)
