"""What is not measured is said; results are kept whole; what averages cost."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from bench.averaging.processes import run
from bench.averaging.report import ratios
from bench.averaging.shapes import Load, by_size, by_tensors, even
from bench.averaging.worker import Wiring
from bench.training.campaign import Record, in_turn
from bench.training.catalog import METHODS
from bench.training.coverage import left_out
from bench.training.fdl_script import reduce_singly
from bench.training.machine import Load as MachineLoad
from bench.training.measure import Outcome
from bench.training.payload import SINGLY, cost
from bench.training.profiles import PROFILES
from bench.training.saved import PAGE, RESULT, Saved, read
from bench.training.stats import Interval
from bench.training.verdicts import Verdict, cost_verdicts
from bench.training.wording import figure
from fdl_trainer.averaging import ModelState, Share
from tests.unit.bench.training.test_figures import records

CPU_PROFILES = [profile for name, profile in PROFILES.items() if name != "gpu"]
TIMES = {"all-reduce": [4.0, 5.0], "pass: norm": [1.0, 1.0], "window": [6.0, 9.0], SINGLY: [8.0, 10.0]}


def saved() -> Saved:
    found = records([0.8, 0.81, 0.82], [0.5, 0.5, 0.5])
    for record in found:
        record.outcome.curve = [(1.0, 100, 2.0), (2.0, 200_000, 0.001)]
        record.outcome.load = MachineLoad(0.9, 0.0, 1.0, 2.0)
    return Saved(
        command="python -m bench.training",
        machine={"cores": 2, "cpu": "c", "torch": "2", "load_average": 0.1, "kernel": "6", "python": "3.11"},
        profile={"name": "quick", "device": "cpu", "rounds_done": 3, "minutes": 4.0},
        skipped={"hivemind": "hivemind was not installed within 300 s"},
        sizes={"1:2.3, conv": [39, 89]},
        records=found,
        costs=[cost(by_tensors(2)[0], Wiring.GLOO, TIMES)],
    )


def test_a_result_is_read_as_it_was_written_and_gives_the_same_page(tmp_path: Path) -> None:
    saved().write(tmp_path)
    page = (tmp_path / PAGE).read_text()
    again = read(tmp_path / RESULT)
    assert again == saved()
    again.write(tmp_path)
    assert (tmp_path / PAGE).read_text() == page


def test_the_page_has_n_units_intervals_and_what_is_missing(tmp_path: Path) -> None:
    report = saved().write(tmp_path)
    page = (tmp_path / PAGE).read_text()
    assert "0.81 (0.80 to 0.82), n = 3" in page
    assert "2.00 s (2.00 to 2.00), n = 3" in page
    assert "Targets that are missed" in page
    assert "hivemind was not installed within 300 s" in page
    assert dict(report.left_out)["fdl nccl-cadence"] == "needs two CUDA devices: --gpu measures it"
    assert json.loads((tmp_path / RESULT).read_text())["costs"][0]["model"] == "59 tensors"


def test_the_page_says_when_others_took_what_the_fastest_alone_leaves(tmp_path: Path) -> None:
    def page(busy: float) -> str:
        one = saved()
        alone = Record(0, "1:2.3, conv", Outcome("fastest alone", rates=[1.0], load=MachineLoad(busy, 0.0, 1.0, 2.0)))
        dataclasses.replace(one, records=[*one.records, alone]).write(tmp_path)
        return (tmp_path / PAGE).read_text()

    assert "Others were at work: in 1 of the 1 slices" in page(0.9)
    assert "Others were at work" not in page(0.55)


def test_everything_that_is_missing_in_a_run_is_measured_elsewhere_or_has_a_reason() -> None:
    nothing = dict(left_out([], [], "cpu", {}))
    assert {method.name for method in METHODS} <= set(nothing)
    assert {"cohort 1:1:4", "workload gpt"} <= set(nothing)
    assert not [why for why in nothing.values() if why.endswith("measured by ")]
    assert nothing["cohort 1:1:4 quota"] == "not in this run; measured by --full"
    all_ = left_out([method.name for method in METHODS], ["1:1, conv"], "cpu", {})
    assert "fdl cpu-sync" not in dict(all_)


def test_every_method_cohort_and_workload_is_in_the_profiles_for_cpus() -> None:
    """But for those that need devices."""
    there = {name for profile in CPU_PROFILES for scenario in profile.scenarios for name in scenario.methods}
    assert {method.name for method in METHODS if not method.device} == there


def test_the_order_changes_and_keeps_solo_in_the_middle() -> None:
    names = ["solo", "a", "b", "c", "d"]
    orders = [in_turn(names, str(seed)) for seed in range(20)]
    assert all(sorted(order) == sorted(names) and order[2] == "solo" for order in orders)
    assert len({tuple(order) for order in orders}) > 5
    assert in_turn(names, "x") == in_turn(names, "x")


def test_figures_are_written_with_their_unit_and_number() -> None:
    assert figure(Interval(1.456, 1.4, 1.5, 6), "x") == "1.46x (1.40 to 1.50), n = 6"
    assert figure(Interval(2.0, 2.0, 2.0, 1), " s") == "2.00 s, n = 1"


def test_a_cost_is_compared_with_the_floor_turn_by_turn() -> None:
    assert ratios(TIMES) == pytest.approx([6.0 / 5.0, 9.0 / 6.0])
    found = cost(Load("59 tensors", even(1000, 10), 2), Wiring.GLOO, TIMES)
    assert found.ratio.value == pytest.approx(1.35)
    assert found.singly is not None and found.singly.value == pytest.approx(2.0)
    assert (found.parameters, found.tensors, found.floor_ms) == (1000, 10, 5.5)
    assert found.gigabytes_a_second == pytest.approx(4000e-9 / 4.5e-3)


def test_a_target_that_must_not_be_exceeded_is_missed_from_above() -> None:
    (one,) = cost_verdicts([cost(by_tensors(2)[0], Wiring.GLOO, {name: [*v, *v] for name, v in TIMES.items()})])
    assert one.met is False and one.short_by == pytest.approx(0.15)
    assert cost_verdicts([cost(by_size((1000,), 2)[0], Wiring.GLOO, TIMES)]) == []
    assert Verdict("t", "s", "m", 1.1, 1.0, 1.3, 1.2, 3, at_most=True).met is True


def test_averages_of_real_processes_are_timed_turn_by_turn() -> None:
    (load,) = by_size((20_000,), turns=2)
    times = run(2, [load])[load.name]
    assert {len(values) for values in times.values()} == {2}
    assert all(value > 0.0 for values in times.values() for value in values)
    assert {"window", "all-reduce", SINGLY} <= set(times)


def test_reducing_tensor_by_tensor_gives_what_one_reduce_gives() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5))
    buffers, operations = [], []

    def double(tensor: torch.Tensor) -> None:
        operations.append(tensor.numel())
        tensor.mul_(2.0)

    for reduce in (lambda wire: wire.reduce(double), lambda wire: reduce_singly(wire, double)):
        state = ModelState(model)
        state.capture()
        wire = state.new_wire(0, 2, 4)
        state.pack(wire, Share(2, 8))
        wire.write_tail([1.0] * 4, [0.0] * 4)
        reduce(wire)
        buffers.append(wire.parts[0])
    assert torch.equal(*buffers)
    assert sum(operations[1:]) == operations[0] and len(operations) > 6
