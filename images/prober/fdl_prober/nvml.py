"""NVIDIA devices by NVML.

Each look runs in a process of its own (``python -m fdl_prober.nvml``): a driver that hangs or crashes then costs
one look and not the prober, and after a driver update or a late driver start the new library is loaded.
"""

import ctypes
import json
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pynvml
from pydantic import Field

from fdl_api.coverage import sm_token
from fdl_api.model import StatusModel
from fdl_api.report import Device
from fdl_prober.child import run_module
from fdl_prober.settings import LOADER

LIBRARY = "libnvidia-ml.so.1"
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
_NO_SUCH_LIBRARY = "cannot open shared object file"  # the dynamic loader's words
_NO_DRIVER = (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)


class NvmlReport(StatusModel):
    """What NVML said."""

    library: str = Field(default="", description="Library that was asked; empty when there is none.")
    loaded: bool = Field(default=False, description="Whether the driver answered.")
    missing: bool = Field(default=False, description="Whether the driver is not there, rather than there and broken.")
    error: str = ""
    driver: str = ""
    cuda: str = ""
    devices: tuple[Device, ...] = ()


def candidates(roots: Iterable[str]) -> list[str]:
    """Libraries to try, in order: names for the loader, full paths below driver roots that exist."""
    found: list[str] = []
    for root in roots:
        if root == LOADER:
            found.append(LIBRARY)
            continue
        paths = (Path(root) / folder / LIBRARY for folder in FOLDERS)
        found.extend(str(path) for path in paths if path.exists())
    return found


def _optional(function: Callable[..., Any], *arguments: Any) -> Any:
    """The function's answer, or ``None`` where this driver or device has none (old drivers, virtual functions)."""
    try:
        return function(*arguments)
    except pynvml.NVMLError:
        return None


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")


def _pci(info: Any) -> str:
    """NVML writes an eight-digit domain and capitals, the kernel four digits and small letters."""
    address = _text(info.busId).lower() if info is not None else ""
    return address[4:] if len(address) == len("00000000:00:00.0") else address


def _device(index: int) -> Device:
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    capability = _optional(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
    memory = _optional(pynvml.nvmlDeviceGetMemoryInfo, handle)
    minor = _optional(pynvml.nvmlDeviceGetMinorNumber, handle)
    mig = _optional(pynvml.nvmlDeviceGetMigMode, handle)
    return Device(
        vendor="nvidia",
        index=index,
        name=_text(_optional(pynvml.nvmlDeviceGetName, handle)) or "unknown",
        arch=sm_token(*capability) if capability else "",
        uuid=_text(_optional(pynvml.nvmlDeviceGetUUID, handle)),
        memory_bytes=int(memory.total) if memory else 0,
        pci=_pci(_optional(pynvml.nvmlDeviceGetPciInfo, handle)),
        device_node=f"/dev/nvidia{minor}" if minor is not None else "",
        mig=bool(mig and mig[0] == pynvml.NVML_DEVICE_MIG_ENABLE),
    )


def look(library: str) -> NvmlReport:
    """Ask one NVML library. Loads it into this process for good: call it in a process of its own.

    Args:
        library: name for the loader, or full path.
    """
    try:
        pynvml.nvmlLib = ctypes.CDLL(library)  # where pynvml keeps it; its own search knows the loader's path only
    except OSError as error:
        absent = library == LIBRARY and _NO_SUCH_LIBRARY in str(error)
        return NvmlReport(library="" if absent else library, missing=absent, error=str(error))
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return NvmlReport(library=library, missing=error.value in _NO_DRIVER, error=str(error))
    try:
        cuda = _optional(pynvml.nvmlSystemGetCudaDriverVersion_v2)
        return NvmlReport(
            library=library,
            loaded=True,
            driver=_text(_optional(pynvml.nvmlSystemGetDriverVersion)),
            cuda=f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else "",
            devices=tuple(_device(index) for index in range(pynvml.nvmlDeviceGetCount())),
        )
    except pynvml.NVMLError as error:
        return NvmlReport(library=library, error=str(error))
    finally:
        _optional(pynvml.nvmlShutdown)


def loadable(library: str) -> bool:
    """Whether the loader finds a library by this name. Saves nodes without NVIDIA's driver a process at every look."""
    try:
        ctypes.CDLL(library)
    except OSError as error:
        return _NO_SUCH_LIBRARY not in str(error)
    return True


async def _ask(library: str, limit_seconds: float) -> NvmlReport:
    """What one library says; a process that died or wrote nonsense is a driver that does not work."""
    ended = await run_module("fdl_prober.nvml", library, limit_seconds)
    if ended.code is None:
        return NvmlReport(library=library, error=f"NVML did not answer within {limit_seconds:g} s")
    try:
        return NvmlReport.model_validate_json(ended.output)
    except ValueError:
        return NvmlReport(library=library, error=f"the look at NVML ended with code {ended.code}: {ended.error}"[:400])


async def observe(roots: Iterable[str], timeout_seconds: float = TIMEOUT_SECONDS) -> NvmlReport:
    """Ask the first library that answers.

    Args:
        roots: driver roots in order of preference; empty is the loader's own path.
        timeout_seconds: limit for each library.

    Returns:
        The first answer of a loaded driver, else the most telling failure: a driver that is there and broken
        before one that is not there.
    """
    failures: list[NvmlReport] = []
    for library in candidates(roots):
        if library == LIBRARY and not loadable(library):
            continue
        answer = await _ask(library, timeout_seconds)
        if answer.loaded:
            return answer
        failures.append(answer)
    broken = [failure for failure in failures if not failure.missing]
    found = [failure for failure in failures if failure.library]
    return next(iter(broken or found or failures), NvmlReport(missing=True, error="no NVML library was found"))


if __name__ == "__main__":
    sys.stdout.write(json.dumps(look(sys.argv[1]).model_dump(mode="json", by_alias=True)))
