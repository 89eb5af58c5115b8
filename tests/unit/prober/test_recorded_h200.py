"""What survey, deep check and variant description say on a node with two H200, as recorded there.

The survey is what ``python -m fdl_prober --local --deep --json`` printed, but for the node's name and its boot id.
"""

import json
from pathlib import Path

from fdl_api.coverage import covers
from fdl_api.report import DeepFacts, Report, parse, worst
from fdl_prober.local import render

DATA = Path(__file__).with_name("data")
RECORDED = json.loads(DATA.joinpath("h200.json").read_text())


def test_a_recorded_deep_check_is_read_and_passes() -> None:
    facts = DeepFacts.model_validate(RECORDED["deepcheck"])
    assert facts.passed and [device.name for device in facts.devices] == ["NVIDIA H200"] * 2
    assert all(covers(facts.archs, device.arch) for device in facts.devices)
    assert facts.nccl_version == "2.28.9"


def test_the_description_of_the_image_agrees_with_what_ran() -> None:
    facts, variant = DeepFacts.model_validate(RECORDED["deepcheck"]), RECORDED["variant"]
    assert (facts.torch_version, facts.torch_build) == (variant["torchVersion"], variant["build"])
    assert list(facts.archs) == variant["archs"] and facts.nccl_version == variant["ncclVersion"]


def test_a_recorded_survey_is_read_and_in_order() -> None:
    survey = Report.model_validate_json(DATA.joinpath("h200-survey.json").read_text())
    assert parse(survey.render()) == survey
    assert survey.ready and worst(survey.checks) == "pass"
    assert survey.drivers["nvidia"].state == "ready" and survey.drivers["nvidia"].version == "580.159.04"
    assert [device.name for device in survey.devices] == ["NVIDIA H200"] * 2
    assert [device.pci for device in survey.devices] == ["0000:00:06.0", "0000:00:07.0"]
    assert "PASS    deep-check: this-python-nvidia: torch 2.11.0+cu130 ran a kernel on 2 devices" in render(
        survey, False
    )


def test_nvml_and_torch_name_the_same_architectures_in_the_same_order() -> None:
    survey = Report.model_validate_json(DATA.joinpath("h200-survey.json").read_text())
    facts = survey.deep["this-python-nvidia"].facts
    assert facts is not None and facts.passed
    assert [device.arch for device in survey.devices] == [device.arch for device in facts.devices] == ["sm_90"] * 2
