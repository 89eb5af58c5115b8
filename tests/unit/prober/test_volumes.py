"""Volumes: real folders, each broken in a real way, looked at by a process of its own."""

import asyncio
import errno
import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from fdl_prober import volumes
from fdl_prober.children import volume
from fdl_prober.settings import Folder
from fdl_prober.volumes import Folders, Seen, SharedFile


def content(folder: Path) -> list[Path]:
    return list(folder.iterdir())


PLAIN = pytest.mark.skipif(os.geteuid() != 0, reason="mounting and changing the reader's user need root")


async def test_a_folder_with_data(tmp_path: Path) -> None:
    (tmp_path / "part").mkdir()
    (tmp_path / "part/large").write_bytes(os.urandom(volume.LEAST_TIMED_BYTES))
    (tmp_path / "small").write_bytes(b"x")
    seen = await volumes.look(tmp_path, "data", 2.0)
    assert (seen.step, seen.error, seen.empty) == ("", "", False)
    assert (seen.bytes_per_second or 0) > 0 and (seen.free_bytes or 0) > 0
    assert (await volumes.look(tmp_path, "data")).bytes_per_second is None


async def test_a_folder_whose_files_are_too_small_to_tell_a_speed(tmp_path: Path) -> None:
    assert (await volumes.look(tmp_path, "data", 2.0)).empty
    (tmp_path / "small").write_bytes(b"x")
    assert (await volumes.look(tmp_path, "data", 2.0)).bytes_per_second is None


async def test_a_folder_for_checkpoints_is_left_as_it_was(tmp_path: Path) -> None:
    seen = await volumes.look(tmp_path, "checkpoints")
    assert (seen.step, seen.errno) == ("", 0)
    assert content(tmp_path) == []


@pytest.mark.parametrize(("name", "number"), [("none", errno.ENOENT), ("file", errno.ENOTDIR)])
async def test_what_is_no_folder(tmp_path: Path, name: str, number: int) -> None:
    (tmp_path / "file").touch()
    seen = await volumes.look(tmp_path / name, "data")
    assert (seen.step, seen.errno) == ("look", number)
    assert seen.words == os.strerror(number)


