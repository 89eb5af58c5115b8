"""The group ``fdl local``."""

import click

from fdl_cli.lazy import LazyGroup

_HERE = "fdl_cli.local.commands"

COMMANDS = {
    "bin": (f"{_HERE}.bin:bin_path", "Print the path of one of the cluster's programs."),
    "build": (f"{_HERE}.build:build", "Build the native cluster's programs into the cache."),
    "down": (f"{_HERE}.down:down", "Remove a cluster and everything it left."),
    "kubeconfig": (f"{_HERE}.kubeconfig:kubeconfig", "Print the administrator's kubeconfig."),
    "load": (f"{_HERE}.load:load", "Load image archives into all nodes."),
    "node": (f"{_HERE}.node:node", "Stop, freeze, cut off and bring back nodes."),
    "prune": (f"{_HERE}.prune:prune", "Free what the cache holds and nothing uses."),
    "status": (f"{_HERE}.status:status", "Show the nodes of a cluster."),
    "up": (f"{_HERE}.up:up", "Start a cluster, or add what a running one lacks."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def local() -> None:
    """A real Kubernetes on this machine: by kind where a container engine answers, else natively."""
