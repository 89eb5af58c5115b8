"""The figures of ``bench.averaging``: what the floor is made of, and that both ranks measure alike."""

from math import prod

from bench.averaging.__main__ import report
from bench.averaging.shapes import many, resnet20


def test_the_floor_is_the_bare_all_reduce_and_the_passes_and_nothing_else() -> None:
    medians = {"all-reduce": 4.0, "pass: copy in": 1.0, "pass: norm": 0.5, "window": 6.6, "all-reduce, bf16": 3.0}
    row = report({"model": medians})["model"]
    assert (row["floorMs"], row["passesMs"], row["windowMs"]) == (5.5, 1.5, 6.6)
    assert abs(row["ratio"] - 1.2) < 1e-9 and row["medianMs"] == medians


def test_the_models_have_the_numbers_of_tensors_that_they_are_named_for() -> None:
    assert len(resnet20()) == 59 and 260_000 < sum(prod(shape) for shape in resnet20()) < 280_000
    assert len(many()) == 1000 and sum(prod(shape) for shape in many()) > 25_000_000
