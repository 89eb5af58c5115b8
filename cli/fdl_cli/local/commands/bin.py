"""``fdl local bin``."""

import click

from fdl_cli.local.commands.common import cluster, name_option, sentences
from fdl_cli.local.errors import LocalError


@click.command(name="bin")
@name_option
@click.argument("program")
@sentences
def bin_path(name: str, program: str) -> None:
    """Print the path of one of the cluster's programs, such as kubectl, helm or ctr."""
    folder = cluster(name).bin
    path = folder / program
    if not path.is_file():
        listed = ", ".join(sorted(p.name for p in folder.iterdir() if p.is_file()))
        raise LocalError(f"There is no program {program}. There are: {listed}.")
    click.echo(path)
