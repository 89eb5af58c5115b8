"""What a run does not measure, and why: nothing is left out in silence. Pure."""

from collections.abc import Collection, Mapping

from bench.training.catalog import METHODS, Method
from bench.training.cohorts import COHORTS
from bench.training.profiles import PROFILES
from bench.training.workloads import WORKLOADS

NEVER = {
    "torchft with windows by speed": "torchft counts the same number of steps on every replica; there is no setting",
    "floDl": "it is written in Rust on libtorch and comes with no Python package; only its own tables can be cited",
    "DDP with torch's Join": "Join makes uneven inputs correct, at the price of one more collective a step; no speed",
    "a GPU slowed by its clock": "the devices' settings stay as they are: a slow GPU does extra work here",
}
"""What this benchmark has no slice for, with the reason."""


def left_out(
    methods: Collection[str], scenarios: Collection[str], device: str, skipped: Mapping[str, str]
) -> list[tuple[str, str]]:
    """(what, why) of methods, cohorts and workloads that are not in a run.

    Args:
        methods: that were measured.
        scenarios: that they were measured in, by name.
        device: ``cpu`` or ``cuda``.
        skipped: why methods that were to be measured could not be.
    """
    found = list(skipped.items())
    found += [(one.name, _why(one, device)) for one in METHODS if one.name not in methods and one.name not in skipped]
    cohorts, workloads = ({name.split(", ")[place] for name in scenarios} for place in (0, 1))
    found += [(f"cohort {name}", _elsewhere("cohort", name)) for name in COHORTS if name not in cohorts]
    found += [(f"workload {name}", _elsewhere("workload", name)) for name in WORKLOADS if name not in workloads]
    return [*found, *NEVER.items()]


def _why(method: Method, device: str) -> str:
    if method.device and method.device != device:
        return "needs two CUDA devices: --gpu measures it"
    return _elsewhere("methods", method.name)


def _elsewhere(part: str, name: str) -> str:
    """Which profiles have it as the ``cohort`` or ``workload`` of a scenario, or among its ``methods``."""
    profiles = [
        profile.name
        for profile in PROFILES.values()
        if any(name in _names(getattr(scenario, part)) for scenario in profile.scenarios)
    ]
    named = ["the default run" if profile == "default" else f"--{profile}" for profile in profiles]
    return f"not in this run; measured by {', '.join(named)}"


def _names(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value
