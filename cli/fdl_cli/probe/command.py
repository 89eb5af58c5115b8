"""``fdl probe``."""

import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from fdl_api import labels
from fdl_api.report import worst
from fdl_cli import access
from fdl_cli.access import Access, AccessError, ForbiddenError
from fdl_cli.fdlcluster import read
from fdl_cli.probe import local, text
from fdl_cli.probe.rows import ProberPod, Survey, prober_pods, records, survey
from fdl_cli.screen import emit, pages

IN_ORDER, PROBLEMS = 0, 1


@dataclass(frozen=True, slots=True)
class View:
    """What is to be shown, and how.

    Attributes:
        node: the one node; all when empty.
        as_json: whether as JSON.
        interval: seconds after which it is shown again; ``None`` for once.
    """

    node: str
    as_json: bool
    interval: float | None


@click.command()
@click.option("--node", default="", metavar="NODE", help="Only this node, with everything that is known about it.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--watch", is_flag=True, help="Show changes until Ctrl-C.")
@click.option(
    "--interval", default=5.0, show_default=True, type=click.FloatRange(1.0, 3600.0), help="Seconds with --watch."
)
@click.option("--local", "here", is_flag=True, help="Survey this machine, without any cluster.")
@click.option("--cluster", type=click.Path(path_type=Path), help="With --local: file with an FdlCluster to judge by.")
@access.access_options
def probe(
    here: bool, cluster: Path | None, watch: bool, interval: float, node: str, *, as_json: bool, **where: str
) -> None:
    """Show what each node can run, and what is wrong with it and how to mend that.

    Reads the labels and reports that the probers wrote, and FdlCluster/default. Ends with 0 when all nodes are ready
    and nothing is worse than a warning, else with 1.
    """
    console = pages()
    try:
        if here:
            sys.exit(_here(console, cluster, as_json))
        if cluster is not None:
            raise click.UsageError("--cluster goes with --local: in a cluster its own FdlCluster/default counts")
        view = View(node, as_json, interval if watch else None)
        sys.exit(_cluster(console, access.connect(**where), view))
    except (AccessError, local.LocalError) as fault:
        click.echo(f"Error: {fault}", err=True)
        sys.exit(PROBLEMS)


def _here(console: Console, cluster: Path | None, as_json: bool) -> int:
    report = local.survey(["--cluster", str(cluster)] if cluster is not None else [])
    if as_json:
        click.echo(json.dumps(report.model_dump(mode="json", by_alias=True), indent=2))
    else:
        emit(console, text.facts(report))
    return IN_ORDER if worst(report.checks) in ("pass", "warn") else PROBLEMS


def _cluster(console: Console, where: Access, view: View) -> int:
    if view.interval is not None:
        return _watch(console, where, view, view.interval)
    found = look(where, view.node)
    _print(console, found, view)
    return _code(found)


def _code(found: Survey) -> int:
    return IN_ORDER if found.good else PROBLEMS


def look(where: Access, node: str = "") -> Survey:
    """The cluster as it is now.

    Raises:
        AccessError: it cannot be read, fdl is not installed, or there is no node of that name.
    """
    cluster = read(where.get(access.CLUSTER))
    if node:
        one = where.get(access.node(node))
        if one is None:
            raise AccessError(f"{where.where} has no node {node!r}; see kubectl get nodes")
        nodes = [one]
    else:
        nodes = where.items("/api/v1/nodes")
    return survey(records(nodes), cluster, _pods(where), time.time(), node)


def _pods(where: Access) -> dict[str, ProberPod] | None:
    try:
        return prober_pods(where.items("/api/v1/pods", labelSelector=f"{labels.ROLE}={labels.ROLE_PROBER}"))
    except ForbiddenError:
        return None  # they only make the remedies more exact


def _print(console: Console, found: Survey, view: View) -> None:
    if view.as_json:
        click.echo(json.dumps(text.as_json(found), indent=2))
    else:
        emit(console, page(found, console.width, view.node))


def page(found: Survey, width: int, node: str = "") -> Group:
    """The table with the problems; for one node all that its report says, too."""
    parts: list[RenderableType] = [text.page(found, width)]
    report = found.rows[0].report if node and found.rows else None
    if report is not None:
        parts += [Text(""), text.facts(report, passed_only=True)]
    return Group(*parts)


def _watch(console: Console, where: Access, view: View, interval: float) -> int:
    """Show the cluster again and again, until Ctrl-C; what is in the way meanwhile may pass, and is shown, too."""
    found: Survey | AccessError = look(where, view.node)
    with _Shown(console, view) as shown:
        try:
            while True:
                if isinstance(found, Survey):
                    shown.survey(found)
                else:
                    shown.fault(found)
                time.sleep(interval)
                found = _try(where, view.node)
        except KeyboardInterrupt:
            return _code(found) if isinstance(found, Survey) else PROBLEMS


def _try(where: Access, node: str) -> Survey | AccessError:
    try:
        return look(where, node)
    except AccessError as fault:
        return fault


class _Shown:
    """What is on the screen: drawn over on a terminal, else added to when something but an age has changed."""

    def __init__(self, console: Console, view: View) -> None:
        self._console = console
        self._view = view
        self._live: Live | None = None
        self._last = ""

    def __enter__(self) -> Self:
        if self._console.is_terminal and not self._view.as_json:
            self._live = Live(console=self._console, auto_refresh=False, vertical_overflow="visible")
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def survey(self, found: Survey) -> None:
        """Show the cluster."""
        if self._live is not None:
            self._live.update(page(found, self._console.width, self._view.node), refresh=True)
        elif (now := _material(found)) != self._last:
            _print(self._console, found, self._view)
            self._last = now

    def fault(self, fault: AccessError) -> None:
        """Show why the cluster cannot be seen now."""
        if self._live is not None:
            self._live.update(Text(f"Error: {fault}", style="red"), refresh=True)
        elif str(fault) != self._last:
            click.echo(f"Error: {fault}", err=True)
            self._last = str(fault)


def _material(found: Survey) -> str:
    """What is worth showing again when it changes: all but ages."""
    told = text.as_json(found)
    return json.dumps({**told, "nodes": [{**row, "reportAgeSeconds": 0} for row in told["nodes"]]})
