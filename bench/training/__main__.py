"""``python -m bench.training``: measure, and write JSON and a page."""

import argparse
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

import torch

from bench.training import machine, payload
from bench.training.arena import Arena
from bench.training.campaign import Campaign
from bench.training.catalog import BY_NAME
from bench.training.packages import PackageError, installed
from bench.training.page import Report
from bench.training.payload import Cost
from bench.training.profiles import PROFILES, Profile
from bench.training.saved import PAGE, RESULT, Saved, read

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "build" / "bench"


def main() -> int:
    """0 when every scenario has figures of fdl, whether or not targets are met."""
    options = _options()
    if options.render:
        _print(options.out, read(options.render).write(options.out))
        return 0
    profile = _profile(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that ranks and control groups are cleared then, too
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    facts = machine.describe()
    began = time.monotonic()
    packages, absent = _packages(profile)
    arena = Arena(options.out, options.device, packages)

    def keep(campaign: Campaign, costs: Sequence[Cost] = ()) -> Report:
        return Saved(
            command=f"python -m bench.training {shlex.join(sys.argv[1:])}".strip(),
            machine=facts,
            profile={
                "name": profile.name,
                "device": options.device,
                "rounds_done": campaign.rounds,
                "minutes": (time.monotonic() - began) / 60.0,
                **asdict(profile.timing),
            },
            skipped=campaign.skipped,
            sizes=campaign.sizes,
            records=campaign.records,
            costs=costs,
        ).write(options.out)

    campaign = Campaign(arena, profile, options.device, absent, _say, keep)
    _say(f"profile {profile.name}: about {profile.seconds() / 60:.0f} minutes, at most {profile.budget / 60:.0f}")
    try:
        campaign.run()
    finally:
        arena.close()
    report = keep(campaign, payload.measure(profile.sweeps, _say))
    _print(options.out, report)
    return 0 if all(any(one.method.startswith("fdl") for one in each.results) for each in report.analyses) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.training", description=__doc__)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--quick", dest="profile", action="store_const", const="quick", help="about 5 minutes")
    choice.add_argument("--full", dest="profile", action="store_const", const="full", help="all, 5 hours at most")
    choice.add_argument("--ablations", dest="profile", action="store_const", const="ablations", help="14 minutes")
    choice.add_argument("--gpu", dest="profile", action="store_const", const="gpu", help="two CUDA devices")
    parser.add_argument("--out", type=Path, default=OUT / "training", help="folder for result.json and index.html")
    parser.add_argument("--rounds", type=int, help="another number of rounds")
    parser.add_argument("--seconds", type=float, help="another measured time of a slice")
    parser.add_argument("--only", help="comma-separated names of methods; solo is always measured")
    parser.add_argument("--scenarios", help="only scenarios whose names contain this")
    parser.add_argument("--render", type=Path, help="measure nothing: figures and page anew from this result.json")
    parser.add_argument("--payload", action="store_true", help="only what averages cost, by size of the model")
    parser.set_defaults(profile="default")
    options = parser.parse_args()
    options.device = "cuda" if options.profile == "gpu" else "cpu"
    return options


def _profile(options: argparse.Namespace) -> Profile:
    profile = PROFILES[options.profile]
    if options.payload:
        return replace(profile, scenarios=(), rounds=0)
    if options.scenarios or options.only:
        profile = replace(profile, sweeps=())
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


def _print(folder: Path, report: Report) -> None:
    for one in report.verdicts:
        word = {True: "met", False: f"MISSED by {one.short_by:.2f}", None: "not judged: too few rounds"}[one.met]
        figure = f"{one.value:.2f} ({one.low:.2f} to {one.high:.2f})"
        print(f"{one.scenario:18s}  {one.method:18s}  {one.target:45s}  {figure}  {word}")
    print(f"{folder / RESULT}\n{folder / PAGE}")


def _say(sentence: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
