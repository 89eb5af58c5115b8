"""Who runs where, and how slow."""

import random
import subprocess
from pathlib import Path
from statistics import fmean

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bench.training import slowness
from bench.training.cohorts import COHORTS, Cohort, places
from bench.training.quotas import QuotaError, quota_groups, settle
from bench.training.workloads import WORKLOADS, Gpt, loss_of, passages, text


def test_with_enough_cores_each_rank_has_one_and_all_its_slowness_as_extra_work() -> None:
    found = places(COHORTS["1:1:4"], range(3))
    assert sorted(place.core for place in found if place.core is not None) == [0, 1, 2]
    assert [place.factor for place in found] == [4.0, 4.0, 1.0]


def test_ranks_have_cores_that_this_process_may_use_the_fastest_the_first() -> None:
    assert [place.core for place in places(COHORTS["1:1:4"], [6, 7, 9])] == [7, 9, 6]
    assert [place.core for place in places(COHORTS["1:1:4"], [6, 7])] == [7, 7, 6]


def test_on_two_cores_the_slow_ranks_share_one_and_do_half_the_extra_work() -> None:
    slow, other, fast = places(COHORTS["1:1:4"], range(2))
    assert slow.core == other.core != fast.core
    assert (slow.factor, other.factor, fast.factor) == (2.0, 2.0, 1.0)


def test_ranks_that_would_have_to_be_faster_than_their_share_are_refused() -> None:
    with pytest.raises(ValueError, match="use 3 cores"):
        places(Cohort("1:1:1", (1.0, 1.0, 1.0)), range(2))
    with pytest.raises(ValueError, match="cannot swap"):
        places(Cohort("swap", (4.0, 4.0, 1.0), swaps=True), range(2))


def test_a_swap_reverses_the_speeds_and_a_quota_replaces_the_work() -> None:
    assert [(place.factor, place.factor_later) for place in places(COHORTS["1:2.3 swap"], range(2))] == [
        (2.3, 1.0),
        (1.0, 2.3),
    ]
    assert [(place.factor, place.quota) for place in places(COHORTS["1:2.3 quota"], range(2))] == [
        (1.0, 0.4),
        (1.0, 0.92),
    ]


@pytest.mark.parametrize(("name", "bound"), [("1:1", 1.0), ("1:2.3", 0.606), ("1:4", 0.4), ("1:1:4", 0.5)])
def test_the_bound_of_lock_step(name: str, bound: float) -> None:
    assert COHORTS[name].lock_step_bound == pytest.approx(bound, abs=0.001)


@given(factor=st.floats(0.2, 9.0), batch=st.integers(2, 128))
def test_extra_passes_make_up_the_factor(factor: float, batch: int) -> None:
    whole, part = slowness.extra(factor, batch)
    assert part == 0 or 2 <= part < batch
    assert whole + part / batch == pytest.approx(max(0.0, factor - 1.0), abs=1.5 / batch)


def test_jitter_has_mean_one() -> None:
    draw = random.Random(1)
    assert fmean(slowness.jitter_factor(draw, 0.4) for _ in range(20000)) == pytest.approx(1.0, abs=0.02)
    assert slowness.jitter_factor(draw, 0.0) == 1.0


def test_the_clock_is_shared_by_file(tmp_path: Path) -> None:
    mine, other = slowness.Clock(tmp_path / "clock"), slowness.Clock(tmp_path / "clock")
    assert not other.passed()
    mine.set(1.0)  # long ago on the monotonic clock
    assert other.passed()
    mine.set(1e12)
    assert not other.passed()


def test_a_rank_that_opens_the_clock_late_or_before_it_is_whole_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "clock").touch()
    mine = slowness.Clock(tmp_path / "clock")
    assert not mine.passed()
    mine.set(1.0)
    assert slowness.Clock(tmp_path / "clock").passed()


def test_quotas_are_set_and_cleared() -> None:
    try:
        with quota_groups([0.4, None]) as (group, free):
            assert free is None and group is not None
            files = {"cpu.cfs_quota_us": "4000", "cpu.max": "4000 10000"}
            assert any(
                (group / name).read_text().strip() == text for name, text in files.items() if (group / name).exists()
            )
        assert not group.exists()
    except QuotaError as error:
        pytest.skip(f"no CPU quotas here: {error}")


def test_a_group_is_removed_although_its_process_is_killed_only_now() -> None:
    try:
        with quota_groups([0.4]) as (group,):
            assert group is not None
            process = subprocess.Popen(["sleep", "60"])
            settle(process.pid, None, group)
            process.kill()
        assert not group.exists()
    except QuotaError as error:
        pytest.skip(f"no CPU quotas here: {error}")
    process.wait()


def test_a_place_without_core_and_group_changes_nothing() -> None:
    settle(1, None, None)


@pytest.mark.parametrize("name", list(WORKLOADS))
def test_a_workload_learns(name: str) -> None:
    torch.manual_seed(0)
    workload = WORKLOADS[name]
    model = workload.model()
    optimizer = workload.optimizer(model)
    x, y = workload.data()
    size = min(workload.batch_size, 2 if name == "gpt-10m" else 96)  # a device's batch takes a processor half a minute
    x, y = x[:size], y[:size]
    losses = []
    for _ in range(8):
        loss = loss_of(model, x, y)
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_resnet20_has_the_published_shapes() -> None:
    model = WORKLOADS["resnet20"].model()
    assert len(list(model.parameters())) == 59
    assert sum(parameter.numel() for parameter in model.parameters()) == pytest.approx(0.27e6, rel=0.01)


def test_the_gpt_sees_no_later_character() -> None:
    torch.manual_seed(0)
    model = Gpt(72).eval()
    line = torch.arange(20)[None]
    other = line.clone()
    other[0, 15:] = 3
    torch.testing.assert_close(model(line)[:, :15], model(other)[:, :15])


def test_held_out_text_is_not_trained() -> None:
    letters, kinds = text()
    assert kinds == 74
    x, y = passages()
    held, _ = passages(held_out=True)
    assert torch.equal(x[0][1:], y[0][:-1])
    assert len(x) + len(held) < len(letters) // 4 + 2
    assert torch.equal(held[0], letters[int(len(letters) * 0.9) :][:32])
