"""The devices that a member offers: one rank each."""

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fdl_api import names
from fdl_api.runconfig import CohortConfig
from fdl_api.wire import Device

PROBE_TIMEOUT_SECONDS = 120.0
_PROBE = """
import json, torch
from fdl_trainer.variant import nccl_text, nccl_version
hip = torch.version.hip is not None
print(json.dumps({"nccl": nccl_text(nccl_version(torch)), "devices": [
    {"vendor": "amd" if hip else "nvidia", "memory": p.total_memory,
     "arch": p.gcnArchName.split(":")[0] if hip else f"sm_{p.major}{p.minor}"}
    for p in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
]}))
"""
_VISIBLE = ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")


@dataclass(frozen=True)
class Software:
    """What this image runs; from ``variant.json`` in an image, else from the installed torch."""

    variant: str
    torch: str
    nccl: str | None
    accelerated: bool


def software(path: Path = Path(names.VARIANT_FILE)) -> Software:
    """Read the image's variant file, or ask the installed packages where there is none (a walk-in box, a test)."""
    try:
        facts = json.loads(path.read_text())
        return Software(
            str(facts["name"]), str(facts["torchVersion"]), facts.get("ncclVersion"), facts.get("build") != "cpu"
        )
    except (OSError, ValueError, KeyError):
        try:
            version = importlib.metadata.version("torch")
        except importlib.metadata.PackageNotFoundError:
            version = ""
        return Software("", version, None, accelerated=True)


def visible(environment: Mapping[str, str], device: Device) -> dict[str, str]:
    """Variables that leave a process one device, as its first: no script can use another rank's by mistake.

    Args:
        environment: the member's; it may itself see only some of the node's devices.
        device: as the member counts it; of vendor cpu: the process sees none.
    """
    if device.vendor == "cpu":
        return dict.fromkeys(_VISIBLE, "")
    for name in _VISIBLE:
        listed = [item.strip() for item in environment.get(name, "").split(",") if item.strip()]
        if device.index < len(listed):
            return {name: listed[device.index]}
    return {"CUDA_VISIBLE_DEVICES": str(device.index)}


def shared(devices: list[Device], millicores: int | None) -> list[Device]:
    """The devices with the CPU time of their ranks: equal parts of the container's.

    Args:
        devices: of the member.
        millicores: the container's limit; None: what this process may use.
    """
    whole = millicores if millicores is not None else 1000 * len(os.sched_getaffinity(0))
    return [device.model_copy(update={"cpu_millicores": whole // len(devices)}) for device in devices]


def offer(cohort: CohortConfig, image: Software) -> tuple[list[Device], Software]:
    """The devices of this member, and its software with what only torch itself could tell.

    A CPU cohort's devices (and simulated ones) are shares of the machine.

    Raises:
        RuntimeError: the accelerators could not be asked.
    """
    if cohort.vendor == "cpu" or not image.accelerated:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        arch = platform.machine()
        shares = [
            Device(index=index, vendor="cpu", arch=arch, memory_bytes=memory)
            for index in range(max(1, cohort.devices_per_replica))
        ]
        return shares, image
    # In a process of its own: the agent must never hold a context on a device.
    try:
        answer = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=PROBE_TIMEOUT_SECONDS, check=True
        )
        found = json.loads(answer.stdout)
    except (subprocess.SubprocessError, ValueError) as error:
        words = (getattr(error, "stderr", "") or str(error)).strip().splitlines() or [""]
        raise RuntimeError(f"torch could not list this node's {cohort.vendor} devices: {words[-1][:300]}") from error
    real = [
        Device(index=index, vendor=item["vendor"], arch=item["arch"], memory_bytes=item["memory"])
        for index, item in enumerate(found["devices"][: max(1, cohort.devices_per_replica)])
    ]
    # What was loaded, and not what the image was built with: FdlCluster may have another library preloaded.
    return real, replace(image, nccl=found["nccl"] or image.nccl)
