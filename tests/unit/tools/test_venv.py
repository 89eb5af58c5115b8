"""Pinned requirements: nothing of ours in them, every pin with a hash, no address of a registry."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FILES = sorted((ROOT / "requirements").glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_requirement_is_pinned_with_hashes(path: Path) -> None:
    entries = re.split(r"\n(?=[a-zA-Z0-9])", path.read_text())
    pins = [entry for entry in entries if re.match(r"[a-zA-Z0-9._-]+(\[[a-z,]+\])?==", entry)]
    assert pins, f"{path.name} has no requirement"
    unpinned = [entry.splitlines()[0] for entry in pins if "--hash=sha256:" not in entry]
    assert unpinned == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_no_address_and_nothing_of_ours(path: Path) -> None:
    text = path.read_text()
    assert "://" not in text
    assert not re.search(r"^(-e|fdl\b)", text, re.MULTILINE)
