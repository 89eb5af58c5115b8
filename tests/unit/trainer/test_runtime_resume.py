"""Starting again: from the newest checkpoint that is good, never from one that is not, never silently."""

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fdl_api.exitcodes import PodExit
from fdl_api.reasons import Ended
from fdl_api.run import ElcheSpec, Mode
from fdl_trainer import agreed, checkpoint, ledger, plan, publishing, treefile
from fdl_trainer.agreed import Control
from fdl_trainer.averaging import ModelState
from fdl_trainer.ending import RunEndedError
from fdl_trainer.plan import PlanSpec
from fdl_trainer.resume import Resumed, newest, random_state
from fdl_trainer.saving import problem_with
from fdl_trainer.signature import model_signature

SPEC = PlanSpec.of(Mode.CPU_CADENCE, ElcheSpec())


def control(samples: int = 100, batch: int = 10, passes: int = 3, seed: int = 0) -> Control:
    return plan.create(ledger.create(samples, batch, passes, seed), SPEC)


def trained() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


def save(root: Path, window: int, model: nn.Module, optimizer: torch.optim.Optimizer, place: str = "cpu-0/0") -> Path:
    state = ModelState(model)
    state.capture()
    entered = plan.enter_epoch(control(), ["old/0", "old/1"], SPEC)
    snapshot = checkpoint.Snapshot(
        window=window,
        samples=window * 10,
        attempt=1,
        model=state.tensors(),
        optimizer=treefile.copied(optimizer.state_dict()),
        state={
            "control": agreed.to_json(entered),
            checkpoint.MODEL_SPECS: checkpoint.specs_json(model_signature(model)[1]),
            **random_state(place),
        },
        model_digest=model_signature(model)[0],
    )
    return publishing.publish(root, checkpoint.prepare(root, snapshot, "w"), window)


def found(root: Path, model: nn.Module) -> Resumed:
    return newest(root, *model_signature(model))


def test_model_optimizer_books_and_random_state_come_back(tmp_path: Path) -> None:
    model, optimizer = trained()
    save(tmp_path, 5, model, optimizer)
    wanted = (torch.rand(3).tolist(), random.random(), float(np.random.rand()))
    other, its_optimizer = trained()
    resumed = found(tmp_path, other)
    again = resumed.apply(other, its_optimizer, control(), "cpu-0/0")
    got = (torch.rand(3).tolist(), random.random(), float(np.random.rand()))
    assert got == wanted, "the rank goes on with the noise where it was saved"
    assert torch.equal(other.weight, model.weight)  # type: ignore[arg-type]
    momenta = [item["momentum_buffer"] for item in optimizer.state.values()]
    assert all(torch.equal(a, b["momentum_buffer"]) for a, b in zip(momenta, its_optimizer.state.values(), strict=True))
    entered = plan.enter_epoch(again, ["new/0"], SPEC)
    assert entered.members == ("new/0",) and entered.quota("new/0") > 0
    assert all(given.uid == "new/0" for given in entered.ledger.leases)


def test_a_corrupt_checkpoint_is_skipped_for_an_older_one_and_said_so(tmp_path: Path) -> None:
    model, optimizer = trained()
    save(tmp_path, 5, model, optimizer)
    broken = save(tmp_path, 9, model, optimizer)
    data = bytearray((broken / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (broken / "model.safetensors").write_bytes(data)
    resumed = found(tmp_path, model)
    assert resumed.checkpoint is not None and resumed.checkpoint.window == 5
    assert "ckpt-00000009" in resumed.problem and "ckpt-00000005 is used instead" in resumed.problem


def test_a_volume_that_cannot_be_read_is_said_and_nothing_is_invented(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    resumed = newest(tmp_path / "file", "any", [])
    assert resumed.checkpoint is None and "cannot be read" in resumed.problem and "claim" in resumed.problem


def test_a_volume_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a directory")
    assert "spec.checkpoint" in problem_with(tmp_path / "file")
    assert problem_with(tmp_path / "made") == "" and (tmp_path / "made").is_dir()


def test_the_checkpoint_of_another_model_ends_the_start(tmp_path: Path) -> None:
    save(tmp_path, 5, *trained())
    resumed = found(tmp_path, nn.Linear(4, 2))
    end = resumed.refusal
    assert end is not None and end.code is PodExit.USER_CODE and end.reason == Ended.MODEL_MISMATCH
    assert "ckpt-00000005" in end.message and resumed.problem == end.message
    assert resumed.checkpoint is None, "to the coordinator it is a rank without a checkpoint"
    difference = "Entry 0 is weight (float32, 2x4) in the script and weight (float32, 2x3) in the checkpoint."
    assert difference in end.message


def test_noise_of_another_place_or_release_does_not_come_with_the_checkpoint(tmp_path: Path) -> None:
    model, optimizer = trained()
    save(tmp_path, 5, model, optimizer)
    torch.manual_seed(1)
    wanted = torch.rand(3)
    torch.manual_seed(1)
    found(tmp_path, model).apply(model, optimizer, control(), "cpu-1/0")
    assert torch.equal(torch.rand(3), wanted)


@pytest.mark.parametrize("fresh", [control(samples=99), control(seed=1)])
def test_other_data_ends_the_start(fresh: Control, tmp_path: Path) -> None:
    model, optimizer = trained()
    save(tmp_path, 5, model, optimizer)
    with pytest.raises(RunEndedError) as caught:
        found(tmp_path, model).apply(model, optimizer, fresh, "x")
    assert caught.value.reason == Ended.DATASET_MISMATCH and caught.value.code is PodExit.DATA


def test_batch_size_and_passes_may_change(tmp_path: Path) -> None:
    model, optimizer = trained()
    save(tmp_path, 5, model, optimizer)
    again = found(tmp_path, model).apply(model, optimizer, control(batch=7, passes=5), "x")
    assert (again.ledger.batch_size, again.ledger.total) == (7, 500)


def test_an_optimizer_of_another_kind_is_refused_with_a_sentence(tmp_path: Path) -> None:
    model, optimizer = trained()
    save(tmp_path, 5, model, optimizer)
    two_groups = torch.optim.SGD([{"params": [parameter]} for parameter in model.parameters()], lr=0.1)
    with pytest.raises(RunEndedError, match="cannot be loaded"):
        found(tmp_path, model).apply(model, two_groups, control(), "x")
