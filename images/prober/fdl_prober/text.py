"""Texts of the kernel's files, as they can be compared and written into a report."""

import re
from pathlib import Path
from typing import Final

from fdl_api.checks.model import plain

__all__ = ["known_word", "plain", "word"]

MAX_BYTES: Final = 1 << 20
"""Of a file that should be small: what stands in its place may have any size."""


def word(path: Path) -> str:
    """The text of a small file without the blanks around it; empty where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES).decode(errors="replace").strip()
    except OSError:
        return ""


def known_word(path: Path, known: re.Pattern[str]) -> str:
    """The same of a file in which only some texts make sense; empty where there is no such file.

    Raises:
        ValueError: it says something else: nothing may be concluded from it.
    """
    text = word(path)
    if not known.fullmatch(text) and path.exists():
        raise ValueError(f"{path} says {plain(text) or 'nothing'}")
    return text
