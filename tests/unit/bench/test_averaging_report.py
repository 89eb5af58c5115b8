"""The figures of ``bench.averaging``: what the floor is made of, and that both ranks measure alike."""

from math import prod

from bench.averaging.__main__ import report
from bench.averaging.profile import Event, calls, kernels
from bench.averaging.shapes import many, resnet20


def test_the_floor_is_the_bare_all_reduce_and_the_passes_and_nothing_else() -> None:
    medians = {"all-reduce": 4.0, "pass: copy in": 1.0, "pass: norm": 0.5, "window": 6.6, "all-reduce, bf16": 3.0}
    row = report({"model": medians})["model"]
    assert (row["floorMs"], row["passesMs"], row["windowMs"]) == (5.5, 1.5, 6.6)
    assert abs(row["ratio"] - 1.2) < 1e-9 and row["medianMs"] == medians


def test_the_models_have_the_numbers_of_tensors_that_they_are_named_for() -> None:
    assert len(resnet20()) == 59 and 260_000 < sum(prod(shape) for shape in resnet20()) < 280_000
    assert len(many()) == 1000 and sum(prod(shape) for shape in many()) > 25_000_000


def test_calls_belong_to_the_step_in_which_the_host_made_them() -> None:
    events = [
        Event("pack", 0.0, 10.0, False),
        Event("pack", 100.0, 110.0, False),
        Event("reduce", 10.0, 20.0, False),
        Event("cudaLaunchKernel", 1.0, 2.0, False),
        Event("cudaLaunchKernel", 3.0, 4.0, False),
        Event("cudaMemcpyAsync", 101.0, 102.0, False),
        Event("cudaLaunchKernelExC", 12.0, 13.0, False),
        Event("cudaLaunchKernel", 50.0, 51.0, False),
        Event("pack", 5.0, 30.0, True),
        Event("a kernel", 5.0, 9.0, True),
        Event("a kernel", 14.0, 20.0, True),
    ]
    assert calls(events, ["pack", "reduce"], 2) == {"pack": {"kernels": 1.0, "copies": 0.5}, "reduce": {"kernels": 0.5}}
    assert kernels(events, ["pack", "reduce"], 2) == {"a kernel": {"times": 1.0, "ms": 0.005}}
