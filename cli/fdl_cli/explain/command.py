"""``fdl explain``."""

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import click
from pydantic import ValidationError
from rich.console import Group, RenderableType
from rich.text import Text

from fdl_api import reading
from fdl_api.model import first_problem
from fdl_api.run import FdlRunSpec, FdlRunStatus
from fdl_cli import access
from fdl_cli.access import Access, AccessError, ForbiddenError
from fdl_cli.explain import judge, text
from fdl_cli.explain.judge import CohortView, Run
from fdl_cli.explain.resources import Space, space
from fdl_cli.fdlcluster import read
from fdl_cli.probe import rows
from fdl_cli.probe import text as probe_text
from fdl_cli.screen import emit, pages

MAX_ASKED: Final = 100
"""Nodes whose pods are read: one call each, so a large cluster is not read whole."""


@click.group()
def explain() -> None:
    """Say why members of a run may or may not be on a node, by the operator's own rules."""


@explain.command("run")
@click.argument("name")
@click.option("-n", "--namespace", default="", help="Namespace of the run. [default: the context's]")
@access.access_options
def run_command(name: str, namespace: str, **where: str) -> None:
    """Show for each cohort of the run NAME all nodes, with what a member would find or miss there.

    Speeds and quotas are those that the ranks have; with ~ they are concluded from nodes of the same kind.
    """
    _told(lambda: explain_run(access.connect(**where), namespace, name))


@explain.command("node")
@click.argument("name")
@click.option("-n", "--namespace", default="", help="Only runs of this namespace. [default: all]")
@access.access_options
def node_command(name: str, namespace: str, **where: str) -> None:
    """Show the node NAME, and what the cohorts of all unfinished runs would find or miss there."""
    _told(lambda: explain_node(access.connect(**where), namespace, name))


def _told(page: Callable[[], Callable[[int], RenderableType]]) -> None:
    console = pages()
    try:
        emit(console, page()(console.width))
    except AccessError as fault:
        click.echo(f"Error: {fault}", err=True)
        sys.exit(1)


def explain_run(where: Access, namespace: str, name: str) -> Callable[[int], RenderableType]:
    """The page about a run, for a width.

    Raises:
        AccessError: it cannot be read, or there is none.
    """
    namespace = namespace or where.namespace
    item = where.get(access.runs(namespace, name))
    if item is None:
        raise AccessError(
            f"there is no FdlRun {name!r} in namespace {namespace!r} of {where.where}; see kubectl get fdr -A"
        )
    run = _run(item)
    items = where.items("/api/v1/nodes")
    cluster = judge.context(rows.records(items), read(where.get(access.CLUSTER)), time.time())
    spaces = _Spaces(where, items)
    order = sorted(cluster.nodes, key=rows.natural)
    views = [judge.view(run, cohort, cluster, order, spaces.of) for cohort in run.spec.cohorts]
    legend = text.legend(verdict for view in views for verdict in view.verdicts)
    return lambda width: Group(text.run(run, views, width), *([Text(""), legend] if legend.plain else []))


def explain_node(where: Access, namespace: str, name: str) -> Callable[[int], RenderableType]:
    """The page about a node, for a width.

    Raises:
        AccessError: it cannot be read, or there is none.
    """
    items = where.items("/api/v1/nodes")
    nodes, found_cluster, now = rows.records(items), read(where.get(access.CLUSTER)), time.time()
    cluster = judge.context(nodes, found_cluster, now)
    if name not in cluster.nodes:
        raise AccessError(f"{where.where} has no node {name!r}; see kubectl get nodes")
    survey = rows.survey(nodes, found_cluster, None, now, name)
    runs = [_run(item) for item in where.items(access.runs(namespace))]
    unfinished = [run for run in runs if run.status.phase is None or not run.status.phase.is_terminal]
    spaces = _Spaces(where, items)
    found: list[tuple[Run, CohortView]] = [
        (run, judge.view(run, cohort, cluster, [name], spaces.of)) for run in unfinished for cohort in run.spec.cohorts
    ]
    nothing = Text("no unfinished run" + (f" in namespace {namespace}" if namespace else ""))

    def page(width: int) -> RenderableType:
        parts: list[RenderableType] = [probe_text.page(survey, width), Text("")]
        if not found:
            return Group(*parts, nothing)
        legend = text.legend(verdict for _, view in found for verdict in view.verdicts)
        return Group(*parts, text.node(found, width), *([Text(""), legend] if legend.plain else []))

    return page


def _run(item: Mapping[str, Any]) -> Run:
    meta = item["metadata"]
    try:
        spec = reading.strict(FdlRunSpec, item.get("spec") or {})
    except ValidationError as error:
        raise AccessError(
            f"this release of fdl cannot read FdlRun {meta['namespace']}/{meta['name']}: {first_problem(error)}; use "
            "the operator's"
        ) from error
    status = reading.lenient(FdlRunStatus, item.get("status") or {}).value
    unknown = tuple(f"spec.{path}" for path in spec.left_out)
    return Run(meta["namespace"], meta["name"], spec.value, status, unknown)


class _Spaces:
    """What nodes have left: reads a node's pods when it is asked for the first time."""

    def __init__(self, where: Access, nodes: list[dict[str, Any]]) -> None:
        self._where = where
        self._nodes = {node["metadata"]["name"]: node for node in nodes}
        self._found: dict[str, Space] = {}
        self._readable = True

    def of(self, name: str) -> Space:
        """What a node has; how much is free stays unknown where pods may not be read, or after too many nodes."""
        if name not in self._found:
            self._found[name] = space(self._nodes[name], self._pods(name))
        return self._found[name]

    def _pods(self, name: str) -> list[dict[str, Any]] | None:
        if not self._readable or len(self._found) >= MAX_ASKED:
            return None
        try:
            return self._where.items("/api/v1/pods", fieldSelector=f"spec.nodeName={name}")
        except ForbiddenError:
            self._readable = False
            return None
