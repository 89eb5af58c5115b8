"""What all commands share: the name option, the console, and faults as sentences."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import click
from rich.console import Console

from fdl_cli.local.cluster import Cluster
from fdl_cli.local.errors import LocalError

P = ParamSpec("P")
R = TypeVar("R")

console = Console(stderr=True, highlight=False, soft_wrap=True)

name_option = click.option("--name", default="fdl", show_default=True, help="Name of the cluster.")


def say(sentence: str) -> None:
    """Prints what is going on, to stderr."""
    console.print(sentence, markup=False)


def cluster(name: str) -> Cluster:
    """The cluster of a name, talking to the console."""
    return Cluster(name, say=say)


def sentences(command: Callable[P, R]) -> Callable[P, R]:
    """Turns a :class:`LocalError` into a message without a traceback and exit code 1."""

    @functools.wraps(command)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return command(*args, **kwargs)
        except LocalError as fault:
            raise click.ClickException(str(fault)) from fault

    return wrapped
