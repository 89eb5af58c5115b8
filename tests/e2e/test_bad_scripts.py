"""Scripts that cannot work. Each ends in a status that names fault and remedy, at once and without a crash loop."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.conftest import World
from tests.e2e.support import build
from tests.e2e.support.kube import Kube, condition, members, phase_of, training

RAISES = """
import fdl_trainer

def main(session):
    raise ValueError("the label column is missing")

fdl_trainer.run(main)
"""
MODEL_DIFFERS = """
import os
import torch
from torch import nn
import fdl_trainer

torch.manual_seed(0)
WIDTH = 5 if os.environ["FDL_ORDINAL"] == "2" else 4

def main(session):
    session.setup(
        model=lambda: nn.Sequential(nn.Linear(3, WIDTH), nn.Linear(WIDTH, 1)),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        dataset=(torch.randn(20000, 3), torch.randn(20000, 1)),
        batch_size=8,
        epochs=2,
    )
    for x, y in session:
        session.optimizer.zero_grad()
        loss = (session.model(x) - y).square().mean()
        loss.backward()
        session.optimizer.step()
        session.report(loss)

fdl_trainer.run(main)
"""
TINY = """
import torch
from torch import nn
import fdl_trainer

def main(session):
    session.setup(
        model=lambda: nn.Linear(3, 1),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        dataset=(torch.ones(1, 3), torch.ones(1, 1)),
        batch_size=8,
        epochs=1,
    )
    for x, y in session:
        session.report((session.model(x) - y).square().mean())

fdl_trainer.run(main)
"""
SCRIPTS = {
    "syntax": "def main(session:\n",
    "raises": RAISES,
    "idle": "print('nothing to do')\n",
    "exits": "import sys\nsys.exit(3)\n",
    "tiny": TINY,
    "differs": MODEL_DIFFERS,
}
EXPECTED = {
    "missing": ("ScriptMissing", "train.py"),
    "syntax": ("ScriptSyntaxError", "line 1"),
    "raises": ("ScriptRaised", "the label column is missing"),
    "idle": ("ScriptNeverTrained", "fdl_trainer.run"),
    "exits": ("ScriptExited", "3"),
    "tiny": ("DatasetTooSmall", "1 "),
}


NO_IMAGE = "fdl.local/nobody-built-this:dev"


@pytest.fixture(scope="module")
def bad_runs(world: World, make_namespace: Any) -> Iterator[str]:
    """All bad runs at once in one namespace: each needs little more than the start of its pods."""
    namespace = make_namespace("bad-scripts")
    for name, text in SCRIPTS.items():
        body = {"metadata": {"name": name}, "data": {"train.py": text}}
        world.kube.core.create_namespaced_config_map(namespace, body)
    for name in EXPECTED:
        run = build.script(name, name, members=2 if name == "tiny" else 1)
        if name == "tiny":
            run["spec"]["cohorts"][0]["minReplicas"] = 2
        world.kube.create(namespace, run)
    differs = build.script(
        "differs", "differs", members=3, join={"minMembers": 2, "windowSeconds": 20}, checkpoint={"claim": build.CLAIM}
    )
    world.kube.create(namespace, differs)
    imageless = build.script("imageless", "idle")
    imageless["spec"]["trainer"]["image"] = NO_IMAGE
    world.kube.create(namespace, imageless)
    yield namespace
    world.kube.delete_all(namespace)


@pytest.mark.parametrize("name", list(EXPECTED))
def test_the_run_fails_and_says_why(kube: Kube, bad_runs: str, name: str) -> None:
    """Failed, with the stable reason and a sentence that names the fault; no second try."""
    reason, words = EXPECTED[name]
    run = kube.wait(bad_runs, name, "the run fails", lambda r: phase_of(r) in ("Failed", "Succeeded"), 240)
    assert phase_of(run) == "Failed", kube.diagnose(bad_runs, name)
    failed = condition(run, "Failed")
    assert failed["reason"] == reason, failed
    assert words in failed["message"], failed
    assert all(member["incarnation"] == 1 for member in members(run)), "a broken script was tried again"


def test_a_member_with_another_model_is_refused_by_name_and_the_run_goes_on(kube: Kube, bad_runs: str) -> None:
    """The refusal names the parameter that differs; the two that agree train to the end."""
    run = kube.wait(bad_runs, "differs", "the run ends", lambda r: phase_of(r) in ("Failed", "Succeeded"), 300)
    assert phase_of(run) == "Succeeded", kube.diagnose(bad_runs, "differs")
    refusals = training(run)["refusals"]
    assert refusals, run["status"]
    assert refusals[0]["reason"] == "ModelMismatch"
    assert "0.weight" in refusals[0]["message"]
    assert "differs-cpu-2" in refusals[0]["message"] + refusals[0].get("member", "")
    assert training(run)["samples"] == training(run)["totalSamples"] == 40_000


def test_an_image_that_is_nowhere_is_named_with_its_cohort_and_the_remedy(kube: Kube, bad_runs: str) -> None:
    """No death and no failure: the kubelet goes on trying, and the condition says what to do."""

    def told(run: dict[str, Any]) -> bool:
        return condition(run, "Progressing").get("reason") == "ImageUnavailable"

    run = kube.wait(bad_runs, "imageless", "Progressing names the image", told, 120)
    message = condition(run, "Progressing")["message"]
    assert NO_IMAGE in message
    assert "cohort cpu" in message
    assert "push the image" in message
    assert phase_of(run) == "Starting"
    assert members(run)[0]["incarnation"] == 1
