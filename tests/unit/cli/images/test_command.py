"""The command line of ``fdl images``."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from fdl_cli.images.catalog import CATALOG
from fdl_cli.images.command import images


@pytest.fixture(autouse=True)
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FDL_CACHE", str(tmp_path))


def test_path_of_an_image_never_built_says_how_to_build_it() -> None:
    result = CliRunner().invoke(images, ["path", "prober"])
    assert result.exit_code == 1
    assert "run 'fdl images build prober'" in result.output


def test_path_of_an_unknown_image_lists_those_that_exist() -> None:
    result = CliRunner().invoke(images, ["path", "probe"])
    assert "choose among operator, prober" in result.output


def test_list_shows_every_image_before_any_is_built() -> None:
    result = CliRunner().invoke(images, ["list"])
    assert result.exit_code == 0
    assert result.output.count("not built") == len(CATALOG)


def test_build_outside_a_checkout_says_what_to_give(tmp_path: Path) -> None:
    result = CliRunner().invoke(images, ["build", "--source", str(tmp_path)])
    assert result.exit_code == 1
    assert "--source" in result.output


def test_prune_of_an_empty_cache_frees_nothing() -> None:
    assert CliRunner().invoke(images, ["prune"]).output == "Freed 0.0 MB.\n"
