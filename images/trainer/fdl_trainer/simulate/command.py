"""The command ``fdl simulate``; found by ``fdl`` through the entry-point group ``fdl.commands``."""

import json
from dataclasses import replace
from typing import Any

import click
from pydantic import ValidationError

from fdl_api.run import ElcheSpec, Mode
from fdl_trainer.plan import PlanSpec
from fdl_trainer.simulate import text
from fdl_trainer.simulate.scenario import Scenario, check_events, parse_event, parse_rates
from fdl_trainer.simulate.world import World


@click.command()
@click.argument("rates")
@click.option("--ms", default=20.0, show_default=True, help="Milliseconds a batch of the slowest rank.")
@click.option("--windows", default=200, show_default=True, type=click.IntRange(1, 100_000), help="Windows to play.")
@click.option("--mode", default=Mode.CPU_CADENCE.value, show_default=True, type=click.Choice([m.value for m in Mode]))
@click.option("--reduce-ms", default=10.0, show_default=True, help="Cost of an averaging, in ms.")
@click.option("--reduce-ms-per-rank", default=0.0, show_default=True, help="Added to it for each rank, in ms.")
@click.option("--fill-ms", default=0.0, show_default=True, help="Loader fill at the start of each window, in ms.")
@click.option("--wait-ms", default=0.0, show_default=True, help="Wait for the data of each batch, in ms.")
@click.option("--jitter", default=0.0, show_default=True, help="Coefficient of variation of a batch's time.")
@click.option(
    "--window-jitter", default=0.0, show_default=True, help="The same of a rank's speed from window to window."
)
@click.option("--divergence", default=0.0, show_default=True, help="Divergence D after one batch; grows with the root.")
@click.option("--epoch-batches", type=click.IntRange(1), help="Batches in a data epoch; no window exceeds one.")
@click.option("--event", "events", multiple=True, help="KIND:FIGURES@wWINDOW or @SECONDSs; may be repeated.")
@click.option("--elche", "knobs", multiple=True, help="NAME=VALUE of spec.elche, as maxAnchor=100; may be repeated.")
@click.option("--deadlines/--no-deadlines", default=True, show_default=True, help="Let jittery ranks stop by time.")
@click.option("--seed", default=0, show_default=True, help="Seed of the noise.")
@click.option("--every", is_flag=True, help="Print all windows, not only those in which something changed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def simulate(  # noqa: PLR0917 - one parameter an option
    rates: str,
    ms: float,
    windows: int,
    mode: str,
    reduce_ms: float,
    reduce_ms_per_rank: float,
    fill_ms: float,
    wait_ms: float,
    jitter: float,
    window_jitter: float,
    divergence: float,
    epoch_batches: int | None,
    events: tuple[str, ...],
    knobs: tuple[str, ...],
    deadlines: bool,
    seed: int,
    every: bool,
    as_json: bool,
) -> None:
    """Play a cohort in virtual time through the planning code of real runs.

    RATES are relative: 1:2.3 is two ranks, the second 2.3 times as fast; 1x3:4 is three of rate 1 and one of rate 4.

    Events: death:RANK, leave:RANK, join:RATE, stall:RANK:SECONDS, speed:RANK:FACTOR (of its first speed), swap (ranks
    change speeds). Ranks count from 0 in the order of RATES, joiners after them. So 'death:1@w30' is the death of the
    second rank in window 30, and 'swap@12.5s' a swap after 12.5 s.
    """
    try:
        scenario = Scenario(
            ms=parse_rates(rates, ms),
            windows=windows,
            jitter=jitter,
            window_jitter=window_jitter,
            wait_ms=wait_ms,
            fill_ms=fill_ms,
            reduce_ms=reduce_ms,
            reduce_ms_per_rank=reduce_ms_per_rank,
            divergence=divergence,
            epoch_batches=epoch_batches,
            seed=seed,
            events=[parse_event(event) for event in events],
        )
        check_events(len(scenario.ms), scenario.events)
        spec = PlanSpec.of(Mode(mode), _elche(knobs))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    world = World(scenario, spec if deadlines else replace(spec, deadlines=False))
    world.run()
    click.echo(json.dumps(text.data(world), indent=2) if as_json else text.render(world, every=every))


def _elche(knobs: tuple[str, ...]) -> ElcheSpec:
    """The knobs of ``NAME=VALUE`` pairs; values are read as JSON where they are JSON.

    Raises:
        ValueError: if a pair is none, or the spec refuses it.
    """
    fields: dict[str, Any] = {}
    for knob in knobs:
        name, sign, value = knob.partition("=")
        if not sign:
            raise ValueError(f"'{knob}' is no knob; write NAME=VALUE with a field of spec.elche, as maxAnchor=100")
        try:
            fields[name] = json.loads(value)
        except json.JSONDecodeError:
            fields[name] = value
    try:
        return ElcheSpec.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            raise ValueError(f"spec.elche has no field {where}; see spec.elche in docs/reference/fdlrun.md") from error
        raise ValueError(f"spec.elche.{where}: {first['msg']}") from error
