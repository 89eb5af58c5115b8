"""Volumes: real folders, each broken in a real way, looked at by a process of its own."""

import errno
import hashlib
import os
from pathlib import Path

import pytest

from fdl_prober import volumes
from fdl_prober.children import volume


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
    seen = await volumes.sentinel(file)
    assert (seen.sha256, seen.error) == (hashlib.sha256(b"the same on every node").hexdigest(), "")


async def test_a_sentinel_that_is_not_there_is_named(tmp_path: Path) -> None:
    seen = await volumes.sentinel(tmp_path / "none")
    assert (seen.sha256, seen.error, seen.errno, seen.answered) == (
        "",
        "No such file or directory",
        errno.ENOENT,
        True,
    )


async def test_a_mount_that_hangs_costs_one_look(tmp_path: Path) -> None:
    """A named pipe without a writer blocks its reader like a dead file server."""
    os.mkfifo(tmp_path / "hangs")
    seen = await volumes.sentinel(tmp_path / "hangs", timeout_seconds=2)
    assert "did not end within 2 s" in seen.error and not seen.answered


async def test_a_volume_that_hangs_while_it_is_read_costs_one_look(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "hangs")
    seen = await volumes.look(tmp_path, "data", 2.0, timeout_seconds=2)
    assert "did not end within 2 s" in seen.error


async def test_names_with_blanks_and_letters_of_any_alphabet(tmp_path: Path) -> None:
    folder = tmp_path / "Daten \u00fc \u6c49 'x' \\ \""
    folder.mkdir()
    assert (await volumes.look(folder, "data")).step == ""
