"""Whether hardware or drivers changed since the last look, told from a few folders and files.

Asking costs less than a millisecond, so that it is done every two seconds: a device that comes or goes is in the node's
labels long before the next whole look.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from fdl_prober.children import NVML_LIBRARY
from fdl_prober.nvml import FOLDERS
from fdl_prober.settings import LOADER, Settings
from fdl_prober.text import word

Mark = tuple[str, tuple[str, ...], int]
_KFD = ("class/kfd/kfd/topology/generation_id", "class/kfd/kfd/topology/nodes")
_PCI = "bus/pci/devices"
_DRIVER = "driver/nvidia/version"
_DEVICE_PREFIXES = ("nvidia", "kfd", "dri", "infiniband")
_SIMULATED = "nvidia/etc"


def _mark(path: Path, prefixes: tuple[str, ...] = ()) -> Mark:
    """A folder's names or a file's change time; nothing for what is not there or cannot be read."""
    try:
        if path.is_dir():
            names = (entry.name for entry in os.scandir(path))
            return str(path), tuple(sorted(name for name in names if not prefixes or name.startswith(prefixes))), 0
        status = path.stat()
        return str(path), (), hash((status.st_mtime_ns, status.st_size, status.st_ino))
    except OSError:
        return str(path), (), -1


def _topology(sysfs: Path) -> list[Mark]:
    """The topology's count of its own changes, whose file has no change time, and its nodes."""
    return [(_KFD[0], (word(sysfs / _KFD[0]),), 0), _mark(sysfs / _KFD[1])]


def marks(settings: Settings, simulated: bool) -> tuple[Mark, ...]:
    """What is compared with the next time. Never blocks but on a driver that is stuck.

    Args:
        settings: where to look.
        simulated: whether the node is labelled as one with simulated devices.
    """
    if simulated:
        root = settings.simulated_root
        folder = root / _SIMULATED
        described: Iterable[Path] = sorted(folder.iterdir()) if folder.is_dir() else ()
        return (_mark(root), *(_mark(path) for path in described), *_topology(root / "amd/sys"))
    libraries = [
        _mark(Path(root) / folder / NVML_LIBRARY)
        for root in settings.driver_roots
        if root != LOADER
        for folder in FOLDERS
    ]
    return (
        _mark(settings.sysfs_root / _PCI),
        _mark(settings.proc_root / _DRIVER),
        _mark(settings.dev_root, _DEVICE_PREFIXES),
        *_topology(settings.sysfs_root),
        *libraries,
    )
