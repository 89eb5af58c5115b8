import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fdl_api.reasons import Ended
from fdl_trainer import checkpoint, manifest, publishing, randomness
from fdl_trainer.checkpoint import CheckpointError, Snapshot, newest_valid
from fdl_trainer.signature import model_signature


def model(width: int = 3) -> torch.nn.Module:
    torch.manual_seed(width)
    return torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 2))


def snapshot(window: int, **changes: Any) -> Snapshot:
    net = model()
    digest, specs = model_signature(net)
    fields: dict[str, Any] = {
        "window": window,
        "samples": window * 100,
        "attempt": 1,
        "model": checkpoint.copy_tensors({name: tensor + window for name, tensor in net.state_dict().items()}),
        "optimizer": {"state": {0: {"step": torch.tensor(float(window))}}, "param_groups": [{"betas": (0.9, 0.99)}]},
        "state": {"control": {"window": window}, checkpoint.MODEL_SPECS: checkpoint.specs_json(specs)},
        "model_digest": digest,
    }
    return Snapshot(**{**fields, **changes})


def save(root: Path, window: int, **changes: Any) -> Path:
    return publishing.publish(root, checkpoint.prepare(root, snapshot(window, **changes), "pod/0"), window)


def test_a_checkpoint_comes_back_whole(tmp_path: Path) -> None:
    save(tmp_path / "run", 12, final=True)
    found, problems = newest_valid(tmp_path / "run")
    assert found is not None
    assert problems == []
    assert found.path.name == "ckpt-00000012"
    assert sorted(path.name for path in found.path.iterdir()) == [
        "MANIFEST.json",
        "model.safetensors",
        "optim.safetensors",
        "state.json",
    ]
    assert (found.window, found.manifest.samples, found.manifest.attempt, found.manifest.final) == (12, 1200, 1, True)
    wanted = snapshot(12)
    loaded = found.model()
    assert set(loaded) == set(wanted.model)
    assert all(torch.equal(loaded[name], tensor) for name, tensor in wanted.model.items())
    assert found.optimizer()["param_groups"] == [{"betas": (0.9, 0.99)}]
    assert found.state()["control"] == {"window": 12}
    model().load_state_dict(loaded)


def test_nothing_is_there_before_it_is_published(tmp_path: Path) -> None:
    prepared = checkpoint.prepare(tmp_path, snapshot(3), "pod/0")
    assert newest_valid(tmp_path) == (None, [])
    publishing.publish(tmp_path, prepared, 3)
    assert newest_valid(tmp_path)[0] is not None
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt-00000003"]


def test_a_directory_that_is_not_there_holds_nothing(tmp_path: Path) -> None:
    assert newest_valid(tmp_path / "none") == (None, [])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("file", "harm", "sentence"),
    [
        ("model.safetensors", flip, "model.safetensors is corrupt: its CRC-32 is"),
        ("model.safetensors", truncate, "it is truncated"),
        ("optim.safetensors", Path.unlink, "optim.safetensors is missing"),
        ("state.json", replace_by_directory, r"state.json cannot be read \(Is a directory\)"),
        ("MANIFEST.json", Path.unlink, "it has no MANIFEST.json"),
        ("MANIFEST.json", truncate, "its MANIFEST.json is no JSON"),
        ("MANIFEST.json", lambda path: path.write_text("[]"), "its MANIFEST.json is incomplete"),
        ("MANIFEST.json", lambda path: path.write_text('{"format": 9}'), "its format is 9"),
    ],
)
def test_a_damaged_checkpoint_is_skipped_and_said_so(tmp_path: Path, file: str, harm: Any, sentence: str) -> None:
    save(tmp_path, 1)
    harm(save(tmp_path, 2) / file)
    found, problems = newest_valid(tmp_path)
    assert found is not None
    assert found.window == 1
    assert len(problems) == 1
    assert problems[0].startswith("Checkpoint ckpt-00000002")
    assert re.search(sentence, problems[0])


def test_a_renamed_checkpoint_is_not_taken_for_another(tmp_path: Path) -> None:
    save(tmp_path, 1)
    save(tmp_path, 2).rename(tmp_path / "ckpt-00000099")
    found, problems = newest_valid(tmp_path)
    assert found is not None
    assert found.window == 1
    assert "its manifest is of window 2" in problems[0]


def test_one_checkpoint_asked_for_by_path_must_verify(tmp_path: Path) -> None:
    flip(save(tmp_path, 2) / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"cannot be used: model.safetensors is corrupt") as error:
        checkpoint.open_checkpoint(tmp_path / "ckpt-00000002")
    assert error.value.reason is Ended.CHECKPOINT_UNREADABLE


