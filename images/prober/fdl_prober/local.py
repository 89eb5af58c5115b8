"""``python -m fdl_prober --local``: the same survey on a machine outside of any cluster.

Prints findings for people, or with ``--json`` one :class:`fdl_api.report.Report` on standard output. Exit code 0 when
nothing is worse than a warning, 1 when something failed or could not be looked at, 2 when it was called wrongly.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import yaml

from fdl_api.cluster import FdlCluster, FdlClusterSpec
from fdl_api.report import Check, Report, worst
from fdl_prober import decide
from fdl_prober.facts import gather
from fdl_prober.observe import observe
from fdl_prober.settings import Settings


class UsageError(ValueError):
    """An argument names something that cannot be used; the text says what and why."""


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m fdl_prober --local", description=__doc__)
    parser.add_argument("--local", action="store_true", required=True, help="survey this machine, without a cluster")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--cluster", type=Path, help="file with an FdlCluster, whose variants are matched with devices")
    parser.add_argument("--sentinel", type=Path, help="file on a shared volume to hash")
    return parser.parse_args(words)


def cluster_spec(path: Path | None) -> FdlClusterSpec | None:
    """The spec of an FdlCluster in a YAML or JSON file.

    Raises:
        UsageError: the file cannot be read, or holds no FdlCluster.
    """
    if path is None:
        return None
    try:
        content = yaml.safe_load(path.read_text())
        return FdlCluster.model_validate({"spec": (content or {})["spec"]}).spec
    except (OSError, ValueError, yaml.YAMLError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is no FdlCluster that can be used: {error}") from error


async def survey(settings: Settings, spec: FdlClusterSpec | None, now: datetime) -> Report:
    """Look at this machine once and judge what was seen.

    Args:
        settings: where to look.
        spec: the cluster whose variants are matched with the devices, if any.
        now: time of the report, aware of its time zone.
    """
    facts = gather(
        settings.node,
        await observe(settings, simulated=False),
        simulated=False,
        variants=spec.variants if spec else (),
        cluster_known=spec is not None,
        deep={},
        clock_offset_seconds=None,
        local=True,
    )
    return decide.report(facts, now)


def line(check: Check) -> str:
    """A finding for people: what, about what, and below it the way out."""
    about = f" {check.subject}:" if check.subject else ""
    name = f"{check.name}/{check.reason}" if check.reason else check.name
    text = f"{check.severity.upper():7} {name}:{about} {check.message}"
    return f"{text}\n        {check.remedy}" if check.remedy else text


def render(report: Report, as_json: bool) -> str:
    """The report as JSON in the annotation's shape, or as text."""
    if as_json:
        return json.dumps(report.model_dump(mode="json", by_alias=True), indent=2)
    return "\n".join(line(check) for check in report.checks)


def main(words: Sequence[str] | None, settings: Settings) -> int:
    """Survey this machine, print what was found, and tell by the exit code whether it is in order."""
    options = arguments(words)
    try:
        spec = cluster_spec(options.cluster)
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    report = asyncio.run(survey(settings, spec, datetime.now(UTC)))
    print(render(report, options.json))
    return 0 if worst(report.checks) in ("pass", "warn") else 1
