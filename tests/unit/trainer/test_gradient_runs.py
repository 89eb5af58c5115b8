"""Whole runs of real processes that average gradients, held beside one process that takes the same steps."""

import runpy
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fdl_api.exitcodes import PodExit
from fdl_api.run import ElcheSpec, Mode
from fdl_trainer import audit
from tests.unit.trainer.cluster import LoopbackRun, Zygote, loopback_run
from tests.unit.trainer.test_runtime_processes import SCRIPTS, assert_complete, trained

STEPS = SCRIPTS / "steps.py"
KNOBS = ElcheSpec.model_validate({"average": "gradients", "anchor": 2, "maxAnchor": 4})
SAMPLES = 2048


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """One torch for all tests here."""
    started = Zygote(tmp_path_factory.mktemp("zygote"))
    yield started
    started.close()


def windows_of(run: LoopbackRun) -> list[list[int]]:
    """The samples of each window that is in the final model, from the index logs."""
    logs = audit._Logs()
    for path in sorted(run.checkpoints.glob("audit/*.jsonl")):
        audit._read(path, logs)
    result = []
    for (attempt, window), contributions in sorted(audit._counting_commits(logs).items()):
        indices: list[int] = []
        for uid, batches in contributions.items():
            handed_out = logs.batches[attempt, uid, window]
            for ordinal in range(batches):
                indices += handed_out[ordinal][1]
        result.append(indices)
    assert not logs.problems, logs.problems
    return result


def replayed(windows: list[list[int]], name: str, epochs: int) -> dict[str, torch.Tensor]:
    """The model of one process that takes one step on each of these batches."""
    script = runpy.run_path(str(STEPS))
    torch.manual_seed(0)
    model: torch.nn.Module = script["net"]()
    optimizer: torch.optim.Optimizer = script["optimizer"](name, model.parameters())
    x, y = script["blobs"]()
    done = 0
    for indices in windows:
        for group in optimizer.param_groups:
            group["lr"] = script["rate"](name, done / (SAMPLES * epochs))
        optimizer.zero_grad()
        torch.autograd.backward(torch.nn.functional.cross_entropy(model(x[indices]), y[indices]))
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        done += len(indices)
    assert done == SAMPLES * epochs
    return model.state_dict()


def assert_as_one_process(run: LoopbackRun, state: dict[str, Any], name: str, epochs: int) -> None:
    windows = windows_of(run)
    assert len(windows) == state["window"]
    assert len({len(indices) for indices in windows}) > 1, "quotas differ from window to window"
    saved = load_file(run.checkpoints / state["checkpoint"]["path"] / "model.safetensors")
    for key, value in replayed(windows, name, epochs).items():
        torch.testing.assert_close(saved[key], value, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_run_is_large_batch_training_of_one_process(name: str, tmp_path: Path, zygote: Zygote) -> None:
    with loopback_run(tmp_path, STEPS, 2, ["--optimizer", name], zygote=zygote, elche=KNOBS) as run:
        members = [run.start_member(ordinal) for ordinal in range(2)]
        assert [member.wait() for member in members] == [0, 0], run.logs()
        assert_as_one_process(run, assert_complete(run, SAMPLES, 2, ranks=2), name, 2)


def test_with_a_death_and_a_joiner_it_still_is(tmp_path: Path, zygote: Zygote) -> None:
    arguments = ["--epochs", "40", "--work", "8"]
    with loopback_run(tmp_path, STEPS, 3, arguments, zygote=zygote, elche=KNOBS) as run:
        members = [run.start_member(ordinal) for ordinal in range(3)]
        run.wait_state("training goes on", lambda state: trained(state, 5))
        members[1].signal_ranks(signal.SIGKILL)
        members[1].wait()
        run.start_member(1, incarnation=2)
        run.wait_state("three train again", lambda state: state["epoch"] >= 3 and len(state["ranks"]) == 3)
        assert [members[0].wait(), members[2].wait(), run.members[-1].wait()] == [0, 0, 0], run.logs()
        assert_as_one_process(run, assert_complete(run, SAMPLES, 40, ranks=3), "sgd", 40)


def test_sync_mode_and_a_bf16_wire_end_with_the_same_bits(tmp_path: Path, zygote: Zygote) -> None:
    knobs = KNOBS.model_copy(update={"bf16_wire": True})
    with loopback_run(tmp_path, STEPS, 2, zygote=zygote, mode=Mode.CPU_SYNC, elche=knobs) as run:
        members = [run.start_member(ordinal) for ordinal in range(2)]
        assert [member.wait() for member in members] == [0, 0], run.logs()
        assert assert_complete(run, SAMPLES, 2, ranks=2)["metrics"]["loss"] < 0.4


def test_a_script_with_a_loop_of_its_own_is_told_of_session_step(tmp_path: Path, zygote: Zygote) -> None:
    with loopback_run(tmp_path, STEPS, 1, ["--bare"], zygote=zygote, elche=KNOBS) as run:
        member = run.start_member(0)
        assert member.wait() == PodExit.USER_CODE, run.logs()
        assert "Call session.step(loss) for each batch instead" in member.words().message
