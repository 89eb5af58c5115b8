"""NVIDIA devices by NVML.

Each look runs in a process of its own (:mod:`fdl_prober.children.nvml`): a driver that hangs or crashes then costs
one look and not the prober, and after a driver update or a late driver start the new library is loaded.
"""

import os
import signal
from collections.abc import Iterable
from pathlib import Path

from pydantic import Field

from fdl_api.model import StatusModel
from fdl_api.report import Device
from fdl_prober.child import run_module
from fdl_prober.children import NVML_LIBRARY, NVML_PROCESSES
from fdl_prober.processes import Holding
from fdl_prober.settings import LOADER

FOLDERS = (
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "usr/local/nvidia/lib64",
    "lib64",
    "home/kubernetes/bin/nvidia/lib64",
)
"""Where distributions, driver containers and managed nodes keep the library, below a driver root."""

TIMEOUT_SECONDS = 30.0
_LOADER_CACHE = Path("/etc/ld.so.cache")
_LOADER_FOLDERS = (
    "/lib/x86_64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
)


class LostDevice(StatusModel):
    """A device that the driver lists and that does not answer."""

    index: int
    error: str = Field(description="The driver's words.")


class NvmlReport(StatusModel):
    """What NVML said."""

    library: str = Field(default="", description="Library that was asked; empty when there is none.")
    loaded: bool = Field(default=False, description="Whether the driver answered.")
    missing: bool = Field(default=False, description="Whether the driver is not there, rather than there and broken.")
    unknown: bool = Field(default=False, description="Whether the look failed, which says nothing about the driver.")
    mismatch: bool = Field(default=False, description="Whether library and kernel module are of different versions.")
    error: str = ""
    driver: str = ""
    cuda: str = ""
    devices: tuple[Device, ...] = ()
    lost: tuple[LostDevice, ...] = ()
    holdings: tuple[Holding, ...] = Field(default=(), description="Processes that hold memory, if asked for.")


def candidates(roots: Iterable[str]) -> list[str]:
    """Libraries to try, in order: names for the loader, full paths below driver roots that exist."""
    found: list[str] = []
    for root in roots:
        if root == LOADER:
            found.append(NVML_LIBRARY)
            continue
        paths = (Path(root) / folder / NVML_LIBRARY for folder in FOLDERS)
        found.extend(str(path) for path in paths if path.exists())
    return found


def loadable(library: str) -> bool:
    """Whether the loader would find a library by this name, as far as files tell. Saves nodes without NVIDIA's driver
    a process at every look. Nothing is loaded: a broken library may crash whoever loads it.
    """
    folders = [*filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(":")), *_LOADER_FOLDERS]
    if any((Path(folder) / library).exists() for folder in folders):
        return True
    try:
        return library.encode() in _LOADER_CACHE.read_bytes()
    except OSError:
        return False


def _ending(code: int) -> str:
    """How a process ended: a library that crashes, e.g. since it is half-written, ends it by a signal."""
    names = {-number: number.name for number in signal.Signals}
    return f"was ended by {names[code]}" if code in names else f"ended with code {code}"


async def _ask(library: str, limit_seconds: float, processes: bool) -> NvmlReport:
    """What one library says; a process that died or wrote nonsense says nothing about the devices."""
    words = (library, NVML_PROCESSES) if processes else (library,)
    ended = await run_module("fdl_prober.children.nvml", *words, limit_seconds=limit_seconds)
    if ended.code is None:
        error = f"NVML did not answer within {limit_seconds:g} s"
        return NvmlReport(library=library, unknown=True, error=error)
    try:
        return NvmlReport.model_validate_json(ended.output)
    except ValueError:
        error = f"the look at NVML {_ending(ended.code)}{f': {ended.error}' if ended.error else ''}"[:400]
        return NvmlReport(library=library, unknown=True, error=error)


async def observe(
    roots: Iterable[str], timeout_seconds: float = TIMEOUT_SECONDS, *, processes: bool = False
) -> NvmlReport:
    """Ask the first library that answers.

    Args:
        roots: driver roots in order of preference; empty is the loader's own path.
        timeout_seconds: limit for each library.
        processes: whether to ask for the processes that hold device memory.

    Returns:
        The first answer of a loaded driver, else the most telling failure: a driver that is there and broken
        before one that is not there.
    """
    failures: list[NvmlReport] = []
    for library in candidates(roots):
        if library == NVML_LIBRARY and not loadable(library):
            continue
        answer = await _ask(library, timeout_seconds, processes)
        if answer.loaded:
            return answer
        failures.append(answer)
    broken = [failure for failure in failures if not failure.missing]
    found = [failure for failure in failures if failure.library]
    return next(iter(broken or found or failures), NvmlReport(missing=True, error="no NVML library was found"))
