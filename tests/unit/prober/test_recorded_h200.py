"""What the deep check and the variant description say on a node with two H200, as recorded there."""

import json
from pathlib import Path

from fdl_api.coverage import covers
from fdl_api.report import DeepFacts

RECORDED = json.loads(Path(__file__).with_name("data").joinpath("h200.json").read_text())


def test_a_recorded_deep_check_is_read_and_passes() -> None:
    facts = DeepFacts.model_validate(RECORDED["deepcheck"])
    assert facts.passed and [device.name for device in facts.devices] == ["NVIDIA H200"] * 2
    assert all(covers(facts.archs, device.arch) for device in facts.devices)
    assert facts.nccl_version == "2.28.9"


def test_the_description_of_the_image_agrees_with_what_ran() -> None:
    facts, variant = DeepFacts.model_validate(RECORDED["deepcheck"]), RECORDED["variant"]
    assert (facts.torch_version, facts.torch_build) == (variant["torchVersion"], variant["build"])
    assert list(facts.archs) == variant["archs"] and facts.nccl_version == variant["ncclVersion"]
