"""How fast devices may be, by what they are: shares of the first windows, where nothing is measured and no user said.

A guess, and used as one. It decides how many batches a rank gets until the first speeds are measured (two windows), and
nothing after that. A wrong guess costs a part of those windows, a right one saves it.

* *Peak*: dense 16-bit matrix operations with sums in fp32, in TFLOP/s, of the largest device of an architecture, by the
  vendors' data sheets (before matrix units: the vector units), rounded. It compares vendors, which floDl's score
  (generation x 10 + memory in GiB) cannot: gfx942 is not a tenth of sm_942.
* *Memory*: within an architecture less memory mostly means a smaller chip, or a slice of one (MIG, a partition), so the
  peak goes down with it in proportion, to an eighth at most. A card with more memory than the largest is no faster.
* *CPUs*: the rank's part of the container's CPU time, at 0.05 TFLOP/s a CPU (AVX2, two threads a core).
* The relative speed is the *square root* of the ratio of peaks: real trainings also wait for memory, launches and data,
  and gain less than the peak says. (Two cards in floDl's published tables, 1 : 17 by this peak, are 1 : 1.2 to 1 : 4.4
  there.)
* It is limited to 1 : 4, and there is none when a device is unknown, or when all are within a quarter of each other.

All ranks must come to the same shares, so the devices come from the message of the membership epoch, never from what a
rank sees of itself.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

LARGEST_RATIO = 4.0
"""How many times as fast as the slowest a device may be taken to be."""
ALIKE = 1.25
"""Devices within this ratio are taken as equal."""
LEAST_PART = 0.125
"""Smallest part of an architecture's largest device."""
PER_CPU = 0.05
"""TFLOP/s of one CPU."""
GIB: Final = 1 << 30

PEAKS: Final[dict[tuple[str, str], tuple[float, float]]] = {
    ("nvidia", "sm_60"): (21.0, 16.0),
    ("nvidia", "sm_61"): (11.0, 11.0),
    ("nvidia", "sm_70"): (125.0, 16.0),
    ("nvidia", "sm_75"): (65.0, 16.0),
    ("nvidia", "sm_80"): (312.0, 40.0),
    ("nvidia", "sm_86"): (150.0, 48.0),
    ("nvidia", "sm_89"): (362.0, 48.0),
    ("nvidia", "sm_90"): (989.0, 80.0),
    ("nvidia", "sm_100"): (2250.0, 180.0),
    ("nvidia", "sm_120"): (210.0, 32.0),
    ("amd", "gfx906"): (26.0, 16.0),
    ("amd", "gfx908"): (185.0, 32.0),
    ("amd", "gfx90a"): (181.0, 64.0),
    ("amd", "gfx942"): (1307.0, 192.0),
    ("amd", "gfx950"): (2300.0, 288.0),
    ("amd", "gfx1030"): (41.0, 16.0),
    ("amd", "gfx1100"): (123.0, 24.0),
    ("amd", "gfx1201"): (195.0, 16.0),
}
"""Peak in TFLOP/s, and memory in GiB from which on a device has it, by vendor and architecture."""


@dataclass(frozen=True)
class Hardware:
    """What a rank trains on.

    Args:
        vendor: ``nvidia``, ``amd`` or ``cpu``.
        arch: architecture token, such as ``sm_90``, ``gfx942``, ``x86_64``.
        memory_bytes: memory of the device; 0 when not known.
        cpu_millicores: CPU time of the rank in thousandths of a CPU; 0 when not known.
    """

    vendor: str
    arch: str
    memory_bytes: int = 0
    cpu_millicores: int = 0


def peak(device: Hardware) -> float:
    """TFLOP/s of a device by what it is; 0 when not known."""
    if device.vendor == "cpu":
        return PER_CPU * device.cpu_millicores / 1000.0
    known = PEAKS.get((device.vendor, device.arch))
    if known is None or device.memory_bytes <= 0:
        return 0.0
    tflops, gibibytes = known
    return tflops * max(LEAST_PART, min(1.0, device.memory_bytes / (gibibytes * GIB)))


def relative_speeds(devices: Sequence[Hardware | None], largest: float = LARGEST_RATIO) -> list[float]:
    """How fast devices may be, the slowest being 1.

    Args:
        devices: one a rank; None when nothing is known of it.
        largest: largest ratio to the slowest.

    Returns:
        One figure a rank, from 1 to ``largest``; empty when a device is not known or all are alike.
    """
    peaks = [peak(device) if device is not None else 0.0 for device in devices]
    least = min(peaks, default=0.0)
    if least <= 0.0:
        return []
    speeds = [min(math.sqrt(each / least), largest) for each in peaks]
    return speeds if max(speeds) > ALIKE else []
