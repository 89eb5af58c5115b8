import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fdl_api.reasons import Ended
from fdl_trainer import checkpoint, publishing
from fdl_trainer.checkpoint import CheckpointError, Snapshot
from fdl_trainer.export import export, main


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))


def save(root: Path, window: int) -> dict[str, torch.Tensor]:
    torch.manual_seed(window)
    state = checkpoint.copy_tensors(model().state_dict())
    made = Snapshot(window, window, 1, state, {}, {}, "x")
    publishing.publish(root, checkpoint.prepare(root, made, "pod/0"), window)
    return state


def test_plain_torch_loads_what_was_exported_without_fdl(tmp_path: Path) -> None:
    state = save(tmp_path / "run", 4)
    out = tmp_path / "model.pt"
    out.write_text("something older")
    assert export(tmp_path / "run" / "ckpt-00000004", out) == 4
    loaded = torch.load(out, weights_only=True)
    model().load_state_dict(loaded)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in state.items())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.pt", "run"]


def test_of_a_run_the_newest_valid_checkpoint_is_taken(tmp_path: Path) -> None:
    root = tmp_path / "run"
    save(root, 1)
    save(root, 2)
    (root / "ckpt-00000002" / "model.safetensors").write_bytes(b"")
    assert export(root, tmp_path / "model.pt") == 1


def test_a_damaged_checkpoint_is_not_exported(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (tmp_path / "ckpt-00000001" / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="truncated"):
        export(tmp_path / "ckpt-00000001", tmp_path / "model.pt")
    with pytest.raises(CheckpointError, match=r"no valid checkpoint .* truncated") as error:
        export(tmp_path, tmp_path / "model.pt")
    assert error.value.reason is Ended.NO_CHECKPOINT
    assert not (tmp_path / "model.pt").exists()


def test_an_empty_directory_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), str(tmp_path / "model.pt")]) == 1
    assert "It holds no directory ckpt-<window>" in capsys.readouterr().err
    save(tmp_path, 1)
    assert main([str(tmp_path), str(tmp_path / "none" / "model.pt")]) == 1
    assert "No such file or directory" in capsys.readouterr().err


def test_the_command_works(tmp_path: Path) -> None:
    save(tmp_path, 1)
    command = [sys.executable, "-m", "fdl_trainer.export", str(tmp_path), str(tmp_path / "model.pt")]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert "the model after window 1" in done.stdout
    assert set(torch.load(tmp_path / "model.pt", weights_only=True)) == set(model().state_dict())
