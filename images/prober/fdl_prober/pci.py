"""GPUs by their PCI identity: what is plugged in, whether or not a driver knows it."""

from pathlib import Path

VENDOR_IDS = {"0x10de": "nvidia", "0x1002": "amd"}
_DISPLAY_3D = "0x0302"
_DISPLAY_OTHER = "0x0380"
_VGA = "0x0300"
_ACCELERATOR = "0x1200"
CLASSES = (_VGA, _DISPLAY_3D, _DISPLAY_OTHER, _ACCELERATOR)


def gpus(root: Path) -> dict[str, int]:
    """Number of GPUs by vendor below a sysfs root; vendors without one are left out."""
    found: dict[str, int] = {}
    devices = root / "bus/pci/devices"
    for device in sorted(devices.iterdir()) if devices.is_dir() else ():
        try:
            vendor = VENDOR_IDS.get((device / "vendor").read_text().strip())
            kind = (device / "class").read_text().strip()
        except OSError:
            continue  # unplugged between the listing and the look
        if vendor is not None and kind.startswith(CLASSES):
            found[vendor] = found.get(vendor, 0) + 1
    return found
