"""Reference page of the ``fdl`` command, asked of the commands themselves."""

from collections.abc import Iterator

import click

from fdl_cli.main import main

WIDTH = 100


def page() -> str:
    """Every command with its help text as Markdown."""
    lines = [
        "# The fdl command",
        "",
        "<!-- Generated from the commands by 'make generate'; do not edit. -->",
        "",
        "`kubectl fdl` is the same command as a kubectl plugin.",
        "",
    ]
    for path, command in _commands(main, "fdl"):
        context = click.Context(
            command, info_name=path, max_content_width=WIDTH, terminal_width=WIDTH, **main.context_settings
        )
        lines += [f"## {path}", "", "```text", command.get_help(context), "```", ""]
    return "\n".join(lines).rstrip() + "\n"


def _commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None and not child.hidden:
                yield from _commands(child, f"{path} {name}")
