"""The commands ``fdl images build|path|list|prune``."""

from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from fdl_cli.images.build import Builder
from fdl_cli.images.catalog import CATALOG, VARIANTS, find, select
from fdl_cli.images.errors import ImageError
from fdl_cli.images.inputs import find_source
from fdl_cli.images.progress import Reporter, size_text
from fdl_cli.images.store import Store, cache_root
from fdl_cli.images.workshop import Options


def image_store() -> Store:
    """The store in this user's cache."""
    return Store(cache_root() / "images")


def ensure_images(
    names: tuple[str, ...] = (),
    variant: str = "cpu",
    options: Options | None = None,
    source: Path | None = None,
    console: Console | None = None,
) -> dict[str, Path]:
    """Build what is not up to date and return the archives by image name; the way other commands get their images.

    Args:
        names: as for :func:`fdl_cli.images.catalog.select`.
        variant: trainer variant.
        options: how to build.
        source: a folder of the checkout; by default where this program was installed from, else the current folder.
        console: where progress goes.

    Raises:
        ImageError: the build cannot go on.
    """
    root = find_source((source or _own_checkout()).resolve())
    with Reporter(console or Console()) as reporter:
        return Builder(root, image_store(), reporter, options or Options()).build(select(names, variant))


def _own_checkout() -> Path:
    """The current folder if it is in a checkout, else the folder of this file (an editable install)."""
    try:
        return find_source(Path.cwd())
    except ImageError:
        return Path(__file__).resolve().parent


@click.group()
def images() -> None:
    """Build fdl's container images and find their archives."""


@images.command()
@click.argument("names", nargs=-1)
@click.option("--variant", type=click.Choice(VARIANTS), default="cpu", show_default=True, help="Trainer variant.")
@click.option(
    "--engine",
    type=click.Choice(["auto", "docker", "podman", "buildah"]),
    default="auto",
    show_default=True,
    help="Program that builds.",
)
@click.option("--base-image", default="", envvar="FDL_BASE_IMAGE", help="Base in place of debian:trixie-slim.")
@click.option("--torch-index", default="", envvar="FDL_TORCH_INDEX", help="Package index with torch for ROCm.")
@click.option("--nccl", default="", help="Wheel for nccl-bridge, such as nvidia-nccl-cu12==2.28.9.")
@click.option("--no-cache", is_flag=True, help="Build again from the first step, even what is up to date.")
@click.option("--limit", type=float, default=3600.0, show_default=True, help="Seconds that one image may take.")
@click.option("--source", type=click.Path(path_type=Path, exists=True, file_okay=False), help="Folder of the checkout.")
def build(  # noqa: PLR0917 - click passes every option by name
    names: tuple[str, ...],
    variant: str,
    engine: str,
    base_image: str,
    torch_index: str,
    nccl: str,
    no_cache: bool,
    limit: float,
    source: Path | None,
) -> None:
    """Build the images NAMES (default: operator, prober, the trainer, and with it the examples).

    An image whose inputs did not change is not built again. `trainer` stands for the trainer of --variant.
    """
    options = Options(engine, base_image, force=no_cache, torch_index=torch_index, nccl=nccl, limit=limit)
    try:
        ensure_images(names, variant, options, source)
    except ImageError as error:
        raise click.ClickException(str(error)) from error


@images.command()
@click.argument("name")
def path(name: str) -> None:
    """Print the path of the newest archive of the image NAME."""
    try:
        click.echo(image_store().current_path(find(name).name))
    except ImageError as error:
        raise click.ClickException(str(error)) from error


@images.command("list")
def list_images() -> None:
    """Show every image with its newest archive. References are fdl.local/IMAGE:dev."""
    table = Table("image", "archive", "built (UTC)", "seconds", "inputs")
    store = image_store()
    for image in CATALOG.values():
        record = store.current(image.name)
        if record is None:
            table.add_row(image.name, "not built", "", "", "")
            continue
        built = record.built_at[:16].replace("T", " ")
        table.add_row(image.name, size_text(record.bytes), built, f"{record.seconds:.0f}", record.inputs)
    Console().print(table)


@images.command()
def prune() -> None:
    """Delete superseded archives. What is current stays, and so do the engine's layers."""
    freed = image_store().prune(list(CATALOG))
    click.echo(f"Freed {size_text(freed)}.")
