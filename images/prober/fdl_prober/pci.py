"""GPUs by their PCI identity: what is plugged in, whether or not a driver knows it."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fdl_prober.text import known_word, word

VENDOR_IDS = {"0x10de": "nvidia", "0x1002": "amd"}
_VENDOR, _CLASS = re.compile("0x[0-9a-f]{4}"), re.compile("0x[0-9a-f]{6}")
_DISPLAY_3D = "0x0302"
_DISPLAY_OTHER = "0x0380"
_VGA = "0x0300"
_ACCELERATOR = "0x1200"
CLASSES = (_VGA, _DISPLAY_3D, _DISPLAY_OTHER, _ACCELERATOR)


@dataclass(frozen=True, slots=True)
class PciGpu:
    """A GPU on the bus.

    Attributes:
        address: e.g. ``0000:c1:00.0``.
        vendor: ``nvidia`` or ``amd``.
        identity: PCI vendor and device, e.g. ``1002:74a1``.
        driver: kernel driver that holds it; empty for none.
    """

    address: str
    vendor: str
    identity: str = ""
    driver: str = ""

    @property
    def lent(self) -> bool:
        """Whether it is kept for virtual machines, so that nothing on this machine may use it."""
        return self.driver.startswith("vfio")


def gpus(root: Path) -> tuple[tuple[PciGpu, ...], str]:
    """GPUs below a sysfs root, by address. One that is unplugged between the listing and the look is left out.

    Returns:
        The GPUs, and what cannot be told of the last device that may be one as well; empty where all is told.
    """
    found: list[PciGpu] = []
    untold = ""
    devices = root / "bus/pci/devices"
    for device in sorted(devices.iterdir()) if devices.is_dir() else ():
        try:
            number = known_word(device / "vendor", _VENDOR)
            vendor = VENDOR_IDS.get(number)
            kind = known_word(device / "class", _CLASS) if vendor is not None else ""
        except ValueError as error:
            untold = str(error)
            continue
        if vendor is None or not kind.startswith(CLASSES):
            continue
        link = device / "driver"
        found.append(
            PciGpu(
                address=device.name,
                vendor=vendor,
                identity=f"{number.removeprefix('0x')}:{word(device / 'device').removeprefix('0x')}",
                driver=link.readlink().name if link.is_symlink() else "",
            )
        )
    return tuple(found), untold


def count(found: Iterable[PciGpu]) -> dict[str, int]:
    """Number of GPUs by vendor, without those that are kept for virtual machines; vendors without one are left out."""
    return dict(Counter(gpu.vendor for gpu in found if not gpu.lent))
