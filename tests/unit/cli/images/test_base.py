"""The base that is made where no registry answers."""

from pathlib import Path

import pytest

from fdl_cli.images import base
from fdl_cli.images.errors import ImageError


def test_another_mirror_means_another_base() -> None:
    assert base.made_base("") != base.made_base("http://mirror.example/debian")
    assert base.made_base("").reference.startswith("fdl.local/base:")


def test_without_a_mirror_mmdebstrap_uses_its_own() -> None:
    command = base.mmdebstrap_command(Path("/t.tar"), "")
    assert command[-2:] == ["trixie", "/t.tar"]
    assert base.mmdebstrap_command(Path("/t.tar"), "m")[-1] == "m"


def test_the_choice_is_remembered(tmp_path: Path) -> None:
    chosen = base.Base("registry", "debian:trixie-slim")
    base.remember(tmp_path / "base.json", chosen)
    assert base.remembered(tmp_path / "base.json") == chosen


def test_a_damaged_memory_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "base.json").write_text('{"kind": "registry"}')
    assert base.remembered(tmp_path / "base.json") is None
    assert base.remembered(tmp_path / "absent.json") is None


def test_packages_that_cannot_be_installed_are_told_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(base, "can_install", lambda: False)
    with pytest.raises(ImageError, match="apt-get install mmdebstrap"):
        base.require_install(["mmdebstrap"])
    base.require_install([])
