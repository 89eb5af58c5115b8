"""What a run measured, as it is kept: the page and all figures are made of this, and can be made anew from the file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.training.analysis import analyse, to_dict
from bench.training.campaign import Record
from bench.training.catalog import BY_NAME
from bench.training.coverage import left_out
from bench.training.machine import Load
from bench.training.marks import Span
from bench.training.measure import Outcome
from bench.training.page import Report, render
from bench.training.payload import Cost
from bench.training.stats import Interval
from bench.training.verdicts import cost_verdicts, losses, verdicts

RESULT, PAGE = "result.json", "index.html"


@dataclass(frozen=True)
class Saved:
    """A run's measurements.

    Attributes:
        command: that made them.
        machine: facts.
        profile: ``name``, ``device``, ``rounds_done``, ``minutes`` and the timing.
        skipped: why methods of the profile were not measured.
        sizes: batch sizes that DDP proportional got, by scenario.
        records: all slices.
        costs: of averages alone.
    """

    command: str
    machine: dict[str, Any]
    profile: dict[str, Any]
    skipped: dict[str, str]
    sizes: dict[str, list[int]]
    records: Sequence[Record]
    costs: Sequence[Cost]

    def report(self) -> Report:
        """The figures."""
        analyses = analyse(self.records)
        device = str(self.profile.get("device", "cpu"))
        return Report(
            title="fdl training benchmark",
            command=self.command,
            machine=self.machine,
            profile=self.profile,
            analyses=analyses,
            verdicts=[*verdicts(analyses, device), *cost_verdicts(self.costs)],
            losses=losses(analyses),
            left_out=left_out(
                {result.method for one in analyses for result in one.results},
                [one.scenario for one in analyses],
                device,
                self.skipped,
            ),
            sizes=self.sizes,
            costs=self.costs,
            records=self.records,
        )

    def write(self, folder: Path) -> Report:
        """Write the measurements with their figures, and the page; returns what the page shows."""
        report = self.report()
        content = {
            "command": self.command,
            "machine": self.machine,
            "profile": self.profile,
            "verdicts": [{**asdict(one), "met": one.met} for one in report.verdicts],
            "losses": list(report.losses),
            "skipped": self.skipped,
            "leftOut": dict(report.left_out),
            "methods": {name: method.about for name, method in BY_NAME.items()},
            "sizes": self.sizes,
            "scenarios": [to_dict(analysis) for analysis in report.analyses],
            "costs": [asdict(one) for one in self.costs],
            "slices": [{"round": one.round, "scenario": one.scenario, **one.outcome.to_dict()} for one in self.records],
        }
        (folder / RESULT).write_text(json.dumps(content, indent=1) + "\n")
        (folder / PAGE).write_text(render(report))
        return report


def read(path: Path) -> Saved:
    """The measurements in a result file."""
    found = json.loads(path.read_text())
    return Saved(
        command=found["command"],
        machine=found["machine"],
        profile=found["profile"],
        skipped=found["skipped"],
        sizes=found["sizes"],
        records=[_record(one) for one in found["slices"]],
        costs=[_cost(one) for one in found.get("costs", ())],
    )


def _record(found: Mapping[str, Any]) -> Record:
    values = {key: value for key, value in found.items() if key not in ("round", "scenario")}
    if values["span"] is not None:
        span = values["span"]
        by_rank = {name: tuple(span[name]) for name in ("samples", "compute", "data")}
        values["span"] = Span(**{**span, **by_rank, "rates": [(at, rate) for at, rate in span["rates"]]})
    if values["load"] is not None:
        values["load"] = Load(**values["load"])
    values["curve"] = [(point[0], point[1], point[2]) for point in values.get("curve", ())]
    return Record(found["round"], found["scenario"], Outcome(**values))


def _cost(found: Mapping[str, Any]) -> Cost:
    intervals = ("window_ms", "all_reduce_ms", "ratio", "singly")
    values: dict[str, Any] = dict(found)
    values.update({name: Interval(**found[name]) for name in intervals if found[name] is not None})
    return Cost(**values)
