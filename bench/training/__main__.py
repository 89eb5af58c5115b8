"""``python -m bench.training``: measure, and write JSON and a page."""

import argparse
import json
import shlex
import signal
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from bench.training import machine
from bench.training.analysis import analyse, to_dict
from bench.training.arena import Arena
from bench.training.campaign import Campaign
from bench.training.catalog import BY_NAME
from bench.training.packages import PackageError, installed
from bench.training.page import Report, render
from bench.training.profiles import PROFILES, Profile
from bench.training.verdicts import losses, verdicts

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "bench"


def main() -> int:
    """0 when every scenario has figures of fdl, whether or not targets are met."""
    options = _options()
    profile = _profile(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that ranks and control groups are cleared then, too
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    facts = machine.describe()
    began = time.monotonic()
    packages, absent = _packages(profile)
    arena = Arena(options.out, options.device, packages)

    def keep(campaign: Campaign) -> Report:
        report = _report(campaign, facts, (time.monotonic() - began) / 60.0)
        _write(options.out, report)
        return report

    campaign = Campaign(arena, profile, options.device, absent, _say, keep)
    _say(f"profile {profile.name}: about {profile.seconds() / 60:.0f} minutes, at most {profile.budget / 60:.0f}")
    try:
        campaign.run()
    finally:
        arena.close()
    report = keep(campaign)
    _print(options.out, report)
    return 0 if all(any(one.method.startswith("fdl") for one in each.results) for each in report.analyses) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.training", description=__doc__)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--quick", dest="profile", action="store_const", const="quick", help="about 5 minutes")
    choice.add_argument("--full", dest="profile", action="store_const", const="full", help="all, 5 hours at most")
    choice.add_argument("--gpu", dest="profile", action="store_const", const="gpu", help="two CUDA devices")
    parser.add_argument("--out", type=Path, default=OUT / "training", help="folder for result.json and index.html")
    parser.add_argument("--rounds", type=int, help="another number of rounds")
    parser.add_argument("--seconds", type=float, help="another measured time of a slice")
    parser.add_argument("--only", help="comma-separated names of methods; solo is always measured")
    parser.add_argument("--scenarios", help="only scenarios whose names contain this")
    parser.set_defaults(profile="default")
    options = parser.parse_args()
    options.device = "cuda" if options.profile == "gpu" else "cpu"
    return options


def _profile(options: argparse.Namespace) -> Profile:
    profile = PROFILES[options.profile]
    scenarios = [one for one in profile.scenarios if not options.scenarios or options.scenarios in one.name]
    if options.only:
        wanted = {"solo", *options.only.split(",")}
        if unknown := wanted - set(BY_NAME):
            sys.exit(f"--only: no such method: {', '.join(sorted(unknown))}; there are: {', '.join(BY_NAME)}")
        scenarios = [replace(one, methods=tuple(name for name in BY_NAME if name in wanted)) for one in scenarios]
    if not scenarios:
        sys.exit(f"--scenarios: there are {', '.join(one.name for one in profile.scenarios)}")
    timing = replace(profile.timing, measured=options.seconds) if options.seconds else profile.timing
    return replace(profile, scenarios=tuple(scenarios), rounds=options.rounds or profile.rounds, timing=timing)


def _packages(profile: Profile) -> tuple[dict[str, str], dict[str, str]]:
    """Folders and reasons, by name of the packages that the profile's peers need."""
    names = {BY_NAME[name].package for scenario in profile.scenarios for name in scenario.methods}
    folders: dict[str, str] = {}
    absent: dict[str, str] = {}
    for name in sorted(names - {""}):
        try:
            folders[name] = installed(name, OUT / "packages")
        except PackageError as error:
            absent[name] = str(error)
    return folders, absent


def _report(campaign: Campaign, facts: dict[str, Any], minutes: float) -> Report:
    analyses = analyse(campaign.records)
    profile = campaign.profile
    return Report(
        title="fdl training benchmark",
        command=f"python -m bench.training {shlex.join(sys.argv[1:])}".strip(),
        machine=facts,
        profile={"name": profile.name, "rounds_done": campaign.rounds, "minutes": minutes, **asdict(profile.timing)},
        analyses=analyses,
        verdicts=verdicts(analyses, campaign.device),
        losses=losses(analyses),
        skipped=campaign.skipped,
        sizes=campaign.sizes,
        records=campaign.records,
    )


def _write(folder: Path, report: Report) -> None:
    content = {
        "command": report.command,
        "machine": report.machine,
        "profile": report.profile,
        "verdicts": [{**asdict(one), "met": one.met} for one in report.verdicts],
        "losses": list(report.losses),
        "skipped": report.skipped,
        "methods": {name: method.about for name, method in BY_NAME.items()},
        "sizes": report.sizes,
        "scenarios": [to_dict(analysis) for analysis in report.analyses],
        "slices": [{"round": one.round, "scenario": one.scenario, **one.outcome.to_dict()} for one in report.records],
    }
    (folder / "result.json").write_text(json.dumps(content, indent=1) + "\n")
    (folder / "index.html").write_text(render(report))


def _print(folder: Path, report: Report) -> None:
    for one in report.verdicts:
        word = {True: "met", False: f"MISSED by {one.short_by:.2f}", None: "not judged: too few rounds"}[one.met]
        figure = f"{one.value:.2f} ({one.low:.2f} to {one.high:.2f})"
        print(f"{one.scenario:18s}  {one.method:18s}  {one.target:45s}  {figure}  {word}")
    print(f"{folder / 'result.json'}\n{folder / 'index.html'}")


def _say(sentence: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
