"""What an image is made of, and the hash over it."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdl_cli.images.errors import ImageError
from fdl_cli.images.inputs import EPOCH, InputFile, collect, find_source, inputs_hash, stage

FILES = st.lists(
    st.builds(
        InputFile, path=st.text(min_size=1), sha256=st.text("0123456789abcdef", max_size=8), executable=st.booleans()
    ),
    min_size=1,
    max_size=5,
    unique=True,
)


@given(FILES, st.dictionaries(st.text(max_size=3), st.text(max_size=3)))
def test_the_order_of_files_and_settings_does_not_matter(files: list[InputFile], settings: dict[str, str]) -> None:
    backwards = dict(reversed(settings.items()))
    assert inputs_hash(files, settings) == inputs_hash(files[::-1], backwards)


@given(FILES, st.data())
def test_a_change_of_any_file_changes_the_hash(files: list[InputFile], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(files) - 1))
    old = files[index]
    changes = [
        InputFile(old.path + "x", old.sha256, old.executable),
        InputFile(old.path, old.sha256 + "0", old.executable),
        InputFile(old.path, old.sha256, not old.executable),
    ]
    for change in changes:
        assert inputs_hash([*files[:index], change, *files[index + 1 :]], {}) != inputs_hash(files, {})


def test_a_change_of_a_setting_changes_the_hash() -> None:
    assert inputs_hash([], {"base": "a"}) != inputs_hash([], {"base": "b"})


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    (root / "pkg/__pycache__").mkdir(parents=True)
    (root / "pkg/a.py").write_text("a = 1\n")
    (root / "pkg/run.sh").write_text("#!/bin/sh\n")
    (root / "pkg/run.sh").chmod(0o700)
    (root / "pkg/__pycache__/a.cpython-311.pyc").write_bytes(b"x")
    (root / "one.txt").write_text("1")
    return root


def test_bytecode_is_no_input(tree: Path) -> None:
    found = collect(tree, ["pkg", "one.txt"])
    assert [(file.path, file.executable) for file in found] == [
        ("pkg/a.py", False),
        ("pkg/run.sh", True),
        ("one.txt", False),
    ]


def test_a_missing_path_is_named(tree: Path) -> None:
    with pytest.raises(ImageError, match=r"tree/absent does not exist, but a Dockerfile copies it"):
        collect(tree, ["absent"])


def test_a_folder_without_files_is_named(tree: Path) -> None:
    (tree / "empty").mkdir()
    with pytest.raises(ImageError, match=r"tree/empty holds no file"):
        collect(tree, ["empty"])


def test_a_staged_context_holds_the_inputs_alone_with_fixed_times_and_modes(tree: Path, tmp_path: Path) -> None:
    context = tmp_path / "context"
    context.mkdir()
    stage(tree, collect(tree, ["pkg"]), context)
    staged = {
        path.relative_to(context).as_posix(): (path.stat().st_mode & 0o777, int(path.stat().st_mtime))
        for path in context.rglob("*")
    }
    assert staged == {"pkg": (0o755, EPOCH), "pkg/a.py": (0o644, EPOCH), "pkg/run.sh": (0o755, EPOCH)}


def test_a_file_that_changes_meanwhile_stops_the_build(tree: Path, tmp_path: Path) -> None:
    files = collect(tree, ["pkg"])
    (tree / "pkg/a.py").write_text("a = 2\n")
    context = tmp_path / "context"
    context.mkdir()
    with pytest.raises(ImageError, match=r"pkg/a.py changed while the build was being prepared"):
        stage(tree, files, context)


def test_the_checkout_is_found_from_inside(tmp_path: Path) -> None:
    (tmp_path / "images/operator").mkdir(parents=True)
    (tmp_path / "images/operator/Dockerfile").touch()
    (tmp_path / "pyproject.toml").touch()
    inside = tmp_path / "docs/tasks"
    inside.mkdir(parents=True)
    assert find_source(inside) == tmp_path


def test_outside_a_checkout_the_way_out_is_named(tmp_path: Path) -> None:
    with pytest.raises(ImageError, match="--source"):
        find_source(tmp_path)
