"""Texts of the kernel's files, as they can be compared and written into a report."""

from pathlib import Path

from fdl_api.checks.model import plain

__all__ = ["plain", "word"]


def word(path: Path) -> str:
    """The text of a small file without the blanks around it; empty where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
