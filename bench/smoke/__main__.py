"""``python -m bench.smoke``: bring a cluster up, measure, print, take it down."""

import argparse
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from bench.smoke import figures, measure
from bench.smoke.figures import Figure
from bench.smoke.lab import Lab
from fdl_cli.demo.kube import DemoError
from fdl_cli.local import LocalError


def main() -> int:
    """0 when every figure could be measured, whether or not it meets its target."""
    parser = argparse.ArgumentParser(prog="python -m bench.smoke", description=__doc__)
    parser.add_argument("--name", default="fdl-bench", help="name of the cluster that is made and removed")
    parser.add_argument("--json", type=Path, help="also write the JSON there")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the cluster is taken down then, too
    console = Console(stderr=True)
    lab = Lab(options.name, console)
    found: list[Figure] = []
    try:
        for step in (_up, _first_step, _deaths, _efficiency, _idle, _labels, _probers):
            _guard(step, lab, found, console)
    finally:
        lab.cluster.down()
    text = figures.to_json(found, figures.machine(os.cpu_count() or 1))
    print(figures.table(found))
    print(text)
    if options.json:
        options.json.write_text(text + "\n")
    return 1 if any(figure.value is None for figure in found) else 0


def _guard(step: Callable[[Lab], list[Figure]], lab: Lab, found: list[Figure], console: Console) -> None:
    console.print(f"measuring: {(step.__doc__ or '').rstrip('.')}", highlight=False)
    before = len(found)
    try:
        found += step(lab)
    except (DemoError, LocalError, OSError) as error:
        found.append(Figure(step.__name__.strip("_"), None, "", 0, note=str(error)))
    for figure in found[before:]:  # at once, so that an interrupted bench has told something
        told = f"  {figure.name}: {figure.value} {figure.unit} {figure.note}".rstrip()
        console.print(told, highlight=False, markup=False, soft_wrap=True)


def _up(lab: Lab) -> list[Figure]:
    """time to a ready cluster."""
    figure = measure.up(lab)
    lab.install()
    return [figure]


def _first_step(lab: Lab) -> list[Figure]:
    """time to the first step."""
    return [measure.first_step(lab, "deaths")]


def _deaths(lab: Lab) -> list[Figure]:
    """recovery from deaths."""
    try:
        return measure.deaths(lab, "deaths")
    finally:
        lab.remove("deaths")


def _efficiency(lab: Lab) -> list[Figure]:
    """efficiency against solo rates."""
    return [measure.efficiency(lab)]


def _idle(lab: Lab) -> list[Figure]:
    """API calls without a change."""
    return [measure.idle_calls(lab)]


def _labels(lab: Lab) -> list[Figure]:
    """labels after a change of hardware."""
    return [measure.hardware_change(lab)]


def _probers(lab: Lab) -> list[Figure]:
    """what probers take."""
    return measure.probers(lab)


if __name__ == "__main__":
    sys.exit(main())
