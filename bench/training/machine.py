"""What the machine is, and what else it did during a slice."""

import os
import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Load:
    """Counters of /proc/stat, or their difference as shares of all cores' time.

    Attributes:
        busy: time at work.
        steal: time that the hypervisor gave to others.
        total: all time.
        average: load average over a minute.
    """

    busy: float
    steal: float
    total: float
    average: float

    def since(self, before: "Load") -> "Load":
        """Shares since then."""
        total = max(1e-9, self.total - before.total)
        return Load((self.busy - before.busy) / total, (self.steal - before.steal) / total, 1.0, self.average)


def load_now() -> Load:
    """Counters now."""
    fields = [float(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    idle = fields[3] + fields[4]
    steal = fields[7]
    return Load(sum(fields) - idle - steal, steal, sum(fields), os.getloadavg()[0])


def describe() -> dict[str, Any]:
    """The machine in words."""
    model, frequency = "", ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            model = value.strip()
        if key.strip() == "cpu MHz":
            frequency = value.strip()
    import torch  # noqa: PLC0415 - slow; only the last page needs it

    return {
        "cpu": model,
        "mhz": frequency,
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "load_average": os.getloadavg()[0],
    }
