"""floDl's mode as spec.mode."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from fdl_api.run import Mode

DEFAULT: Final = "nccl-cadence"
"""floDl's mode when nothing is said."""


def mode(ddp: Mapping[str, Any], vendors: set[str], tunnel: bool, note: Callable[[str], None]) -> str:
    """The mode of a run.

    Args:
        ddp: floDl's settings: ``mode``, or ``policy`` and ``backend``.
        vendors: vendors of the cohorts.
        tunnel: whether a host is reached through ssh only, which floDl allows in cpu modes.
        note: takes what is not quite as it was.
    """
    said = _said(ddp)
    wanted = said or DEFAULT
    if wanted not in set(Mode):
        wanted = _nearest(wanted)
        note(f"mode {said!r} is none of fdl's; {wanted} comes closest")
    policy = wanted.partition("-")[2]
    if wanted.startswith("nccl-") and (len(vendors) > 1 or "cpu" in vendors):
        why = "has cohorts of several vendors" if len(vendors) > 1 else "has no devices"
        note(f"mode {wanted} needs devices of one vendor, and this cluster {why}: spec.mode is cpu-{policy}")
        return f"cpu-{policy}"
    if not said and tunnel:
        note("hosts behind tunnels average through the CPU in floDl: spec.mode is cpu-cadence")
        return Mode.CPU_CADENCE.value
    if not said:
        note(f"the files name no mode (it may stand in the program); spec.mode is floDl's default, {wanted}")
    return wanted


def _said(ddp: Mapping[str, Any]) -> str:
    if ddp.get("mode"):
        return str(ddp["mode"]).lower().replace("_", "-")
    if ddp.get("policy") or ddp.get("backend"):
        return f"{ddp.get('backend', 'nccl')}-{ddp.get('policy', 'cadence')}".lower()
    return ""


def _nearest(wanted: str) -> str:
    if wanted == "nccl-async":  # floDl gave it up, too
        return Mode.CPU_ASYNC.value
    if "sync" in wanted and "async" not in wanted:
        return Mode.CPU_SYNC.value if wanted.startswith("cpu") else Mode.NCCL_SYNC.value
    return DEFAULT
