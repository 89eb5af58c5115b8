"""The outer optimizer's momentum on disk."""

import logging
from pathlib import Path

import pytest
import torch
from torch import nn

from fdl_api.run import ElcheSpec, Mode
from fdl_trainer import agreed, checkpoint, ledger, plan, publishing
from fdl_trainer.averaging import Averaging, ModelState, Share
from fdl_trainer.averaging.outer import Outer, OuterStep
from fdl_trainer.plan import PlanSpec
from fdl_trainer.resume import newest
from fdl_trainer.signature import model_signature
from tests.unit.trainer.averaging_model import fill, window

OUTER = Averaging(outer=OuterStep(Outer.SLOWMO, 1.0, 0.5))


def saved(root: Path, averaging: Averaging) -> ModelState:
    """A checkpoint of a rank that has trained a window; returns its state."""
    model = nn.Linear(3, 2)
    state = ModelState(model, averaging)
    state.capture()
    fill(model, 0.25)
    window([state], [Share(1, 4)])
    control = plan.create(ledger.create(100, 10, 3, 0), PlanSpec.of(Mode.CPU_CADENCE, ElcheSpec()))
    snapshot = checkpoint.Snapshot(
        window=1,
        samples=4,
        attempt=1,
        epoch=1,
        model=state.tensors(),
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1).state_dict(),
        outer=state.outer_tensors(),
        state={"control": agreed.to_json(control)},
        model_digest=model_signature(model)[0],
    )
    publishing.publish(root, checkpoint.prepare(root, snapshot, "w"), 1)
    return state


def resumed(root: Path) -> ModelState:
    model = nn.Linear(3, 2)
    digest, specs = model_signature(model)
    found = newest(root, digest, specs)
    fresh = plan.create(ledger.create(100, 10, 3, 0), PlanSpec.of(Mode.CPU_CADENCE, ElcheSpec()))
    found.apply(model, torch.optim.SGD(model.parameters(), lr=0.1), fresh, "cpu-0/0")
    state = ModelState(model, OUTER)
    state.capture()
    found.apply_outer(state)
    return state


def test_momentum_comes_back_bit_for_bit(tmp_path: Path) -> None:
    before = saved(tmp_path, OUTER)
    assert before.outer_tensors()["weight"].any()
    assert torch.equal(resumed(tmp_path).committed, before.committed)


def test_a_checkpoint_without_momentum_starts_it_from_zero_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    saved(tmp_path, Averaging())
    with caplog.at_level(logging.WARNING):
        state = resumed(tmp_path)
    assert not any(tensor.any() for tensor in state.outer_tensors().values())
    assert "no outer momentum for 2 parameters (weight first): it starts from zero" in caplog.text
