"""``fdl local prune``."""

import click

from fdl_cli.local.commands.common import say, sentences
from fdl_cli.local.prune import prune as free


@click.command()
@sentences
def prune() -> None:
    """Free image layers that no cluster uses, and programs of earlier pins."""
    say(f"Freed {free() / 2**20:.0f} MiB")
