"""``fdl convert``."""

import sys
from pathlib import Path

import click
from rich.console import Console

from fdl_cli.convert import show
from fdl_cli.convert.audit import audit
from fdl_cli.convert.build import ConvertError, Wishes, build, run_name
from fdl_cli.convert.source import Mapping, SourceError, overlay, read
from fdl_cli.screen import printable

UNDERSTOOD, PARTLY, NOTHING = 0, 1, 2
"""Exit codes: every key is accounted for; some were not understood and left out; no manifest was made."""
STYLES = {"head": "bold", "bad": "red", "": ""}


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, dir_okay=False))
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write here instead of to stdout."
)
@click.option("--name", default="", help="Name of the run. [default: the command's]")
@click.option("--command", default="", help="The command to convert. [default: all that fan out]")
@click.option("--registry", default="fdl.local", show_default=True, help="Where the trainer images come from.")
@click.option("--tag", default="dev", show_default=True, help="Tag of the trainer images.")
def convert(files: tuple[Path, ...], output: Path | None, **said: str) -> None:
    """Turn floDl's FILES, usually fdl.cluster.yml, into manifests.

    Writes an FdlCluster and an FdlRun for each command that fans out, and says on stderr what became of every key.
    Of several files each lies over those before it, as floDl lays fdl.cluster.yml over fdl.yml. Contacts no cluster.

    Ends with 0 when every key is accounted for, 1 when some were not understood and left out, and 2 when nothing
    could be made.
    """
    wishes = Wishes(**said)
    if (name := wishes.name) and run_name(name) != name:
        raise click.BadParameter(
            f"{name!r} is no name for a run; use up to 30 lower-case letters, digits and dashes, a letter first, for "
            f"example {run_name(name)}",
            param_hint="--name",
        )
    try:
        top = read(files[0])
        for path in files[1:]:
            top = overlay(top, read(path))
        sys.exit(_convert(top, files, output, wishes))
    except (SourceError, ConvertError) as fault:
        click.echo(f"Error: {printable(str(fault))}", err=True)
        sys.exit(NOTHING)


def _convert(top: Mapping, files: tuple[Path, ...], output: Path | None, wishes: Wishes) -> int:
    found = audit(top, wishes.command)
    made = build(found.tree, wishes)
    names = [path.name for path in files]
    text = show.manifests(made, names)
    if output is None:
        click.echo(text, nl=False)
    else:
        _write(output, text)
    console = Console(stderr=True, highlight=False)
    for line, style in show.account(found.findings, made, names, max(60, min(console.width, 120))):
        console.print(printable(line), style=STYLES[style], markup=False, soft_wrap=True)
    return PARTLY if any(each.verdict in show.PROBLEMS for each in found.findings) else UNDERSTOOD


def _write(output: Path, text: str) -> None:
    try:
        with output.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as error:
        raise ConvertError(f"{output} exists and is not overwritten; remove it or choose another name") from error
    except OSError as error:
        raise ConvertError(f"{output} cannot be written: {error.strerror or error}") from error