@PLAIN
def test_a_folder_without_rights(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.mkdir(mode=0o700)
    own = os.open(secret, os.O_RDONLY)
    try:
        os.seteuid(65534)
        seen = volume.folder(Path(f"/proc/self/fd/{own}"), "data", 0)
    finally:
        os.seteuid(0)
        os.close(own)
    assert seen["errno"] == errno.EACCES


async def test_the_sentinel_is_hashed(tmp_path: Path) -> None:
    file = tmp_path / "sentinel"
    file.write_bytes(b"the same on every node")
    seen = await SharedFile(file).look()
    assert (seen.sha256, seen.error) == (hashlib.sha256(b"the same on every node").hexdigest(), "")


def test_a_file_is_hashed_only_where_its_state_is_another(tmp_path: Path) -> None:
    file = tmp_path / "sentinel"
    file.write_bytes(b"first")
    first = volume.hashed(file, "")
    assert first["sha256"] == hashlib.sha256(b"first").hexdigest()
    assert volume.hashed(file, first["state"]) == {"state": first["state"]}
    kept = file.stat()
    file.write_bytes(b"other")
    os.utime(file, ns=(kept.st_atime_ns, kept.st_mtime_ns))  # the same inode, size and time of its content
    assert volume.hashed(file, first["state"])["sha256"] == hashlib.sha256(b"other").hexdigest()


def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The known states that looks are made with, which go on to the real look."""
    known: list[str] = []
    real = volumes.look

    async def look(*arguments: Any, **named: Any) -> Seen:
        known.append(named.get("known", ""))
        return await real(*arguments, **named)

    monkeypatch.setattr(volumes, "look", look)
    return known


async def test_a_sentinel_is_hashed_again_when_it_changed_and_now_and_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Now and then without a change, too: a stale cache may give up its content while all times stay."""
    now, file, known = [0.0], tmp_path / "sentinel", told(monkeypatch)
    shared = SharedFile(file, clock=lambda: now[0])
    file.write_bytes(b"old")
    old = await shared.look()
    assert (await shared.look(), known[0]) == (old, "") and known[1]
    file.write_bytes(b"new")
    assert (await shared.look()).sha256 == hashlib.sha256(b"new").hexdigest()
    now[0] += volumes.HASH_AGAIN_SECONDS - 1
    await shared.look()
    now[0] += 1
    assert (await shared.look()).sha256 == hashlib.sha256(b"new").hexdigest()
    assert [bool(state) for state in known] == [False, True, True, True, False]


async def test_a_sentinel_that_was_away_is_hashed_when_it_is_back(tmp_path: Path) -> None:
    file = tmp_path / "sentinel"
    file.write_bytes(b"x")
    shared = SharedFile(file)
    first = await shared.look()
    file.rename(tmp_path / "away")
    gone = await shared.look()
    assert (gone.sha256, gone.errno) == ("", errno.ENOENT)
    (tmp_path / "away").rename(file)
    assert await shared.look() == first


async def test_a_sentinel_that_is_not_there_is_named(tmp_path: Path) -> None:
    seen = await SharedFile(tmp_path / "none").look()
    assert (seen.sha256, seen.error, seen.errno, seen.answered) == (
        "",
        "No such file or directory",
        errno.ENOENT,
        True,
    )


async def test_a_mount_that_hangs_costs_one_look(tmp_path: Path) -> None:
    """A named pipe without a writer blocks its reader like a dead file server."""
    os.mkfifo(tmp_path / "hangs")
    seen = await SharedFile(tmp_path / "hangs").look(timeout_seconds=2)
    assert "did not end within 2 s" in seen.error and not seen.answered


async def test_a_volume_that_hangs_while_it_is_read_costs_one_look(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "hangs")
    seen = await volumes.look(tmp_path, "data", 2.0, timeout_seconds=2)
    assert "did not end within 2 s" in seen.error


async def test_folders_are_looked_at_side_by_side_and_read_one_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, begun, reading = volumes.look, asyncio.Barrier(3), [0]

    async def look(path: Path, kind: str, read_seconds: float = 0.0, *more: Any, **named: Any) -> Seen:
        if read_seconds:
            reading[0] += 1
            assert reading[0] == 1, "two readings at once slow each other down"
        else:
            await begun.wait()  # ends only when all three have begun
        seen = await real(path, kind, read_seconds, *more, **named)
        reading[0] -= bool(read_seconds)
        return seen

    monkeypatch.setattr(volumes, "look", look)
    own = tuple(Folder(tmp_path / name) for name in ("a", "b", "c"))
    for folder in own:
        folder.path.mkdir()
        (folder.path / "large").write_bytes(os.urandom(volume.LEAST_TIMED_BYTES))
    found = await asyncio.wait_for(Folders(own).look(), 60)
    assert list(found) == list(own)
    assert all((seen.bytes_per_second or 0) > 0 for seen in found.values())


async def test_a_folder_that_hangs_costs_itself_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A named pipe blocks its reader: the other folders are there all the same, and within the limit for all."""
    monkeypatch.setattr(volumes, "READ_LIMIT_SECONDS", 2.0)
    own = tuple(Folder(tmp_path / name) for name in ("good", "hangs"))
    for folder in own:
        folder.path.mkdir()
    os.mkfifo(own[1].path / "pipe")
    found = await Folders(own).look()
    assert (found[own[0]].good, found[own[0]].empty) == (True, True)
    assert "did not end within 2 s" in found[own[1]].error


async def test_a_reading_that_does_not_fit_into_the_limit_is_left_for_the_next_look(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(os.urandom(volume.LEAST_TIMED_BYTES))
    own = Folder(tmp_path)
    folders = Folders((own,))
    short = (await folders.look(timeout_seconds=volumes.READ_LIMIT_SECONDS))[own]
    assert (short.good, short.bytes_per_second) == (True, None)
    assert ((await folders.look())[own].bytes_per_second or 0) > 0


async def test_names_with_blanks_and_letters_of_any_alphabet(tmp_path: Path) -> None:
    folder = tmp_path / "Daten \u00fc \u6c49 'x' \\ \""
    folder.mkdir()
    assert (await volumes.look(folder, "data")).step == ""
