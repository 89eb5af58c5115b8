"""Writes tables so that they can be copied and compared: no blanks at the ends of lines, no colours into a file."""

import os
import sys
from collections.abc import Sequence

import click
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

NARROW = 100
"""Characters below which columns stand close together."""


IN_FILES = 200
"""Characters of a line in a file or a pipe, where a folded name could not be searched for."""


def pages() -> Console:
    """Where pages go: as wide as the terminal, or as ``COLUMNS`` says, or as lines in a file may be."""
    wide = None if sys.stdout.isatty() or os.environ.get("COLUMNS") else IN_FILES
    return Console(highlight=False, width=wide)


def table(width: int) -> Table:
    """An empty table for a screen of ``width`` characters, without lines."""
    gap = 1 if width < NARROW else 2
    return Table(box=None, pad_edge=False, padding=(0, gap, 0, 0), header_style="bold")


def named(names: Sequence[str], most: int) -> str:
    """The first of some names, with the number of the others."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def printable(text: str) -> str:
    """A text without control characters: what nodes and users write must not steer the reader's terminal."""
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)


def words(text: str, style: str = "") -> Text:
    """A text to show as it is, without markup and control characters."""
    return Text(printable(text), style=style)


def emit(console: Console, what: RenderableType) -> None:
    """Print to the console."""
    with console.capture() as capture:
        console.print(what)
    for line in capture.get().splitlines():
        click.echo(line.rstrip())
