"""Loss curves and the time to a target."""

import math
from pathlib import Path

import pytest

from bench.training import analysis
from bench.training.campaign import Record
from bench.training.marks import POINTS, Mark, curve, merge, read_began, write_began
from bench.training.measure import Outcome
from bench.training.targets import Arrival, arrival, times_as_fast
from bench.training.verdicts import losses


def marks(losses_: list[float], samples: int = 10) -> list[Mark]:
    """A commit of so many samples each second, with these mean losses."""
    total, found = 0.0, []
    for number, loss in enumerate(losses_, start=1):
        total += samples * loss
        found.append(Mark(100.0 + number, (samples * number,), loss=total))
    return found


def test_a_curve_has_the_mean_loss_between_commits_and_seconds_from_the_first_batch() -> None:
    assert curve(marks([2.0, 1.0, 0.5]), began=100.5) == [(0.5, 10, 2.0), (1.5, 20, 1.0), (2.5, 30, 0.5)]
    assert curve([], began=0.0) == []


def test_a_curve_of_many_commits_is_thinned_and_keeps_the_mean() -> None:
    found = curve(marks([float(number % 2) for number in range(POINTS * 10)]), began=100.0)
    assert len(found) <= POINTS
    assert found[-1][1] == POINTS * 100
    assert all(loss == pytest.approx(0.5) for _, _, loss in found)


def test_a_curve_ends_where_the_loss_is_not_finite() -> None:
    assert len(curve(marks([2.0, math.nan, 1.0]), began=100.0)) == 1


def test_the_losses_of_the_ranks_add_up() -> None:
    lines = [{"at": 1.0, "samples": 4, "loss": 8.0}, {"at": 1.5, "samples": 6, "loss": 2.0}]
    (mark,) = merge([[line] for line in lines])
    assert curve([mark], began=0.5) == [(1.0, 10, 1.0)]


def test_the_first_rank_that_trains_starts_the_clock(tmp_path: Path) -> None:
    files = [tmp_path / f"marks-{rank}.jsonl" for rank in range(3)]
    assert read_began(files) is None
    write_began(files[1])
    first = read_began(files)
    write_began(files[0])
    assert read_began(files) == first


CURVE = [(1.0, 10, 2.0), (2.0, 20, 0.4), (3.0, 30, 1.0), (4.0, 40, 0.6), (5.0, 50, 0.4)]


def test_the_target_is_reached_by_the_mean_of_the_newest_samples() -> None:
    assert arrival(CURVE, 0.5, trailing=10) == Arrival(2.0, reached=True)
    assert arrival(CURVE, 0.7, trailing=20) == Arrival(3.0, reached=True)
    assert arrival(CURVE, 0.5, trailing=20) == Arrival(5.0, reached=True)


def test_a_commit_with_more_samples_counts_as_a_whole() -> None:
    assert arrival([(1.0, 10, 0.1), (2.0, 500, 0.4)], 0.5, trailing=50) == Arrival(2.0, reached=True)


def test_a_target_is_not_reached_before_enough_samples_are_there() -> None:
    assert arrival([(1.0, 10, 0.1)], 0.5, trailing=20) == Arrival(1.0, reached=False)


def test_a_target_that_is_never_reached_gives_the_length_and_no_curve_nothing() -> None:
    assert arrival(CURVE, 0.1, trailing=10) == Arrival(5.0, reached=False)
    assert arrival([], 0.1, trailing=10) is None


def test_ratios_of_times_never_favour_the_first() -> None:
    own = {0: Arrival(2.0, reached=True), 1: Arrival(9.0, reached=False), 2: Arrival(2.0, reached=True)}
    other = {0: Arrival(4.0, reached=True), 1: Arrival(4.0, reached=True), 2: Arrival(6.0, reached=False)}
    assert times_as_fast(own, other) == [2.0, 0.0, 3.0]
    neither = {0: Arrival(9.0, reached=False)}
    assert times_as_fast(neither, neither) == []


def test_a_method_that_is_sooner_at_the_target_is_told_as_a_loss_of_fdl() -> None:
    target = 0.5 * analysis.WORKLOADS["conv"].target

    def outcome(method: str, seconds: float) -> Outcome:
        return Outcome(method, rates=[1.0, 1.0], curve=[(seconds, 100_000, target)])

    found = analysis.analyse(
        [
            Record(number, "1:2.3, conv", outcome(method, seconds))
            for number in range(3)
            for method, seconds in (("fdl cpu-cadence", 4.0), ("DDP", 3.0), ("PostLocalSGD", 5.0))
        ]
    )
    (told,) = losses(found)
    assert "fdl cpu-cadence is 0.75 times (0.75 to 0.75, n = 3) as fast as DDP at a training loss" in told
