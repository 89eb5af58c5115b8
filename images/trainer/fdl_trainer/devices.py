"""The devices that a member offers: one rank each."""

import importlib.metadata
import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from fdl_api import names
from fdl_api.runconfig import CohortConfig
from fdl_api.wire import Device

PROBE_TIMEOUT_SECONDS = 120.0
_PROBE = """
import json, torch
hip = torch.version.hip is not None
print(json.dumps([
    {"vendor": "amd" if hip else "nvidia", "memory": p.total_memory,
     "arch": p.gcnArchName.split(":")[0] if hip else f"sm_{p.major}{p.minor}"}
    for p in map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
]))
"""


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


def devices(cohort: CohortConfig, image: Software) -> list[Device]:
    """The devices of this member; a CPU cohort's (and a simulated device's) are shares of the machine.

    Raises:
        RuntimeError: the accelerators could not be asked.
    """
    if cohort.vendor == "cpu" or not image.accelerated:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        arch = platform.machine()
        return [
            Device(index=index, vendor="cpu", arch=arch, memory_bytes=memory)
            for index in range(max(1, cohort.devices_per_replica))
        ]
    # In a process of its own: the agent must never hold a context on a device.
    try:
        answer = subprocess.run(
            [sys.executable, "-c", _PROBE], capture_output=True, text=True, timeout=PROBE_TIMEOUT_SECONDS, check=True
        )
        found = json.loads(answer.stdout)
    except (subprocess.SubprocessError, ValueError) as error:
        words = (getattr(error, "stderr", "") or str(error)).strip().splitlines() or [""]
        raise RuntimeError(f"torch could not list this node's {cohort.vendor} devices: {words[-1][:300]}") from error
    return [
        Device(index=index, vendor=item["vendor"], arch=item["arch"], memory_bytes=item["memory"])
        for index, item in enumerate(found[: max(1, cohort.devices_per_replica)])
    ]
