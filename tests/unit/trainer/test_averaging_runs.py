"""Settings of the average in whole runs of real processes: same bits everywhere, accuracy, joiners, checkpoints."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from fdl_api.run import ElcheSpec, Mode
from tests.unit.trainer.cluster import Zygote, loopback_run
from tests.unit.trainer.test_runtime_processes import BLOBS, assert_complete, trained


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """One torch for all tests here."""
    started = Zygote(tmp_path_factory.mktemp("zygote"))
    yield started
    started.close()


def elche(**settings: Any) -> ElcheSpec:
    return ElcheSpec.model_validate({"anchor": 2, "maxAnchor": 4, **settings})


@pytest.mark.parametrize(
    "settings",
    [
        {"bf16Wire": True},
        {"weights": "normalized"},
        {"weights": "batches", "gamma": 0.5, "outer": {"optimizer": "slowmo"}},
        {"averageStateEvery": 2},
    ],
    ids=["bf16", "normalized", "batches", "state"],
)
def test_a_run_with_other_settings_ends_with_the_same_bits_everywhere(
    settings: dict[str, Any], tmp_path: Path, zygote: Zygote
) -> None:
    with loopback_run(tmp_path, BLOBS, 2, zygote=zygote, elche=elche(**settings)) as run:
        members = [run.start_member(ordinal) for ordinal in range(2)]
        assert [member.wait() for member in members] == [0, 0], run.logs()
        assert assert_complete(run, 4096, 2, ranks=2)["metrics"]["accuracy"] > 0.85


@pytest.mark.parametrize("settings", [{"bf16Wire": True}, {"outer": {"optimizer": "nesterov"}}], ids=["bf16", "outer"])
def test_the_settings_hold_while_averages_overlap(settings: dict[str, Any], tmp_path: Path, zygote: Zygote) -> None:
    changes = {"mode": Mode.CPU_ASYNC, "elche": elche(**settings)}
    with loopback_run(tmp_path, BLOBS, 2, ["--epochs", "4"], zygote=zygote, **changes) as run:
        members = [run.start_member(ordinal) for ordinal in range(2)]
        assert [member.wait() for member in members] == [0, 0], run.logs()
        assert assert_complete(run, 4096, 4, ranks=2)["metrics"]["accuracy"] > 0.8


def test_averaged_momentum_survives_a_death_and_a_joiner(tmp_path: Path, zygote: Zygote) -> None:
    knobs = elche(averageStateEvery=1)
    with loopback_run(tmp_path, BLOBS, 3, ["--epochs", "40", "--work", "4"], zygote=zygote, elche=knobs) as run:
        members = [run.start_member(ordinal) for ordinal in range(3)]
        run.wait_state("training goes on", lambda state: trained(state, 5))
        members[1].signal_ranks(signal.SIGKILL)
        members[1].wait()
        run.start_member(1, incarnation=2)
        run.wait_state("three train again", lambda state: state["epoch"] >= 3 and len(state["ranks"]) == 3)
        assert [members[0].wait(), members[2].wait(), run.members[-1].wait()] == [0, 0, 0], run.logs()
        assert assert_complete(run, 4096, 40, ranks=3)["metrics"]["accuracy"] > 0.85
        assert "of the optimizer's state momentum_buffer are averaged" in run.logs()


def test_outer_momentum_reaches_a_successor_and_the_checkpoint(tmp_path: Path, zygote: Zygote) -> None:
    """Without it, the successor's parameters would differ from the first common window on."""
    knobs = elche(outer={"optimizer": "nesterov", "learningRate": 0.7, "momentum": 0.5})
    with loopback_run(tmp_path, BLOBS, 2, ["--epochs", "30", "--work", "4"], zygote=zygote, elche=knobs) as run:
        members = [run.start_member(ordinal) for ordinal in range(2)]
        run.wait_state("training goes on", lambda state: trained(state, 5))
        members[1].signal_ranks(signal.SIGKILL)
        members[1].wait()
        run.start_member(1, incarnation=2)
        run.wait_state("two train again", lambda state: state["epoch"] >= 3 and len(state["ranks"]) == 2)
        assert [members[0].wait(), run.members[-1].wait()] == [0, 0], run.logs()
        state = assert_complete(run, 4096, 30, ranks=2)
        saved = load_file(run.checkpoints / state["checkpoint"]["path"] / "outer.safetensors")
        assert set(saved) == {"0.weight", "0.bias", "1.weight", "1.bias", "3.weight", "3.bias"}
        assert all(bool(tensor.any()) for tensor in saved.values())
