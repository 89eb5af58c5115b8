"""``fdl local load``."""

from pathlib import Path

import click

from fdl_cli.local.commands.common import cluster, name_option, say, sentences


@click.command()
@name_option
@click.argument("archives", nargs=-1, required=True, type=click.Path(dir_okay=False, path_type=Path))
@sentences
def load(name: str, archives: tuple[Path, ...]) -> None:
    """Load OCI or Docker image archives into all nodes; what a node has already is skipped."""
    images, new = cluster(name).load(archives)
    for image in images:
        say(f"{image.name} {image.digest[:19]}")
    for node, count in new.items():
        say(f"  {node}: {count} new, {len(images) - count} there already")
