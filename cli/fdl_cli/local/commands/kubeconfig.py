"""``fdl local kubeconfig``."""

import click

from fdl_cli.local import state
from fdl_cli.local.commands.common import cluster, name_option, sentences


@click.command()
@name_option
@click.option("--path", is_flag=True, help="Print the file's path instead of its text.")
@sentences
def kubeconfig(name: str, path: bool) -> None:
    """Print the administrator's kubeconfig."""
    local = cluster(name)
    state.require(local.paths)
    click.echo(local.kubeconfig if path else local.kubeconfig.read_text(), nl=path)
