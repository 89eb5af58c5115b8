"""What runs and what is refused, the profiles, and the page."""

import dataclasses
import re

import pytest

from bench.training import svg
from bench.training.analysis import analyse
from bench.training.catalog import BY_NAME, METHODS, Method, knobs_or_refusal
from bench.training.cohorts import COHORTS
from bench.training.page import Report, render
from bench.training.peers import PROGRAMS
from bench.training.profiles import PROFILES
from bench.training.stats import Interval
from bench.training.verdicts import losses, verdicts
from bench.training.workloads import WORKLOADS
from fdl_api.not_yet import NotYet
from tests.unit.bench.training.test_figures import records

FDL = BY_NAME["fdl cpu-cadence"]


def row(field: str, value: str | None = None) -> NotYet:
    return NotYet(field, "true", "use another", value)


def test_a_refused_mode_is_left_out_with_the_sentence_of_the_api() -> None:
    knobs, reason = knobs_or_refusal(FDL, [row("mode", "cpu-cadence")])
    assert knobs is None and reason == "spec.mode: 'cpu-cadence' is not available in this release; use another"
    assert knobs_or_refusal(FDL, [row("mode", "cpu-async")]) == ({}, "")


def test_the_first_knobs_that_the_release_has_are_taken() -> None:
    method = dataclasses.replace(FDL, knobs=({"no_such_field": 1}, {"bf16_wire": True}, {"anchor": 3}))
    assert knobs_or_refusal(method, []) == ({"bf16_wire": True}, "")
    assert knobs_or_refusal(method, [row("elche.bf16Wire", "true")]) == ({"anchor": 3}, "")
    assert knobs_or_refusal(method, [row("elche.bf16Wire", "true"), row("elche.anchor")])[0] is None


def test_a_field_that_is_not_there_is_said() -> None:
    method = dataclasses.replace(FDL, knobs=({"no_such_field": 1},))
    assert "no_such_field" in knobs_or_refusal(method, [])[1]


def test_the_default_mode_of_this_release_runs() -> None:
    assert knobs_or_refusal(FDL) == ({}, "")


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_every_method_has_a_program(method: Method) -> None:
    assert method.kind in {"fdl", "fastest", *PROGRAMS}
    assert method.about


@pytest.mark.parametrize("profile", PROFILES.values(), ids=lambda profile: profile.name)
def test_profiles_name_what_exists_and_measure_solo(profile: object) -> None:
    for scenario in profile.scenarios:  # type: ignore[attr-defined]
        assert scenario.cohort in COHORTS and scenario.workload in WORKLOADS
        assert set(scenario.methods) <= set(BY_NAME)
        assert "solo" in scenario.methods and "DDP" in scenario.methods


def test_profiles_fit_their_budgets() -> None:
    assert PROFILES["quick"].seconds() <= 300
    assert PROFILES["default"].seconds() <= 1860


def test_ticks_are_round_and_inside() -> None:
    assert svg.ticks(0.0, 1.1) == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    assert svg.ticks(0.0, 2.2) == [0.0, 0.5, 1.0, 1.5, 2.0]


def test_values_outside_the_axis_are_drawn_at_its_end() -> None:
    rows = [svg.Row("x", (5.0,), Interval(5.0, 4.0, 6.0, 3), "fdl")]
    drawn = svg.dots(rows, low=0.0, high=1.0, lines=[], title="t", unit="times")
    places = [float(place) for place in re.findall(r'c?x[12]?="([\d.]+)"', drawn)]
    assert max(places) <= svg.LABEL + svg.PLOT + 12


def page(efficiencies: list[float]) -> str:
    analyses = analyse(records(efficiencies, [0.5] * len(efficiencies)))
    return render(
        Report(
            title="fdl training benchmark",
            command="python -m bench.training --only '<a>'",
            machine={"cores": 2, "cpu": "<cpu>", "torch": "2", "load_average": 9.0, "kernel": "6", "python": "3.11"},
            profile={"name": "quick", "rounds_done": 3, "minutes": 4.0},
            analyses=analyses,
            verdicts=verdicts(analyses, "cpu"),
            losses=losses(analyses),
            left_out=[("fdl cpu-async", "not in this release")],
            sizes={"1:2.3, conv": [39, 89]},
        )
    )


def test_the_page_is_self_contained_and_says_what_is_missed_and_missing() -> None:
    text = page([0.8, 0.81, 0.82])
    assert "<script" not in text and "http" not in text and "src=" not in text
    assert "&lt;cpu&gt;" in text and "<cpu>" not in text
    assert "missed by 0.090" in text
    assert "not in this release" in text
    assert "39 + 89" in text
    assert "Others were at work" in text


def test_the_page_says_when_nothing_is_lost() -> None:
    assert "no target is missed" in page([0.95, 0.96, 0.97])
    assert "Too few rounds" in page([0.95, 0.96])
