"""The ``fdl`` command. Parts register their commands in :data:`COMMANDS` by module path.

Other packages, which this one may not import, name theirs in the entry-point group :data:`ENTRY_POINTS`.
"""

from importlib import metadata

import click

from fdl_api.version import VERSION
from fdl_cli.lazy import LazyGroup

COMMANDS = {
    "convert": ("fdl_cli.convert.command:convert", "Manifests for an existing floDl set-up."),
    "demo": ("fdl_cli.demo.command:demo", "From nothing to a trained model on a real Kubernetes."),
    "explain": ("fdl_cli.explain.command:explain", "Why members of a run may or may not be on a node."),
    "images": ("fdl_cli.images.command:images", "Build fdl's container images."),
    "local": ("fdl_cli.local.command:local", "A real Kubernetes on this machine."),
    "probe": ("fdl_cli.probe.command:probe", "What each node can run, and what is wrong with it."),
}
"""Command -> (``module:attribute`` of its click command, its line of help)."""
ENTRY_POINTS = "fdl.commands"
"""Group of entry points whose names are commands and whose objects are click commands."""


def found() -> dict[str, tuple[str, str]]:
    """Commands that installed packages name, in the form of :data:`COMMANDS`; their help is asked of themselves."""
    return {point.name: (point.value, "") for point in metadata.entry_points(group=ENTRY_POINTS)}


@click.group(cls=LazyGroup, lazy={**found(), **COMMANDS}, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="fdl")
def main() -> None:
    """Elastic PyTorch training on whatever GPUs a Kubernetes cluster has."""


if __name__ == "__main__":
    main()
