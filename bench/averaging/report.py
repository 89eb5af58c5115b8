"""From times to what a window costs above what nobody can do without. Pure."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

TARGET = 1.2


def floor(times: Mapping[str, float]) -> float:
    """One bare fused all-reduce and the measured passes over memory, milliseconds."""
    return times["all-reduce"] + sum(value for work, value in times.items() if work.startswith("pass: "))


def medians(times: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """Of each work."""
    return {work: median(values) for work, values in times.items()}


def ratios(times: Mapping[str, Sequence[float]]) -> list[float]:
    """A window's cost over the floor, turn by turn."""
    turns = [dict(zip(times, values, strict=True)) for values in zip(*times.values(), strict=True)]
    return [turn["window"] / floor(turn) for turn in turns]


def report(figures: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Floor, window and their ratio by model, with the parts.

    Args:
        figures: median milliseconds of each work, by model.
    """
    return {
        name: {
            "floorMs": floor(found),
            "passesMs": floor(found) - found["all-reduce"],
            "windowMs": found["window"],
            "ratio": found["window"] / floor(found),
            "target": TARGET,
            "medianMs": found,
        }
        for name, found in figures.items()
    }
