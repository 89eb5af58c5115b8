"""``python -m fdl_prober.children.nvml LIBRARY [processes]``: what a library says, in the shape of ``NvmlReport``.

Nothing that the library says is believed without a look at it: counts are bounded, texts are cut and decoded with
care, and an architecture is taken only where it is a compute capability that can be.
"""

import ctypes
import json
import os
import sys
from collections.abc import Callable
from typing import Any

import pynvml

from fdl_api.coverage import sm_token
from fdl_prober.children import NVML_LIBRARY, NVML_PROCESSES

MAX_DEVICES = 512
MAX_TEXT = 96
_NO_SUCH_LIBRARY = "cannot open shared object file"  # the dynamic loader's words
_NO_DRIVER = (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
_RECOVERY_FIELD = getattr(pynvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", 0)
_RECOVERIES = {
    1: "gpu-reset",
    2: "node-reboot",
    3: "drain",
    4: "drain-and-reset",
    5: "recover-imex-domain",
    6: "bus-reset",
    7: "system-reboot",
}
"""``NVML_GPU_RECOVERY_ACTION_*``; 0 is none."""


def optional(function: Callable[..., Any], *arguments: Any) -> Any:
    """The function's answer, or ``None`` where this driver or device has none (old drivers, virtual functions).

    Besides the library's own errors the binding raises others for old drivers and for texts that are no UTF-8.
    """
    try:
        return function(*arguments)
    except Exception:
        return None


def text(value: Any) -> str:
    """A text as it can be shown: printable, of bounded length."""
    found = value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
    return "".join(letter for letter in found if letter.isprintable())[:MAX_TEXT]


def arch(capability: Any) -> str:
    """Architecture token of a compute capability; empty for none and for what cannot be one."""
    if not capability:
        return ""
    major, minor = capability
    return sm_token(major, minor) if 1 <= major <= 99 and 0 <= minor <= 9 else ""


def pci(info: Any) -> str:
    """NVML writes an eight-digit domain and capitals, the kernel four digits and small letters."""
    address = text(optional(getattr, info, "busId")).lower()  # the binding decodes it when it is read
    return address[4:] if len(address) == len("00000000:00:00.0") else address


def _mig(handle: Any) -> dict[str, Any]:
    """Whether a device is cut into MIG instances, whether that is about to change, and into which."""
    mode = optional(pynvml.nvmlDeviceGetMigMode, handle)
    if mode is None:
        return {}
    current, pending = (bool(value == pynvml.NVML_DEVICE_MIG_ENABLE) for value in mode)
    names = []
    for number in range(min(optional(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0, 64) if current else 0):
        instance = optional(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, number)
        if instance is not None:
            names.append(text(optional(pynvml.nvmlDeviceGetName, instance)) or "unknown")
    return {"mig": current, "migPending": pending != current, "partitions": names}


def _faults(handle: Any) -> dict[str, Any]:
    """Memory faults since the driver was loaded; what a device does not count is left out."""
    found: dict[str, Any] = {}
    kind, counter = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
    found["eccUncorrected"] = optional(pynvml.nvmlDeviceGetTotalEccErrors, handle, kind, counter) or 0
    rows = optional(pynvml.nvmlDeviceGetRemappedRows, handle)
    if rows is not None:
        _, _, pending, failed = rows
        found |= {"remapPending": bool(pending), "remapFailed": bool(failed)}
    if optional(pynvml.nvmlDeviceGetRetiredPagesPendingStatus, handle):
        found["remapPending"] = True
    return found | {"recovery": _recovery(handle)}


def _recovery(handle: Any) -> str:
    """What the driver itself asks for before the device works again; drivers of before 2024 do not say."""
    values = optional(pynvml.nvmlDeviceGetFieldValues, handle, [_RECOVERY_FIELD]) if _RECOVERY_FIELD else None
    if not values or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return ""
    return _RECOVERIES.get(values[0].value.uiVal, "")


def device(index: int) -> dict[str, Any]:
    """One device.

    Raises:
        pynvml.NVMLError: the driver lists it, and it does not answer.
    """
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    memory = optional(pynvml.nvmlDeviceGetMemoryInfo, handle)
    minor = optional(pynvml.nvmlDeviceGetMinorNumber, handle)
    return {
        "vendor": "nvidia",
        "index": index,
        "name": text(optional(pynvml.nvmlDeviceGetName, handle)) or "unknown",
        "arch": arch(optional(pynvml.nvmlDeviceGetCudaComputeCapability, handle)),
        "uuid": text(optional(pynvml.nvmlDeviceGetUUID, handle)),
        "memoryBytes": int(memory.total) if memory else 0,
        "pci": pci(optional(pynvml.nvmlDeviceGetPciInfo, handle)),
        "deviceNode": f"/dev/nvidia{minor}" if minor is not None and minor < MAX_DEVICES else "",
        "faults": _faults(handle),
    } | _mig(handle)


def _holdings(index: int) -> list[dict[str, Any]]:
    """Processes that hold memory of a device; their numbers are the host's."""
    handle = optional(pynvml.nvmlDeviceGetHandleByIndex, index)
    calls = (pynvml.nvmlDeviceGetComputeRunningProcesses_v3, pynvml.nvmlDeviceGetComputeRunningProcesses_v2)
    found = (optional(call, handle) for call in calls) if handle is not None else ()
    running = next((entries for entries in found if entries is not None), None)
    return [
        {"vendor": "nvidia", "device": index, "pid": int(entry.pid), "bytes": int(entry.usedGpuMemory or 0)}
        for entry in (running or [])[:MAX_DEVICES]
    ]


def start() -> None:
    """Start NVML; drivers of before 2018 know only the call without flags.

    Raises:
        pynvml.NVMLError: it does not start.
    """
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if error.value != pynvml.NVML_ERROR_FUNCTION_NOT_FOUND or not hasattr(pynvml.nvmlLib, "nvmlInit_v2"):
            raise
        code = pynvml.nvmlLib.nvmlInit_v2()
        if code != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(code) from error


def devices(processes: bool) -> dict[str, Any]:
    """All devices, with those that do not answer apart.

    Args:
        processes: whether to ask for the processes that hold their memory.

    Raises:
        pynvml.NVMLError: the driver does not say how many there are, or a number that cannot be.
    """
    count = pynvml.nvmlDeviceGetCount()
    if count > MAX_DEVICES:
        return {"unknown": True, "error": f"NVML claims to have {count} devices"}
    found: list[dict[str, Any]] = []
    lost: list[dict[str, Any]] = []
    holdings: list[dict[str, Any]] = []
    for index in range(count):
        try:
            found.append(device(index))
            holdings += _holdings(index) if processes else []
        except Exception as error:
            lost.append({"index": index, "error": text(error)})
    return {"loaded": True, "devices": found, "lost": lost, "holdings": holdings}


def look(library: str, processes: bool) -> dict[str, Any]:
    """Ask one NVML library.

    Args:
        library: name for the loader, or full path.
        processes: whether to ask for the processes that hold memory.
    """
    try:
        pynvml.nvmlLib = ctypes.CDLL(library)  # where pynvml keeps it; its own search knows the loader's path only
    except OSError as error:
        absent = library == NVML_LIBRARY and _NO_SUCH_LIBRARY in str(error)
        return {"library": "" if absent else library, "missing": absent, "error": str(error)[:400]}
    found: dict[str, Any] = {"library": library}
    try:
        start()
        cuda = optional(pynvml.nvmlSystemGetCudaDriverVersion_v2)
        found["driver"] = text(optional(pynvml.nvmlSystemGetDriverVersion))
        found["cuda"] = f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda and 0 < cuda < 10**6 else ""
        found |= devices(processes)
    except pynvml.NVMLError as error:
        found |= {"missing": error.value in _NO_DRIVER, "error": text(error)}
        found["mismatch"] = error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
    finally:
        optional(pynvml.nvmlShutdown)
    return found


def main() -> None:
    """Look and print; what the library itself prints goes among the errors, or it would spoil the answer."""
    answer = os.dup(sys.stdout.fileno())
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    found = json.dumps(look(sys.argv[1], NVML_PROCESSES in sys.argv[2:]))
    with os.fdopen(answer, "w", encoding="utf-8") as output:
        output.write(found)


if __name__ == "__main__":
    main()
