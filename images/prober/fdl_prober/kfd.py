"""AMD devices by the kernel's KFD topology in sysfs, below any root folder: recorded trees work too."""

import errno
from pathlib import Path

from pydantic import Field

from fdl_api.coverage import gfx_token
from fdl_api.model import StatusModel
from fdl_api.report import Device

TOPOLOGY = ("class/kfd/kfd/topology", "devices/virtual/kfd/kfd/topology")
_VRAM_HEAPS = ("1", "2")
"""Heap types of device memory: visible to the CPU, and private."""


class KfdReport(StatusModel):
    """What the KFD topology said."""

    source: str = Field(default="", description="Topology folder; empty when the kernel has none.")
    driver: str = Field(default="", description="Version of the amdgpu module; empty for the kernel's own.")
    hidden: int = Field(default=0, description="Nodes whose properties the kernel refused to show.")
    error: str = ""
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
    return f"{domain:04x}:{location >> 8 & 0xFF:02x}:{location >> 3 & 0x1F:02x}.{location & 7}"


def _memory(node: Path) -> int:
    total = 0
    for bank in sorted((node / "mem_banks").glob("*/properties")):
        properties = parse_properties(bank.read_text())
        if properties.get("heap_type") in _VRAM_HEAPS:
            total += int(properties.get("size_in_bytes", "0"))
    return total


def _product(root: Path, pci: str) -> str:
    """Product name of the card; virtual functions have none, and that does not make them absent."""
    path = root / "bus/pci/devices" / pci / "product_name"
    try:
        return path.read_text().strip() or "unknown"
    except OSError:
        return "unknown"


def _device(root: Path, node: Path, index: int, properties: dict[str, str]) -> Device:
    target = int(properties.get("gfx_target_version", "0"))
    pci = pci_address(properties)
    unique = int(properties.get("unique_id", "0"))
    minor = properties.get("drm_render_minor", "")
    return Device(
        vendor="amd",
        index=index,
        name=_product(root, pci),
        arch=gfx_token(target) if target else "",
        uuid=f"GPU-{unique:016x}" if unique else pci,
        memory_bytes=_memory(node),
        pci=pci,
        device_node=f"/dev/dri/renderD{minor}" if int(minor or "0") else "",
    )


def observe(root: Path) -> KfdReport:
    """Read the topology below a sysfs root.

    The kernel shows a GPU's properties only to processes that may open its device: to all others the files answer
    EPERM, or are empty. Such nodes are counted as hidden, not as absent.
    """
    topology = next((root / path for path in TOPOLOGY if (root / path / "nodes").is_dir()), None)
    if topology is None:
        return KfdReport()
    devices: list[Device] = []
    hidden, error = 0, ""
    for node in sorted((topology / "nodes").iterdir(), key=lambda path: (len(path.name), path.name)):
        try:
            properties = parse_properties((node / "properties").read_text())
            if not properties:
                hidden += 1
            elif int(properties.get("simd_count", "0")) > 0:
                devices.append(_device(root, node, len(devices), properties))
        except OSError as caught:
            if caught.errno in (errno.EPERM, errno.EACCES):
                hidden += 1
            else:
                error = f"{node}: {caught.strerror}"
        except ValueError as caught:
            error = f"{node}: {caught}"
    return KfdReport(
        source=str(topology), driver=_module_version(root), hidden=hidden, error=error, devices=tuple(devices)
    )


def _module_version(root: Path) -> str:
    try:
        return (root / "module/amdgpu/version").read_text().strip()
    except OSError:
        return ""
