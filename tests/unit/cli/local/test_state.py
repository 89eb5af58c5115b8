"""The record of a cluster, its lock, and finding processes again."""

import contextlib
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path

import pytest

from fdl_cli.local import processes, state
from fdl_cli.local.errors import LocalError
from fdl_cli.local.images import chain_ids, write_archive
from fdl_cli.local.nodespec import NodeSpec, parse_node
from fdl_cli.local.prune import unused_layers


def test_a_record_survives_its_file() -> None:
    record = state.Record(
        "c", "native", state.RUNNING, 203, "/bin", [parse_node("name=a,cpu=0.5,nvidia=2:sm_90"), NodeSpec("b")]
    )
    record.holders["a"] = state.Holder(4711, 99)
    record.stopped = ["b"]
    again = state.decode(state.encode(record))
    assert again == record
    assert again.nodes[0].cpu == Decimal("0.5")
    assert again.index("b") == 1
    with pytest.raises(LocalError, match=r"has no node x\. It has: a, b"):
        again.index("x")


def _hold(path: str, name: str, ready: object, go: object) -> None:
    setattr(state, "LOCK_ROOT", Path(path))  # noqa: B010 - the folder is a constant for everybody else
    with state.lock(name, lambda _: None):
        ready.set()  # type: ignore[attr-defined]
        go.wait(20)  # type: ignore[attr-defined]


def test_a_lock_is_waited_for_and_freed_by_the_death_of_its_holder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "LOCK_ROOT", tmp_path)
    context = multiprocessing.get_context("fork")
    ready, go = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(str(tmp_path), "c", ready, go))
    other.start()
    assert ready.wait(20)
    said: list[str] = []
    with pytest.raises(LocalError, match="has worked on c for"), state.lock("c", said.append, limit_s=0.3):
        pass
    assert len(said) == 1
    other.kill()
    other.join(20)
    with state.lock("c", said.append, limit_s=5):
        assert len(said) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_process_is_known_by_id_and_start() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        started = processes.start_time(child.pid)
        assert started is not None
        assert processes.alive(child.pid, started)
        assert not processes.alive(child.pid, started + 1)
        # Another process of that id is left alone.
        assert processes.kill(child.pid, started + 1)
        assert child.poll() is None
        assert processes.kill(child.pid, started)
    finally:
        child.kill()
        child.wait(20)
    assert processes.start_time(child.pid) is None


def test_a_holder_is_found_by_program_and_folder_only(tmp_path: Path) -> None:
    program = tmp_path / "fdl-node"
    shutil.copy(Path(sys.executable).resolve(), program)
    described = str(tmp_path / "c/members/n/spec.json")
    waits = "import sys; sys.stdin.read()"
    with contextlib.ExitStack() as stack:
        children = []
        for argv in ([str(program), "-c", waits, described], [sys.executable, "-c", waits, described]):
            children.append(subprocess.Popen(argv, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL))
            stack.callback(children[-1].wait, 20)
            stack.callback(children[-1].kill)
        holder, _ = children
        deadline = time.monotonic() + 20
        while processes.helpers(tmp_path / "c") != [holder.pid] and time.monotonic() < deadline:
            time.sleep(0.01)
        assert processes.helpers(tmp_path / "c") == [holder.pid]
        assert processes.helpers(tmp_path / "other") == []


def test_an_archive_is_the_same_for_the_same_input(tmp_path: Path) -> None:
    program = tmp_path / "p"
    program.write_bytes(b"x" * 1000)
    write_archive(tmp_path / "a.tar", "x:1", {"p": program}, ["/p"])
    program.touch()
    write_archive(tmp_path / "b.tar", "x:1", {"p": program}, ["/p"])
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


def test_chain_ids_are_those_of_the_image_specification() -> None:
    first, second = (f"sha256:{c * 64}" for c in "ab")
    assert chain_ids([first]) == ["a" * 64]
    # printf 'sha256:aaa... sha256:bbb...' | sha256sum
    expected = subprocess.run(["sha256sum"], input=f"{first} {second}".encode(), capture_output=True, check=True).stdout
    assert chain_ids([first, second])[1] == expected.decode().split()[0]


def test_only_layers_that_no_node_links_to_are_unused(tmp_path: Path) -> None:
    store, states = tmp_path / "store", tmp_path / "state"
    for name in ("used", "unused"):
        (store / "layers" / name / "fs").mkdir(parents=True)
    snapshots = states / "c/members/n/var/lib/containerd/io.containerd.snapshotter.v1.overlayfs/snapshots"
    (snapshots / "1").mkdir(parents=True)
    (snapshots / "1/fs").symlink_to(store / "layers/used/fs")
    (snapshots / "2/fs").mkdir(parents=True)
    assert [p.name for p in unused_layers(states, store)] == ["unused"]


def test_a_bound_command_dies_with_its_starter() -> None:
    inner = processes.bound([sys.executable, "-c", "import sys; print('runs', flush=True); sys.stdin.read()"])
    script = f"import subprocess, sys; print(subprocess.Popen({inner!r}).pid, flush=True); sys.stdin.readline()"
    read, write = os.pipe()
    outer = subprocess.Popen([sys.executable, "-c", script], stdin=read, stdout=subprocess.PIPE, text=True)
    try:
        assert outer.stdout is not None
        pid = int(outer.stdout.readline())
        assert outer.stdout.readline() == "runs\n"  # before that it may not be bound yet
        started = processes.start_time(pid)
        assert started is not None
        outer.kill()
        outer.wait(20)
        deadline = time.monotonic() + 20
        while processes.alive(pid, started) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not processes.alive(pid, started)
    finally:
        os.close(read)
        os.close(write)
        outer.kill()
