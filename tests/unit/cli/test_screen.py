"""How wide pages are."""

import sys

import pytest

from fdl_cli import screen


def test_lines_in_a_file_are_not_folded_and_columns_has_the_last_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False, raising=False)
    monkeypatch.delenv("COLUMNS", raising=False)
    assert screen.pages().width == screen.IN_FILES
    monkeypatch.setenv("COLUMNS", "70")
    assert screen.pages().width == 70
