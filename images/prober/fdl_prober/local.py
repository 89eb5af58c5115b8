"""``python -m fdl_prober --local``: the same survey on a machine outside of any cluster.

Prints findings for people, or with ``--json`` one :class:`fdl_api.report.Report` on standard output. Exit code 0 when
nothing is worse than a warning, 1 when something failed or could not be looked at, 2 when it was called wrongly.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import yaml
from pydantic import ValidationError

from fdl_api.cluster import FdlCluster, FdlClusterSpec, Variant
from fdl_api.labels import GPU_VENDORS
from fdl_api.model import first_problem
from fdl_api.report import Check, DeepResult, DeepWanted, Report, worst
from fdl_prober import decide, deep
from fdl_prober.child import run_module
from fdl_prober.facts import gather
from fdl_prober.observe import Observer
from fdl_prober.parts import MAX_WORDS
from fdl_prober.settings import Folder, Settings
from fdl_prober.text import plain

DEEP_SECONDS = 300.0
OWN = "this-python"
"""Begin of the name of the variant that stands for the torch of this Python."""

_UNREADABLE = (OSError, ValueError, yaml.YAMLError, RecursionError)
_NO_CLUSTER = (LookupError, TypeError, AttributeError)
"""What YAML that is something else brings about; tags on values that they do not suit do so in PyYAML itself."""


class UsageError(ValueError):
    """An argument names something that cannot be used; the text says what and why."""


def _port(text: str) -> int:
    number = int(text)
    if not 0 < number < 1 << 16:
        raise ValueError(text)
    return number


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(prog="python -m fdl_prober --local", description=__doc__)
    add = parser.add_argument
    add("--local", action="store_true", required=True, help="survey this machine, without a cluster")
    add("--json", action="store_true", help="print the report as JSON")
    add("--cluster", type=Path, metavar="FILE", help="an FdlCluster manifest, whose variants and fabric are judged by")
    add("--deep", action="store_true", help="run one real kernel per device with the torch of this Python")
    add("--data", type=Path, action="append", default=[], metavar="FOLDER", help="folder with data, to be read")
    add("--checkpoints", type=Path, action="append", default=[], metavar="FOLDER", help="folder to be written to")
    add("--sentinel", type=Path, metavar="FILE", help="file on a shared volume, to be hashed")
    add("--socket-interface", default="", metavar="NAME", help="network interface for collectives")
    add("--port", type=_port, action="append", default=[], metavar="N", help="port that should be free")
    add("--variant-file", type=Path, metavar="FILE", help="description of this machine's torch (variant.json)")
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
    except (*_UNREADABLE, *_NO_CLUSTER) as error:
        raise UsageError(f"{path} is no FdlCluster that can be used: {_words(error)}") from error


def _words(error: BaseException) -> str:
    """What is wrong, on one line: the last one is what ``fdl probe --local`` passes on."""
    if isinstance(error, ValidationError):
        return first_problem(error)
    return plain(" ".join(str(error).split()), MAX_WORDS) or type(error).__name__


def told(settings: Settings, options: argparse.Namespace) -> Settings:
    """The settings, with what the command line adds."""
    folders = [Folder(path) for path in options.data] + [Folder(path, "checkpoints") for path in options.checkpoints]
    return replace(
        settings,
        folders=(*settings.folders, *folders),
        sentinel=options.sentinel or settings.sentinel,
        ports=tuple(options.port) or settings.ports,
        variant_file=options.variant_file or settings.variant_file,
        stale_processes=True,
    )


async def own_torch(vendor: str, fingerprint: str, now: datetime) -> tuple[Variant, DeepResult]:
    """The torch of this Python as a variant, after it ran one real kernel per device of a vendor."""
    name = f"{OWN}-{vendor}"
    words = ("--variant", name, "--vendor", vendor)
    ended = await run_module("fdl_trainer.deepcheck", *words, limit_seconds=DEEP_SECONDS)
    said = (ended.output.decode(errors="replace").splitlines() or [""])[-1]
    reason = f"a limit of {DEEP_SECONDS:g} s" if ended.code is None else ended.error or f"code {ended.code}"
    want = DeepWanted(variant=name, vendor=vendor, image=sys.executable, fingerprint=fingerprint)
    result = deep.judge(deep.FinishedPod(name, want.image, said, reason), want, now)
    archs = result.facts.archs if result.facts and vendor != "cpu" else ()
    return Variant.model_validate({"name": name, "vendor": vendor, "image": want.image, "archs": archs}), result


async def survey(
    settings: Settings, spec: FdlClusterSpec | None, now: datetime, interface: str = "", run_kernels: bool = False
) -> Report:
    """Look at this machine once and judge what was seen.

    Args:
        settings: where to look.
        spec: the cluster whose variants are matched with the devices, if any.
        now: time of the report, aware of its time zone.
        interface: the network interface for collectives; empty for none.
        run_kernels: whether to run a kernel on each device with the torch of this Python.
    """
    seen = await Observer(settings, local=True).look(simulated=False)
    variants, checked = (spec.variants if spec else ()), dict[str, DeepResult]()

    def judged() -> Report:
        facts = gather(
            settings.node,
            seen,
            simulated=False,
            variants=variants,
            cluster_known=spec is not None,
            deep=checked,
            clock_offset_seconds=None,
            socket_interface=interface,
            local=True,
        )
        return decide.report(facts, now)

    if run_kernels:
        before = judged().fingerprints
        for vendor in [vendor for vendor in (*GPU_VENDORS, "cpu") if vendor in before]:
            variant, result = await own_torch(vendor, before[vendor], now)
            variants, checked[variant.name] = (*variants, variant), result
    return judged()


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
    own, now = told(settings, options), datetime.now(UTC)
    report = asyncio.run(survey(own, spec, now, options.socket_interface, options.deep))
    print(render(report, options.json))
    return 0 if worst(report.checks) in ("pass", "warn") else 1
