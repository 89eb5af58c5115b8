"""Command groups that import a command's module only when that command is called."""

import importlib
from collections.abc import Mapping
from typing import Any

import click

HELP_WIDTH = 100
"""Characters of a line of help."""


class LazyGroup(click.Group):
    """A group of commands known by name and one line of help; ``module:attribute`` is imported on use.

    A command without a line of help is imported to show the list, too.

    Commands of other parts, with their heavy imports (kubernetes, numpy), so cost nothing to ``fdl --help``.
    """

    def __init__(self, *args: Any, lazy: Mapping[str, tuple[str, str]] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lazy = dict(lazy or {})

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, sorted."""
        return sorted({*super().list_commands(ctx), *self._lazy})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of a name, imported now if it is a lazy one."""
        if cmd_name not in self._lazy:
            return super().get_command(ctx, cmd_name)
        module, _, attribute = self._lazy[cmd_name][0].partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the list of commands without importing the lazy ones."""
        rows = []
        for name in self.list_commands(ctx):
            if name in self._lazy and self._lazy[name][1]:
                rows.append((name, self._lazy[name][1]))
            elif (command := self.get_command(ctx, name)) is not None:
                rows.append((name, command.get_short_help_str(limit=HELP_WIDTH)))
        with formatter.section("Commands"):
            formatter.write_dl(rows)
