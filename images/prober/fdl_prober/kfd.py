"""AMD devices by the kernel's KFD topology in sysfs, below any root folder: recorded trees work too."""

import errno
import re
from collections import Counter
from pathlib import Path

from pydantic import Field

from fdl_api import coverage
from fdl_api.model import StatusModel
from fdl_api.report import Device, Faults
from fdl_prober.text import plain, word

TOPOLOGY = ("class/kfd/kfd/topology", "devices/virtual/kfd/kfd/topology")
MAX_NODES = 1024
_VRAM_HEAPS = ("1", "2")
"""Heap types of device memory: visible to the CPU, and private."""

_UNCORRECTED = re.compile(r"^ue:\s*(\d+)", re.MULTILINE)
_WHOLE = ("", "SPX")
"""Compute partition modes of a card that is one device."""


class KfdReport(StatusModel):
    """What the KFD topology said."""

    source: str = Field(default="", description="Topology folder; empty when the kernel has none.")
    driver: str = Field(default="", description="Version of the amdgpu module; empty for the kernel's own.")
    hidden: int = Field(default=0, description="Nodes whose properties the kernel refused to show.")
    error: str = Field(default="", description="What could not be read or cannot be, of the last such node.")
    devices: tuple[Device, ...] = ()


def parse_properties(text: str) -> dict[str, str]:
    """Key and value per line, separated by a blank."""
    pairs = (line.split(maxsplit=1) for line in text.splitlines())
    return {pair[0]: pair[1].strip() for pair in pairs if len(pair) == 2}


def pci_address(properties: dict[str, str]) -> str:
    """PCI address from ``domain`` and ``location_id`` (bus in bits 8-15, device in 3-7, function in 0-2)."""
    if "location_id" not in properties:
        return ""
    location = int(properties["location_id"])
    domain = int(properties.get("domain", "0"))
    return f"{domain & 0xFFFFFFFF:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"


def architecture(target: int) -> str:
    """Token of ``gfx_target_version``; empty for zero and for a number that is no target."""
    if not 0 < target < 1_000_000:
        return ""
    token = coverage.gfx_token(target)
    return token if coverage.parse(token) else ""


def _memory(node: Path) -> tuple[int, bool]:
    """Device memory in bytes, and whether the node has memory banks that are all the machine's own.

    Raises:
        ValueError: a bank does not say whose it is, or how large: nothing may be concluded from it.
    """
    total, banks = 0, 0
    for bank in sorted((node / "mem_banks").glob("*/properties")):
        properties = parse_properties(bank.read_text())
        banks += 1
        if not {"heap_type", "size_in_bytes"} <= properties.keys():
            raise ValueError(f"mem_banks/{bank.parent.name} has no heap_type or no size_in_bytes")
        if properties["heap_type"] in _VRAM_HEAPS:
            total += int(properties["size_in_bytes"])
    return total, banks > 0 and total == 0


def _card(root: Path, pci: str, name: str) -> str:
    """A text of the card's PCI device; empty where the kernel has none (virtual functions have few)."""
    return plain(word(root / "bus/pci/devices" / pci / name))


def uncorrected(root: Path, pci: str) -> int:
    """Memory errors that were not corrected, over all of the card's blocks (``ras/*_err_count``)."""
    total = 0
    for path in sorted((root / "bus/pci/devices" / pci / "ras").glob("*_err_count")) if pci else ():
        try:
            match = _UNCORRECTED.search(path.read_text(errors="replace"))
        except OSError:
            continue
        total += int(match[1]) if match else 0
    return total


def _identity(root: Path, pci: str) -> str:
    parts = [_card(root, pci, name).removeprefix("0x") for name in ("vendor", "device")]
    return ":".join(parts) if all(parts) else ""


def _device(root: Path, node: Path, index: int, properties: dict[str, str]) -> Device:
    pci = pci_address(properties)
    unique = int(properties.get("unique_id", "0"))
    minor = int(properties.get("drm_render_minor", "") or "0")
    memory, shared = _memory(node)
    mode = _card(root, pci, "current_compute_partition")
    return Device(
        vendor="amd",
        index=index,
        name=_card(root, pci, "product_name") or "unknown",
        arch=architecture(int(properties.get("gfx_target_version", "0"))),
        uuid=f"GPU-{unique:016x}" if unique else pci,
        memory_bytes=memory,
        pci=pci,
        pci_id=_identity(root, pci),
        device_node=f"/dev/dri/renderD{minor}" if 0 < minor < 1 << 20 else "",
        unified=shared or int(properties.get("cpu_cores_count", "0")) > 0,
        partition_mode="" if mode in _WHOLE else mode,
        faults=Faults(ecc_uncorrected=uncorrected(root, pci)),
    )


def _distinct(devices: list[Device]) -> tuple[Device, ...]:
    """The partitions of one card share its number: each gets its own by its place in the topology."""
    times = Counter(device.uuid for device in devices)
    return tuple(
        device.model_copy(update={"uuid": f"{device.uuid}/{device.index}"}) if times[device.uuid] > 1 else device
        for device in devices
    )


def observe(root: Path) -> KfdReport:
    """Read the topology below a sysfs root.

    The kernel shows a GPU's properties only to processes that may open its device: to all others the files answer
    EPERM, or are empty. Such nodes are counted as hidden, not as absent. A node that is half-written or makes no
    sense is named, and the others are read all the same.
    """
    topology = next((root / path for path in TOPOLOGY if (root / path / "nodes").is_dir()), None)
    if topology is None:
        return KfdReport()
    devices: list[Device] = []
    hidden, error = 0, ""
    nodes = sorted((topology / "nodes").iterdir(), key=lambda path: (len(path.name), path.name))
    for node in nodes[:MAX_NODES]:
        try:
            properties = parse_properties((node / "properties").read_text())
            if not properties:
                hidden += 1
            elif "simd_count" not in properties:
                error = f"{node}: its properties do not say whether it is a GPU (no simd_count)"
            elif int(properties["simd_count"]) > 0:
                devices.append(_device(root, node, len(devices), properties))
        except OSError as caught:
            if caught.errno in (errno.EPERM, errno.EACCES):
                hidden += 1
            else:
                error = f"{node}: {caught.strerror}"
        except ValueError as caught:
            error = f"{node}: {caught}"[:300]
    return KfdReport(
        source=str(topology), driver=_module_version(root), hidden=hidden, error=error, devices=_distinct(devices)
    )


def _module_version(root: Path) -> str:
    return plain(word(root / "module/amdgpu/version"))
