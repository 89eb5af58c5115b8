"""Archives on disk: whole or absent, one current, one builder at a time."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fdl_cli.images.errors import ImageError
from fdl_cli.images.store import Record, Store, cache_root, mounts_below

HASHES = ["0" * 16, "1" * 16, "2" * 16]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "images")


def publish(store: Store, name: str, inputs: str, data: bytes = b"archive") -> Path:
    store.root.mkdir(exist_ok=True)
    made = store.root / "made"
    made.write_bytes(data)
    record = Record(
        name=name,
        reference=f"fdl.local/{name}:dev",
        inputs=inputs,
        engine="buildah",
        base="b",
        bytes=len(data),
        layers=(("sha256:a", 1),),
        seconds=1.5,
        built_at="2026-01-01T00:00:00+00:00",
    )
    return store.publish(made, record)


def test_the_cache_is_the_one_that_the_environment_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    monkeypatch.setenv("FDL_CACHE", str(tmp_path))
    assert cache_root() == tmp_path
    monkeypatch.delenv("FDL_CACHE")
    assert cache_root() == Path("/x/fdl")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_root() == Path.home() / ".cache/fdl"


def test_a_published_archive_is_the_current_one_with_its_record(store: Store) -> None:
    archive = publish(store, "prober", HASHES[0])
    record = store.current("prober")
    assert record is not None
    assert (record.inputs, record.layers) == (HASHES[0], (("sha256:a", 1),))
    assert store.current_path("prober") == archive
    assert archive.read_bytes() == b"archive"


def test_an_archive_of_another_size_than_its_record_counts_as_absent(store: Store) -> None:
    publish(store, "prober", HASHES[0]).write_bytes(b"arch")
    assert store.record("prober", HASHES[0]) is None
    with pytest.raises(ImageError, match="fdl images build prober"):
        store.current_path("prober")


def test_an_archive_without_a_readable_record_counts_as_absent(store: Store) -> None:
    publish(store, "prober", HASHES[0]).with_suffix(".json").write_text("{")
    assert store.current("prober") is None


def test_an_image_never_built_is_told_with_the_command(store: Store) -> None:
    with pytest.raises(ImageError, match=r"'operator' is not built yet: run 'fdl images build operator'"):
        store.current_path("operator")


def test_the_newest_two_stay_and_going_back_needs_no_build(store: Store) -> None:
    for age, inputs in enumerate(HASHES):
        archive = publish(store, "prober", inputs)
        os.utime(archive, (age, age))
    assert [store.record("prober", inputs) is not None for inputs in HASHES] == [False, True, True]
    store.point("prober", HASHES[1])
    current = store.current("prober")
    assert current is not None
    assert current.inputs == HASHES[1]


def test_an_image_whose_name_starts_like_another_keeps_its_archives(store: Store) -> None:
    publish(store, "trainer-cpu", HASHES[0])
    for inputs in HASHES:
        publish(store, "trainer", inputs)
    assert store.current("trainer-cpu") is not None


def test_prune_leaves_only_what_is_current(store: Store) -> None:
    for inputs in HASHES[:2]:
        publish(store, "prober", inputs, b"12345")
    assert store.prune(["prober", "operator"]) == 5
    assert sorted(path.name for path in store.root.glob("prober-*")) == [
        f"prober-{HASHES[1]}.json",
        f"prober-{HASHES[1]}.tar",
    ]


def test_a_second_builder_waits_and_names_the_first(store: Store) -> None:
    """The lock of a killed program is free at once: the kernel holds it, not a file."""
    code = (
        "import sys, pathlib; from fdl_cli.images.store import Store\n"
        "with Store(pathlib.Path(sys.argv[1])).lock(print):\n"
        "    print('held', flush=True); sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", code, str(store.root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        try:
            assert holder.stdout.readline() == "held\n"
            said: list[str] = []
            with (
                pytest.raises(ImageError, match=rf"process {holder.pid}\) has held"),
                store.lock(said.append, limit=0.2),
            ):
                pass
            assert said == [f"Another build (process {holder.pid}) is running in this cache: waiting for it."]
        finally:
            holder.kill()
        holder.wait(10)
        with store.lock(said.append, limit=5):
            pass


def test_the_lock_clears_what_an_interrupted_build_left(store: Store) -> None:
    (store.scratch / "half").mkdir(parents=True)
    with store.lock(print):
        assert list(store.scratch.iterdir()) == []
    assert not store.scratch.exists()


def test_only_mounts_inside_the_folder_forbid_its_removal() -> None:
    mounts = "proc /c/tmp/root/proc proc rw 0 0\n/dev/vda / ext4 rw 0 0\nx /c/tmpfs tmpfs rw 0 0\n"
    assert mounts_below(Path("/c/tmp"), mounts) == ["/c/tmp/root/proc"]
    assert mounts_below(Path("/c/none"), mounts) == []
