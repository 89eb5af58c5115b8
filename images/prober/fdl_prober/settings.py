"""What the prober is told by its environment. Every path and period has a default that works in the chart's pod."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from fdl_api.names import COORDINATOR_PORT
from fdl_prober.text import plain

LOADER = ""
"""In place of a driver root: the library that the loader finds, as runtimeClass ``nvidia`` arranges it."""

DRIVER_ROOTS = (LOADER, "/run/nvidia/driver", "/host")
LOCAL_DRIVER_ROOTS = (LOADER, "/", "/run/nvidia/driver")
SIMULATED_ROOT = "/run/fdl/driver"
GIB = 1 << 30


class SettingsError(ValueError):
    """The environment says something that the prober cannot work with."""


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that the prober was told of.

    Attributes:
        path: where it is.
        kind: ``data`` is read, ``checkpoints`` written.
        wanted_bytes: space that should be free for checkpoints, in bytes.
    """

    path: Path
    kind: Literal["data", "checkpoints"] = "data"
    wanted_bytes: int = 20 * GIB


@dataclass(frozen=True, slots=True)
class Settings:
    """The prober's settings.

    Attributes:
        node: name of the node that it runs on (``FDL_NODE_NAME``).
        namespace: where the operator starts deep checks (``FDL_NAMESPACE``).
        driver_roots: folders with NVIDIA's driver files, tried in order; empty is the loader's own path.
        sysfs_root: the kernel's sysfs, with AMD's KFD topology and the PCI devices.
        dev_root: the node's device files.
        simulated_root: folder with ``nvidia/``, ``amd/sys/`` and device files in ``*/dev/`` on nodes that
            are labelled as simulated.
        kernel_log: the kernel's log, read where the process may.
        sentinel: file of the shared volume to hash, if any.
        folders: for data (``FDL_DATA_FOLDERS``) and checkpoints (``FDL_CHECKPOINT_FOLDERS``), divided by colons.
        stale_processes: whether to look for processes that hold device memory (``FDL_STALE_PROCESSES=true``); needs
            the host's process namespace.
        ports: ports that programs of fdl listen on outside of a cluster.
        variant_file: description of a trainer image's torch outside of a cluster, if any.
        period_seconds: time between two looks at the node.
        refresh_seconds: age at which an unchanged report is written again; ``None`` for a third of the age that
            the FdlCluster allows, at most 300.
    """

    node: str
    namespace: str = "fdl-system"
    driver_roots: tuple[str, ...] = DRIVER_ROOTS
    sysfs_root: Path = Path("/sys")
    dev_root: Path = Path("/dev")
    proc_root: Path = Path("/proc")
    simulated_root: Path = Path(SIMULATED_ROOT)
    kernel_log: Path = Path("/dev/kmsg")
    sentinel: Path | None = None
    folders: tuple[Folder, ...] = ()
    stale_processes: bool = False
    ports: tuple[int, ...] = (COORDINATOR_PORT,)
    variant_file: Path | None = None
    period_seconds: float = 30.0
    refresh_seconds: float | None = None


def _seconds(env: Mapping[str, str], key: str, default: float | None, low: float, high: float) -> float | None:
    text = env.get(key, "")
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise SettingsError(f"{key}={text!r} is no number of seconds from {low:g} to {high:g}; correct the chart.")
    return value


def _folders(env: Mapping[str, str]) -> tuple[Folder, ...]:
    wanted = env.get("FDL_CHECKPOINT_BYTES", "")
    if wanted and not wanted.isdecimal():
        raise SettingsError(f"FDL_CHECKPOINT_BYTES={wanted!r} is no number of bytes; correct the chart.")
    space = int(wanted) if wanted else 20 * GIB
    data = [Folder(Path(path)) for path in env.get("FDL_DATA_FOLDERS", "").split(":") if path]
    own = env.get("FDL_CHECKPOINT_FOLDERS", "").split(":")
    return (*data, *(Folder(Path(path), "checkpoints", space) for path in own if path))


def _switch(env: Mapping[str, str], key: str) -> bool:
    text = env.get(key) or "false"
    if text not in ("true", "false"):
        raise SettingsError(f"{key}={text!r} is neither true nor false; correct the chart.")
    return text == "true"


def from_env(env: Mapping[str, str]) -> Settings:
    """Read the settings from environment variables.

    Raises:
        SettingsError: the node's name is missing, a number is not sensible, or a switch is neither true nor false.
    """
    node = env.get("FDL_NODE_NAME", "")
    if not node:
        raise SettingsError("FDL_NODE_NAME is not set; the DaemonSet has to set it from spec.nodeName.")
    roots = env.get("FDL_DRIVER_ROOT", "")
    period = _seconds(env, "FDL_PERIOD_SECONDS", 30.0, 1, 3600)
    assert period is not None
    return Settings(
        node=node,
        namespace=env.get("FDL_NAMESPACE") or "fdl-system",
        driver_roots=(LOADER, *roots.split(":")) if roots else DRIVER_ROOTS,
        sysfs_root=Path(env.get("FDL_SYSFS_ROOT") or "/sys"),
        dev_root=Path(env.get("FDL_DEV_ROOT") or "/dev"),
        simulated_root=Path(env.get("FDL_SIMULATED_ROOT") or SIMULATED_ROOT),
        proc_root=Path(env.get("FDL_PROC_ROOT") or "/proc"),
        kernel_log=Path(env.get("FDL_KERNEL_LOG") or "/dev/kmsg"),
        sentinel=Path(env["FDL_SENTINEL"]) if env.get("FDL_SENTINEL") else None,
        folders=_folders(env),
        stale_processes=_switch(env, "FDL_STALE_PROCESSES"),
        period_seconds=period,
        refresh_seconds=_seconds(env, "FDL_REFRESH_SECONDS", None, 1, 3600),
    )


def local_from_env(env: Mapping[str, str]) -> Settings:
    """Settings of a survey of this machine: named after its host, with the driver looked for where it is installed.

    Raises:
        SettingsError: a variable that is set cannot be used.
    """
    settings = from_env({"FDL_NODE_NAME": plain(platform.node()) or "localhost"} | dict(env))
    return settings if env.get("FDL_DRIVER_ROOT") else replace(settings, driver_roots=LOCAL_DRIVER_ROOTS)
