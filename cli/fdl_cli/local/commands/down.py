"""``fdl local down``."""

import click

from fdl_cli.local.commands.common import cluster, name_option, say, sentences


@click.command()
@name_option
@sentences
def down(name: str) -> None:
    """Remove a cluster and everything it left on this machine."""
    existed = cluster(name).down()
    say(f"Removed the cluster {name}" if existed else f"There is no cluster {name}; nothing of it is left")
