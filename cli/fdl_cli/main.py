"""The ``fdl`` command. Parts register their commands in :data:`COMMANDS` by module path."""

import click

from fdl_api.version import VERSION
from fdl_cli.lazy import LazyGroup

COMMANDS = {
    "demo": ("fdl_cli.demo.command:demo", "From nothing to a trained model on a real Kubernetes."),
    "images": ("fdl_cli.images.command:images", "Build fdl's container images."),
    "local": ("fdl_cli.local.command:local", "A real Kubernetes on this machine."),
}
"""Command -> (``module:attribute`` of its click command, its line of help)."""


@click.group(cls=LazyGroup, lazy=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(VERSION, prog_name="fdl")
def main() -> None:
    """Elastic PyTorch training on whatever GPUs a Kubernetes cluster has."""


if __name__ == "__main__":
    main()
