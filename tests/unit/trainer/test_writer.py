import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from fdl_api.reasons import Ended
from fdl_trainer import checkpoint
from fdl_trainer.checkpoint import Snapshot, newest_valid
from fdl_trainer.writer import Failed, Saved, Writer


def snapshot(window: int, **changes: object) -> Snapshot:
    fields = {"samples": 10 * window, "attempt": 1, "model": {"w": torch.full((4,), window)}, "optimizer": {}}
    return Snapshot(window, **{**fields, "state": {}, "model_digest": "x", **changes})  # type: ignore[arg-type]


@contextmanager
def writing(root: Path, keep: int = 3) -> Iterator[tuple[Writer, list[Saved], list[Failed]]]:
    saved: list[Saved] = []
    failed: list[Failed] = []
    writer = Writer(root, keep=keep, writer="pod/0", on_saved=saved.append, on_failed=failed.append)
    try:
        yield writer, saved, failed
    finally:
        assert writer.close(30)


def test_a_checkpoint_is_published_only_when_its_window_is_settled(tmp_path: Path) -> None:
    with writing(tmp_path) as (writer, saved, _):
        writer.submit(snapshot(5, final=True, stall_ms=1.5))
        assert writer.wait(30)
        writer.settle(4)
        assert writer.wait(30)
        assert newest_valid(tmp_path) == (None, [])
        writer.settle(5)
        assert writer.wait(30)
        assert [(item.window, item.samples, item.final, item.stall_ms) for item in saved] == [(5, 50, True, 1.5)]
        assert saved[0].path == tmp_path / "ckpt-00000005"
        assert saved[0].size_bytes == sum(
            path.stat().st_size for path in saved[0].path.iterdir() if path.name != "MANIFEST.json"
        )
        assert saved[0].write_ms > 0


def test_a_window_settled_before_the_write_ends_is_published_when_it_does(tmp_path: Path) -> None:
    with writing(tmp_path) as (writer, saved, _):
        writer.settle(9)
        writer.submit(snapshot(9))
        assert writer.wait(30)
        assert [item.window for item in saved] == [9]


def test_old_ones_are_pruned(tmp_path: Path) -> None:
    with writing(tmp_path, keep=2) as (writer, saved, _):
        for window in range(1, 5):
            writer.settle(window)
            writer.submit(snapshot(window))
            assert writer.wait(30)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ckpt-00000003", "ckpt-00000004"]
    assert [item.window for item in saved] == [1, 2, 3, 4]


def test_when_snapshots_come_faster_than_writes_the_newest_waiting_one_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, started, go_on = checkpoint.prepare, threading.Event(), threading.Event()

    def slow(root: Path, made: Snapshot, writer: str) -> Path:
        started.set()
        assert go_on.wait(30)
        return real(root, made, writer)

    monkeypatch.setattr(checkpoint, "prepare", slow)
    with writing(tmp_path) as (writer, saved, _):
        writer.settle(100)
        writer.submit(snapshot(1))
        assert started.wait(30)
        writer.submit(snapshot(2))
        writer.submit(snapshot(3))
        go_on.set()
        assert writer.wait(30)
        assert [item.window for item in saved] == [1, 3]


def test_a_window_that_the_run_does_not_hold_any_more_is_never_published(tmp_path: Path) -> None:
    with writing(tmp_path) as (writer, saved, _):
        writer.submit(snapshot(6))
        assert writer.wait(30)
        writer.discard(6)
        writer.settle(7)
        assert writer.wait(30)
        assert saved == []
        assert newest_valid(tmp_path) == (None, [])


def test_a_failure_is_told_and_the_next_snapshot_is_tried_again(tmp_path: Path) -> None:
    root = tmp_path / "run"
    root.write_text("")
    with writing(root) as (writer, saved, failed):
        writer.settle(2)
        writer.submit(snapshot(1, final=True))
        assert writer.wait(30)
        assert [(item.window, item.reason, item.final) for item in failed] == [(1, Ended.CHECKPOINT_UNREADABLE, True)]
        assert "Not a directory" in failed[0].message
        root.unlink()
        writer.submit(snapshot(2))
        assert writer.wait(30)
        assert [item.window for item in saved] == [2]


def test_optimizer_state_that_cannot_be_saved_is_told_with_its_place(tmp_path: Path) -> None:
    with writing(tmp_path) as (writer, _, failed):
        writer.submit(snapshot(1, optimizer={"hook": object()}))
        assert writer.wait(30)
        assert "state.hook is a builtins.object" in failed[0].message


def test_a_closed_writer_takes_nothing(tmp_path: Path) -> None:
    with writing(tmp_path) as (writer, _, _):
        pass
    with pytest.raises(RuntimeError, match="closed"):
        writer.submit(snapshot(1))