def test_a_directory_that_cannot_be_read_is_an_error_not_an_empty_one(tmp_path: Path) -> None:
    """An empty answer would make the run start afresh over its own progress."""
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"cannot be read \(Not a directory\).*spec.checkpoint") as error:
        newest_valid(tmp_path / "file")
    assert error.value.reason is Ended.CHECKPOINT_UNREADABLE


AS_ANOTHER_USER = """
    import os, sys
    from pathlib import Path
    from fdl_trainer import checkpoint
    os.setuid(65534)
    try:
        print(checkpoint.newest_valid(Path(sys.argv[1])))
    except checkpoint.CheckpointError as error:
        print(error.reason, error)
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become a user without permission")
def test_a_directory_without_permission_names_the_user(tmp_path: Path) -> None:
    root = tmp_path / "run"
    save(root, 1)
    root.chmod(0o700)
    for folder in (tmp_path, *list(tmp_path.parents)[:2]):
        folder.chmod(0o755)
    script = textwrap.dedent(AS_ANOTHER_USER)
    done = subprocess.run(
        [sys.executable, "-c", script, str(root)], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.startswith("CheckpointUnreadable The checkpoint directory")
    assert "(Permission denied)" in done.stdout
    assert "user 65534 may read and write it" in done.stdout


ON_A_SMALL_VOLUME = """
    set -e
    mount -t tmpfs -o size=300k none "$1"
    exec "$2" -c "$3" "$1"
"""
FILL = """
    import sys, torch
    from pathlib import Path
    from fdl_trainer import checkpoint, publishing
    root = Path(sys.argv[1])
    def save(window, elements):
        made = checkpoint.Snapshot(window, 1, 1, {"w": torch.zeros(elements)}, {}, {}, "x")
        publishing.publish(root, checkpoint.prepare(root, made, "pod/0"), window)
    save(1, 1000)
    try:
        save(2, 200_000)
    except checkpoint.CheckpointError as error:
        print(error.reason, error)
    found, problems = checkpoint.newest_valid(root)
    print(found.window, problems, sorted(path.name for path in root.iterdir()))
"""


def can_mount() -> bool:
    unshare = shutil.which("unshare")
    return (
        unshare is not None
        and subprocess.run([unshare, "-m", "true"], check=False, capture_output=True).returncode == 0
    )


@pytest.mark.skipif(not can_mount(), reason="no right to make a mount namespace")
def test_a_full_volume_is_named_and_the_older_checkpoint_stays(tmp_path: Path) -> None:
    shell = ["unshare", "-m", "bash", "-c", textwrap.dedent(ON_A_SMALL_VOLUME), "bash"]
    done = subprocess.run(
        [*shell, str(tmp_path), sys.executable, textwrap.dedent(FILL)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    first, second = done.stdout.splitlines()
    assert first.startswith("CheckpointVolumeFull Checkpoint 2 could not be written")
    assert "No space left on device. Free space on the claim of spec.checkpoint" in first
    assert second == "1 [] ['ckpt-00000001']"


def test_a_volume_that_refuses_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match=r"Checkpoint 4 could not be written .*: Not a directory") as error:
        checkpoint.prepare(tmp_path / "file", snapshot(4), "pod/0")
    assert error.value.reason is Ended.CHECKPOINT_UNREADABLE


def test_a_checkpoint_of_another_model_is_refused_with_the_first_difference(tmp_path: Path) -> None:
    save(tmp_path, 1)
    found, _ = newest_valid(tmp_path)
    assert found is not None
    digest, specs = model_signature(model())
    checkpoint.require_model(found, digest, specs)
    other_digest, other_specs = model_signature(model(width=5))
    with pytest.raises(CheckpointError) as error:
        checkpoint.require_model(found, other_digest, other_specs)
    assert error.value.reason is Ended.MODEL_MISMATCH
    assert digest[:12] in str(error.value)
    assert other_digest[:12] in str(error.value)
    assert "0.weight (float32, 5x4) in the script and 0.weight (float32, 3x4) in the checkpoint" in str(error.value)


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    for window in range(1, 6):
        save(tmp_path, window)
        publishing.prune(tmp_path, (1, 0, window), keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ckpt-00000004", "ckpt-00000005"]


def test_what_never_finished_does_not_count_as_kept(tmp_path: Path) -> None:
    save(tmp_path, 1)
    (save(tmp_path, 2) / manifest.FILE).unlink()
    save(tmp_path, 3)
    publishing.prune(tmp_path, (1, 0, 3), keep=2)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ckpt-00000001", "ckpt-00000002", "ckpt-00000003"]


PRUNE_AS_ANOTHER_USER = """
    import os, sys
    from pathlib import Path
    from fdl_trainer import publishing
    os.setuid(65534)
    print(publishing.prune(Path(sys.argv[1]), (1, 0, 3), keep=2))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become a user without permission")
