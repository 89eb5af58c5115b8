"""floDl's hosts as cohorts: those that are alike are one, since fdl names kinds of nodes and not nodes."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fdl_api.spec_workload import RESERVED_ENV
from fdl_cli.convert.variants import Torch, torch

MAX_DEVICES: Final = 16
MAX_VALUE: Final = 4096
_OF_THE_HOST: Final = ("LD_PRELOAD", "LD_LIBRARY_PATH", "LIBTORCH_PATH", "PATH")
"""Variables whose values are paths on a host."""


@dataclass(frozen=True, slots=True)
class Host:
    """A worker of floDl's.

    Attributes:
        name: its name.
        devices: how many ranks it has; ``None`` when it took all that it found.
        torch: its libtorch, if it names one.
        env: its own variables, sorted by name.
        interface: network interface for NCCL, or empty.
        data_path: folder of its data, or empty.
        tunnel: whether it reaches the controller through ssh only.
    """

    name: str
    devices: int | None
    torch: Torch | None
    env: tuple[tuple[str, str], ...]
    interface: str = ""
    data_path: str = ""
    tunnel: bool = False


@dataclass(frozen=True, slots=True)
class Group:
    """Hosts that are alike: a cohort."""

    name: str
    vendor: str
    torch: Torch | None
    devices: int
    members: int
    env: tuple[tuple[str, str], ...]


def hosts(cluster: Mapping[str, Any], note: Callable[[str], None]) -> list[Host]:
    """The workers of a cluster, in their listed order; ``note`` takes what is not quite as it was."""
    found: list[Host] = []
    entries = [*(cluster.get("workers") or []), *(cluster.get("hosts") or [])]
    for at, entry in enumerate(entries):
        name = str(entry.get("host") or entry.get("name") or f"host-{at}")
        listed = entry.get("local_devices", entry.get("ranks", "all"))
        devices = None if listed == "all" else len(listed)
        if devices is None:
            note(f"host {name} takes all its devices, and the files do not say how many: devicesPerReplica is 1 for it")
        elif not 1 <= devices <= MAX_DEVICES:
            kept = max(1, min(devices, MAX_DEVICES))
            note(f"host {name} has {devices} devices; a member has 1 to {MAX_DEVICES}, so devicesPerReplica is {kept}")
            devices = kept
        if isinstance(listed, list) and entry.get("local_devices") and sorted(listed) != list(range(len(listed))):
            note(f"host {name} uses devices {_numbers(listed)} only: here the node's device plugin chooses them")
        own = {key: _value(value) for key, value in (entry.get("env") or {}).items()}
        found.append(
            Host(
                name=name,
                devices=devices,
                torch=torch(entry["arch"]) if entry.get("arch") else None,
                env=tuple(sorted(own.items())),
                interface=entry.get("nccl_socket_ifname", ""),
                data_path=entry.get("data_path", ""),
                tunnel=bool(entry.get("tunnel")),
            )
        )
    return found


def groups(machines: list[Host]) -> list[Group]:
    """Cohorts for the hosts: named by vendor, numbered where a vendor has several."""
    kinds: dict[tuple[str, Torch | None, int, tuple[tuple[str, str], ...]], int] = {}
    for machine in machines:
        vendor = machine.torch.vendor if machine.torch else "nvidia"
        kind = (vendor, machine.torch, machine.devices or 1, machine.env)
        kinds[kind] = kinds.get(kind, 0) + 1
    vendors = [kind[0] for kind in kinds]
    made: list[Group] = []
    for at, ((vendor, libtorch, devices, env), members) in enumerate(kinds.items()):
        number = str(vendors[: at + 1].count(vendor)) if vendors.count(vendor) > 1 else ""
        made.append(Group(vendor + number, vendor, libtorch, devices, members, env))
    return made


def overlay(
    cluster: Mapping[str, Any], parts: list[Group], note: Callable[[str], None]
) -> tuple[list[dict[str, str]], dict[str, list[dict[str, str]]]]:
    """Variables of all members, and those of single cohorts by the cohort's name.

    A cohort's variable wins over the cluster's of the same name, as in floDl.
    """
    shared = {key: _value(value) for key, value in cluster.items()}
    same = {part.env for part in parts}
    if len(same) == 1:
        shared |= dict(same.pop())
        own: dict[str, list[dict[str, str]]] = {}
    else:
        own = {part.name: entries for part in parts if (entries := _allowed(dict(part.env), note))}
        if own:
            note(
                "variables differ between hosts, so cohorts have them in podTemplate: "
                f"{', '.join(f'{name} ({_names(entries)})' for name, entries in own.items())}"
            )
    return _allowed(shared, note), own


def _allowed(env: Mapping[str, str], note: Callable[[str], None]) -> list[dict[str, str]]:
    kept: list[dict[str, str]] = []
    for name, value in sorted(env.items()):
        if name in RESERVED_ENV or name.startswith("FDL_"):
            note(f"env {name} was left out: fdl sets it for each rank")
        elif name.startswith("FLODL_"):
            note(f"env {name} was left out: only floDl reads it")
        elif name in _OF_THE_HOST:
            bridge = "; FdlCluster spec.variants[].ncclBridge bridges NCCL" if name == "LD_PRELOAD" else ""
            note(f"env {name} was left out: its value is a path on the host, and members see their image only{bridge}")
        elif re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,127}", name) is None or len(value) > MAX_VALUE:
            note(f"env {name} was left out: its name or its length is none that a pod can have")
        else:
            kept.append({"name": name, "value": value})
    return kept


def _value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _names(entries: list[dict[str, str]]) -> str:
    return ", ".join(entry["name"] for entry in entries)


def _numbers(listed: list[int]) -> str:
    return ", ".join(str(number) for number in listed)
