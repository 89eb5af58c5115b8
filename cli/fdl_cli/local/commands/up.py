"""``fdl local up``."""

import os
from collections.abc import Mapping
from pathlib import Path

import click

from fdl_cli.local.cluster import PROVIDERS, Cluster
from fdl_cli.local.commands.common import name_option, say, sentences
from fdl_cli.local.commands.progress import build_progress
from fdl_cli.local.nodespec import parse_node


def proxied(environment: Mapping[str, str]) -> bool:
    """Whether programs would look for the API server behind a proxy."""
    names = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
    return any(environment.get(n) for n in names) and not (environment.get("NO_PROXY") or environment.get("no_proxy"))


@click.command()
@name_option
@click.option("--nodes", "count", type=int, help="Number of nodes in all.  [default: 3, or as many as --node is given]")
@click.option(
    "--node",
    "given",
    multiple=True,
    metavar="KEY=VALUE,...",
    help="A node: name=, cpu=0.5, memory=2Gi, nvidia=2:sm_90, amd=1:gfx942 (simulated). May be repeated.",
)
@click.option("--provider", type=click.Choice(PROVIDERS), default="auto", show_default=True)
@click.option(
    "--image",
    "images",
    multiple=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="An OCI or Docker archive to load. May be repeated.",
)
@sentences
def up(name: str, count: int | None, given: tuple[str, ...], provider: str, images: tuple[Path, ...]) -> None:
    """Start a real Kubernetes on this machine, or add what a running one lacks."""
    nodes = [parse_node(text) for text in given]
    try:
        with build_progress() as report:
            cluster = Cluster(name, say=say, report=report)
            cluster.up(nodes, count, provider, images)
    except KeyboardInterrupt:
        say(f"Interrupted. What was started is cleared by the next `fdl local up` or by: fdl local down --name {name}")
        raise SystemExit(130) from None
    if proxied(os.environ):
        say("A proxy is set: add this cluster to NO_PROXY (10.0.0.0/8 covers it) for kubectl and helm")
    say(f"export KUBECONFIG={cluster.kubeconfig}")
