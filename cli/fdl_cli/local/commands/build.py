"""``fdl local build``."""

import click

from fdl_cli.local.cluster import Cluster
from fdl_cli.local.commands.common import say, sentences
from fdl_cli.local.commands.progress import build_progress


@click.command()
@sentences
def build() -> None:
    """Build the native cluster's programs into the cache (``up`` does it too)."""
    try:
        with build_progress() as report:
            folder = Cluster(say=say, report=report).build()
    except KeyboardInterrupt:
        say("Interrupted. Finished parts are kept; the next build goes on from there.")
        raise SystemExit(130) from None
    click.echo(folder)
