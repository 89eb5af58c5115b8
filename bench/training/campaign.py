"""Rounds: every method once in each, in an order that changes from round to round."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from bench.training.arena import Arena
from bench.training.catalog import BY_NAME, Method, knobs_or_refusal
from bench.training.cohorts import COHORTS
from bench.training.measure import Outcome, Timing
from bench.training.profiles import Profile, Scenario
from bench.training.tuning import rebalanced
from bench.training.workloads import WORKLOADS

MAX_FAILURES = 2
"""Slices in a row without figures after which a method is left out of the rest, with its reason."""
_TUNING = Timing(1.0, 2.0)


def in_turn(methods: Sequence[str], seed: str) -> list[str]:
    """An order of measurement: random, but for solo in the middle.

    All others are divided by its rates, and the machine's speed drifts: this way none is far from it.
    """
    others = [name for name in methods if name != "solo"]
    random.Random(seed).shuffle(others)  # noqa: S311 - an order of measurement
    middle = len(others) // 2
    return [*others[:middle], *(name for name in methods if name == "solo"), *others[middle:]]


@dataclass(frozen=True)
class Record:
    """One slice of a round."""

    round: int
    scenario: str
    outcome: Outcome


@dataclass
class Campaign:
    """All rounds of a profile.

    Attributes:
        arena: runs slices.
        profile: what to measure.
        device: ``cpu`` or ``cuda``.
        absent: reasons by package of peers that cannot be had.
        say: prints progress.
        records: of all slices.
        skipped: why a method is not measured, by name.
        sizes: batch sizes that were tuned for DDP, by scenario.
        keep: called after every round, so that a run that is stopped leaves what it has.
    """

    arena: Arena
    profile: Profile
    device: str
    absent: Mapping[str, str]
    say: Callable[[str], None]
    keep: Callable[["Campaign"], object]
    records: list[Record] = field(default_factory=list)
    skipped: dict[str, str] = field(default_factory=dict)
    sizes: dict[str, list[int]] = field(default_factory=dict)
    _knobs: dict[str, dict[str, Any]] = field(default_factory=dict)
    _failures: dict[tuple[str, str], int] = field(default_factory=dict)
    rounds: int = 0

    def run(self) -> None:
        """Measure until the rounds or the time are over."""
        began = time.monotonic()
        names = {name for scenario in self.profile.scenarios for name in scenario.methods}
        for name in sorted(names):
            self._admit(BY_NAME[name])
        for scenario in self.profile.scenarios:
            if "DDP proportional" in scenario.methods:
                self.sizes[scenario.name] = self._tune(scenario)
        took = 0.0
        for number in range(self.profile.rounds):
            before = time.monotonic()
            if before - began + took > self.profile.budget:
                self.say(f"time is over after {number} rounds of {self.profile.rounds}")
                break
            order = [scenario for scenario in self.profile.scenarios if number % scenario.every == 0]
            random.Random(number).shuffle(order)  # noqa: S311 - an order of measurement
            for scenario in order:
                self._round(number, scenario)
            took = time.monotonic() - before
            self.rounds = number + 1
            self.keep(self)

    def _admit(self, method: Method) -> None:
        """Decide whether a method can be measured at all."""
        reason = self.absent.get(method.package, "")
        if method.kind == "fdl":
            knobs, reason = knobs_or_refusal(method)
            self._knobs[method.name] = dict(knobs or {})
        if method.device and method.device != self.device:
            reason = f"only on {method.device}"
        if reason:
            self.skipped[method.name] = reason
            self.say(f"left out: {method.name}: {reason}")

    def _tune(self, scenario: Scenario) -> list[int]:
        """Sizes for DDP with static proportional batches: twice from the rates at the sizes so far."""
        cohort, size = COHORTS[scenario.cohort], WORKLOADS[scenario.workload].batch_size
        sizes = [size] * cohort.ranks
        for seed in range(2):
            solo = self.arena.run(BY_NAME["solo"], cohort, scenario.workload, _TUNING, sizes=sizes, seed=seed)
            if solo.reason:
                self.say(f"{scenario.name}: no split could be tuned: {solo.reason}")
                break
            sizes = rebalanced(sizes, solo.rates)
        self.say(f"{scenario.name}: DDP proportional gets batches of {sizes}")
        return sizes

    def _round(self, number: int, scenario: Scenario) -> None:
        methods = [name for name in scenario.methods if name not in self.skipped]
        for name in in_turn(methods, f"{number} {scenario.name}"):
            if self._failures.get((scenario.name, name), 0) >= MAX_FAILURES or number % BY_NAME[name].every:
                continue
            outcome = self._slice(number, scenario, BY_NAME[name])
            self.records.append(Record(number, scenario.name, outcome))
            failed = self._failures.get((scenario.name, name), 0) + 1
            self._failures[scenario.name, name] = failed if outcome.reason else 0
            figure = outcome.reason or f"{outcome.rate:.0f} samples/s"
            self.say(f"round {number + 1}/{self.profile.rounds}  {scenario.name:18s}  {name:20s}  {figure}")

    def _slice(self, number: int, scenario: Scenario, method: Method) -> Outcome:
        cohort, size = COHORTS[scenario.cohort], WORKLOADS[scenario.workload].batch_size
        sizes = [size] * cohort.ranks
        if method.settings.get("proportional"):
            sizes = self.sizes[scenario.name]
        timing = scenario.timing(self.profile.timing)
        return self.arena.run(
            method,
            cohort,
            scenario.workload,
            replace(timing, measured=max(timing.measured, method.least)),
            sizes=sizes,
            seed=number + 1,
            knobs=self._knobs.get(method.name),
        )
