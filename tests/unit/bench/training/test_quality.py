"""What fdl is set to and compared with in quality runs, and how results are judged and put together."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from bench.training.catalog import BY_NAME, knobs_or_refusal
from bench.training.quality import tasks
from bench.training.quality.crew import Item, core_sets, parsed, siblings_of, work
from bench.training.quality.results import FILE, Training, compare, comparisons, line, merged, write
from bench.training.quality.settings import ALONE, ALONE_WIDE, BASELINES, SETTINGS, Baseline, Setting
from bench.training.quality.tasks import TASKS
from fdl_api.run import Mode

OWN = "fdl cpu-cadence, as alone"


def training(name: str, seed: int, figure: float, seconds: float = 10.0, task: str = "gpt") -> Training:
    return Training(task, name, seed, figure, seconds)


def test_the_learning_rate_warms_up_and_falls_to_nothing() -> None:
    assert tasks.cosine(0.0) == pytest.approx(0.04)
    assert tasks.cosine(0.05) == pytest.approx(1.0)
    assert tasks.cosine(1.0) == pytest.approx(0.0, abs=1e-12)


def test_worse_is_positive_for_less_accuracy_and_for_more_loss() -> None:
    assert TASKS["conv"].worse_by(93.0, 93.5) == pytest.approx(0.5)
    assert TASKS["gpt"].worse_by(2.02, 2.0) == pytest.approx(0.01)


def test_the_figure_of_a_model_that_knows_nothing_is_chance() -> None:
    class Constant(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot(torch.zeros(len(x), dtype=torch.long), 10).float()

    assert tasks.examine(TASKS["conv"], Constant()) == pytest.approx(10.0, abs=1.0)


def test_batches_are_shares_of_the_tasks_and_a_wide_one_is_that_of_all_ranks() -> None:
    assert [Setting("s", "", share=share).batch_size(16) for share in (1.0, 0.5, 0.01)] == [16, 8, 1]
    assert Baseline("b", "", share=0.5).batch_size(16, 3) == 8
    assert Baseline("b", "", wide=True).batch_size(16, 3) == 48


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=lambda setting: setting.name)
def test_every_setting_is_one_that_a_run_may_have_in_its_modes(setting: Setting) -> None:
    assert setting.about and "," not in setting.name  # the command line separates by commas
    assert setting.modes <= {mode.value for mode in Mode}
    method = dataclasses.replace(BY_NAME["fdl cpu-cadence"], knobs=(setting.knobs,))
    assert knobs_or_refusal(method) == (setting.knobs, "")
    if "average_state_every" in setting.knobs:
        assert Mode.CPU_ASYNC.value not in setting.modes


@pytest.mark.parametrize("task", TASKS.values(), ids=lambda task: task.name)
def test_tasks_name_settings_that_exist(task: tasks.Task) -> None:
    assert set(task.settings) <= set(SETTINGS)
    assert set(task.baselines) <= set(BASELINES)
    assert not any("," in name for name in BASELINES)


def test_comparisons_are_paired_by_seed() -> None:
    found = compare(
        TASKS["gpt"],
        [training(OWN, 2, 3.0, 5.0), training(OWN, 1, 2.01, 8.0), training(OWN, 7, 9.0)],
        [training(ALONE, 1, 2.0), training(ALONE, 2, 3.0), training(ALONE, 3, 1.0)],
    )
    assert found is not None
    assert found.seeds == (1, 2)
    assert found.worse.value == pytest.approx(0.0025)
    assert found.met
    assert found.speed_up == pytest.approx((1.25 + 2.0) / 2)
    assert compare(TASKS["gpt"], [training(OWN, 1, 2.0)], [training(ALONE, 2, 2.0)]) is None


def test_a_mean_above_the_margin_is_missed_and_said() -> None:
    found = compare(TASKS["gpt"], [training(OWN, 1, 2.02)], [training(ALONE, 1, 2.0)])
    assert found is not None and not found.met
    assert "worse by +1.00 %" in line(found) and "MISSED" in line(found)


def test_all_is_compared_with_all_baselines_and_baselines_with_the_first() -> None:
    trainings = [training(name, 1, 2.0) for name in (ALONE, ALONE_WIDE, OWN)]
    found = [(one.name, one.against) for one in comparisons(trainings, list(BASELINES))]
    assert found == [(ALONE_WIDE, ALONE), (OWN, ALONE), (OWN, ALONE_WIDE)]


def test_shares_of_a_measurement_are_judged_together(tmp_path: Path) -> None:
    files = []
    for seed, worse in ((1, 1.0), (2, 1.008)):
        folder = tmp_path / str(seed)
        folder.mkdir()
        trainings = [training(ALONE, seed, 2.0), training(OWN, seed, 2.0 * worse)]
        write(folder, {"cohort": "1:2.3", "machine": {}}, trainings, list(BASELINES))
        files.append(folder / FILE)
    head, trainings = merged(files)
    assert head == {"cohort": "1:2.3", "machine": {}}
    (found,) = write(tmp_path, head, trainings, list(BASELINES))
    assert found.seeds == (1, 2) and found.worse.value == pytest.approx(0.004)
    assert json.loads((tmp_path / FILE).read_text())["comparisons"][0]["met"] is True


def test_one_training_is_not_counted_twice_and_cohorts_are_not_mixed(tmp_path: Path) -> None:
    for folder, cohort in (("a", "1:1"), ("b", "1:1"), ("c", "1:4")):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder, {"cohort": cohort}, [training(ALONE, 1, 2.0)], list(BASELINES))
    with pytest.raises(ValueError, match="both have gpt, alone, seed 1"):
        merged([tmp_path / "a" / FILE, tmp_path / "b" / FILE])
    with pytest.raises(ValueError, match="is of cohort 1:4"):
        merged([tmp_path / "a" / FILE, tmp_path / "c" / FILE])


def test_trainings_at_once_have_whole_cores_that_nobody_shares() -> None:
    threads = {core: frozenset((core, core ^ 1)) for core in range(8)}
    assert core_sets(range(8), threads, 2) == [[0, 2], [4, 6]]
    assert core_sets([1, 2, 3, 5, 9], {}, 2) == [[1, 2], [3, 5]]
    assert core_sets([0, 1], threads, 2) == []


def test_lists_of_the_kernel_are_read() -> None:
    assert parsed("0-1\n") == {0, 1}
    assert parsed("3,16-17\n") == {3, 16, 17}
    assert 0 in siblings_of(0)


def test_a_share_of_a_measurement_is_a_call_of_its_own_and_one_that_fails_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    items = [Item(4, "conv", baseline="no such baseline"), Item(5, "conv", baseline="nor this one")]
    assert work(items, [[0]], tmp_path, [], said.append) == []
    assert [one.count("ended with 1") for one in said] == [1, 1]
    assert "seed=4" in said[0]