def test_a_checkpoint_that_cannot_be_looked_into_does_not_stop_the_clearing_up(tmp_path: Path) -> None:
    """It does not count as kept either: an older one that can be read stays."""
    root = tmp_path / "run"
    for window in (1, 2, 3):
        save(root, window)
    (root / "ckpt-00000002").chmod(0)
    temporary = Path(tempfile.gettempdir())
    for folder in (root, tmp_path, *(parent for parent in tmp_path.parents if temporary in parent.parents)):
        folder.chmod(0o755)
    script = textwrap.dedent(PRUNE_AS_ANOTHER_USER)
    command = [sys.executable, "-c", script, str(root)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"


def test_remains_of_earlier_writes_go_and_newer_ones_stay(tmp_path: Path) -> None:
    checkpoint.prepare(tmp_path, snapshot(2), "dead/0")
    in_work = checkpoint.prepare(tmp_path, snapshot(9), "alive/0")
    save(tmp_path, 50)
    save(tmp_path, 3)
    (tmp_path / "audit").mkdir()
    publishing.prune(tmp_path, (1, 0, 3), keep=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        [in_work.name, "audit", "ckpt-00000003", "ckpt-00000050"]
    )


def test_publishing_again_replaces_only_what_does_not_verify(tmp_path: Path) -> None:
    first = save(tmp_path, 7)
    inode = first.stat().st_ino
    assert save(tmp_path, 7).stat().st_ino == inode
    flip(first / "model.safetensors")
    assert save(tmp_path, 7).stat().st_ino != inode
    assert newest_valid(tmp_path)[1] == []
    assert [path.name for path in tmp_path.iterdir()] == ["ckpt-00000007"]


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


def weight(path: Path) -> float:
    return float(checkpoint.open_checkpoint(path).model()["0.bias"][0])


def of_writer(value: float) -> dict[str, torch.Tensor]:
    """A model that tells which of two writers of one window wrote it."""
    return {name: torch.full_like(tensor, value) for name, tensor in model().state_dict().items()}


CUT_OFF, SURVIVING = 3, 4097
"""Epochs of the two parts after a split: those of the surviving part have the higher numbers."""


def test_the_surviving_part_counts_not_the_one_that_got_further(tmp_path: Path) -> None:
    """A part that was cut off trained on alone, faster, and wrote checkpoints of higher windows."""
    save(tmp_path, 10, epoch=CUT_OFF)
    save(tmp_path, 40, epoch=CUT_OFF)
    save(tmp_path, 12, epoch=SURVIVING)
    found, problems = newest_valid(tmp_path)
    assert found is not None and found.window == 12 and problems == []


def test_a_later_attempt_counts_however_little_it_has_done(tmp_path: Path) -> None:
    save(tmp_path, 40, epoch=SURVIVING)
    save(tmp_path, 2, attempt=2, epoch=1)
    found, _ = newest_valid(tmp_path)
    assert found is not None and found.window == 2


def test_when_the_newest_is_corrupt_the_next_in_order_is_used(tmp_path: Path) -> None:
    save(tmp_path, 40, epoch=CUT_OFF)
    flip(save(tmp_path, 12, epoch=SURVIVING) / "model.safetensors")
    found, problems = newest_valid(tmp_path)
    assert found is not None and found.window == 40
    assert len(problems) == 1 and "ckpt-00000012" in problems[0]


def test_of_one_window_the_higher_epoch_is_kept_whoever_comes_last(tmp_path: Path) -> None:
    early, late = {"epoch": CUT_OFF, "model": of_writer(1.0)}, {"epoch": SURVIVING, "model": of_writer(2.0)}
    for first, second in ((early, late), (late, early)):
        root = tmp_path / str(first["epoch"])
        save(root, 7, **first)
        assert weight(save(root, 7, **second)) == 2.0
        assert names(root) == ["ckpt-00000007"]


def test_a_corrupt_checkpoint_of_a_higher_epoch_is_replaced(tmp_path: Path) -> None:
    flip(save(tmp_path, 7, epoch=SURVIVING) / "model.safetensors")
    assert weight(save(tmp_path, 7, epoch=CUT_OFF, model=of_writer(1.0))) == 1.0


def test_a_fenced_writer_deletes_nothing_of_the_run(tmp_path: Path) -> None:
    for window in (10, 11, 12):
        save(tmp_path, window, epoch=SURVIVING)
    in_work = checkpoint.prepare(tmp_path, snapshot(13, epoch=SURVIVING), "survivor/0")
    save(tmp_path, 39, epoch=CUT_OFF)
    save(tmp_path, 40, epoch=CUT_OFF)
    publishing.prune(tmp_path, (1, CUT_OFF, 40), keep=1)
    assert names(tmp_path) == sorted([in_work.name, *(f"ckpt-000000{window}" for window in (10, 11, 12, 40))])


def test_what_a_fenced_writer_left_goes_like_all_that_is_old(tmp_path: Path) -> None:
    save(tmp_path, 40, epoch=CUT_OFF)
    checkpoint.prepare(tmp_path, snapshot(41, epoch=CUT_OFF), "zombie/0")
    save(tmp_path, 11, epoch=SURVIVING)
    save(tmp_path, 12, epoch=SURVIVING)
    publishing.prune(tmp_path, (1, SURVIVING, 12), keep=2)
    assert names(tmp_path) == ["ckpt-00000011", "ckpt-00000012"]


def test_a_writer_that_is_killed_while_it_replaces_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two renames the older one is only there under the name by which it was put aside."""
    save(tmp_path, 7, epoch=CUT_OFF)
    prepared = checkpoint.prepare(tmp_path, snapshot(7, epoch=SURVIVING), "pod/0")
    real = Path.rename

    def killed(path: Path, target: Path) -> Path:
        if path == prepared:
            raise KeyboardInterrupt
        return real(path, target)

    monkeypatch.setattr(Path, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        publishing.publish(tmp_path, prepared, 7)
    found, _ = newest_valid(tmp_path)
    assert found is not None and found.window == 7
    monkeypatch.undo()
    save(tmp_path, 8, epoch=SURVIVING)
    publishing.prune(tmp_path, (1, SURVIVING, 8), keep=1)
    assert names(tmp_path) == ["ckpt-00000008"]


def test_two_writers_of_one_window_at_the_same_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one takes the name after this one has looked and before it renames."""
    mine = checkpoint.prepare(tmp_path, snapshot(7, epoch=SURVIVING, model=of_writer(2.0)), "mine/0")
    other = checkpoint.prepare(tmp_path, snapshot(7, epoch=CUT_OFF, model=of_writer(1.0)), "other/0")
    real, came = Path.rename, []

    def beaten(path: Path, target: Path) -> Path:
        if path == mine and not came:
            came.append(real(other, target))
        return real(path, target)

    monkeypatch.setattr(Path, "rename", beaten)
    assert weight(publishing.publish(tmp_path, mine, 7)) == 2.0
    assert came and names(tmp_path) == ["ckpt-00000007"]


def test_a_manifest_without_an_epoch_still_loads(tmp_path: Path) -> None:
    for window in (3, 4):
        path = save(tmp_path, window) / manifest.FILE
        data = json.loads(path.read_text())
        del data["epoch"]
        path.write_text(json.dumps(data))
    found, problems = newest_valid(tmp_path)
    assert found is not None and problems == [] and found.manifest.order == (1, 0, 4)
    save(tmp_path, 5, epoch=1)
    assert newest_valid(tmp_path)[0].window == 5  # type: ignore[union-attr]


def test_no_file_is_a_pickle(tmp_path: Path) -> None:
    path = save(tmp_path, 1)
    for file in path.iterdir():
        if file.suffix == ".json":
            json.loads(file.read_bytes())
        else:
            data = file.read_bytes()
            json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


def test_random_state_comes_back() -> None:
    def draw() -> tuple[float, float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(())), float(np.random.normal())

    draw()
    state = json.loads(json.dumps(randomness.capture()))
    expected = draw()
    draw()
    randomness.restore(state)
    assert draw() == expected


def test_a_generator_of_another_kind_comes_back_too() -> None:
    before = np.random.get_bit_generator()
    try:
        np.random.set_bit_generator(np.random.PCG64(5))
        state = json.loads(json.dumps(randomness.capture()))
        expected = float(np.random.rand())
        randomness.restore(state)
        assert float(np.random.rand()) == expected
    finally:
        np.random.set_bit_generator(before)


@pytest.mark.parametrize(
    "harm", [{"numpy": None}, {"torch": "AAAA"}, {"python": [3, [1, 2], None]}, {"python": 7}, {"torch": [1, 2]}]
)
def test_random_state_that_does_not_fit_changes_nothing(harm: dict[str, Any]) -> None:
    before = randomness.capture()
    assert not randomness.restore_if_possible({**before, **harm})
    assert randomness.capture() == before


def test_held_randomness_is_the_same_and_leaves_no_trace() -> None:
    before = randomness.capture()
    with randomness.held(3):
        first = (random.random(), float(torch.rand(())))
    with randomness.held(3):
        assert (random.random(), float(torch.rand(()))) == first
    assert randomness.capture() == before
