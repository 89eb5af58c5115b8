"""Simulated accelerators of a node: what a driver would show, as files below a driver root.

A node sees the folder at ``/run/fdl/driver``: ``nvidia/`` with a library and its description, ``amd/`` with a tree
as the kernel's KFD driver shows it, device files in the ``dev/`` of both, and ``resources`` for the device plugin.
The files may change while the node runs. Figures are those that the vendors publish for the named products.
"""

import re
import shutil
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fdl_api.labels import DEVICE_RESOURCES
from fdl_cli.local.nodespec import Accelerators

LIBRARY = "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
DESCRIPTION = "etc/fdl-fake-nvml.conf"
NVIDIA_DRIVER, CUDA_DRIVER = "580.65.06", 13000
AMDGPU_VERSION = "6.14.14"
_GIB = 2**30


@dataclass(frozen=True)
class Product:
    """A device that stands for its architecture: name, memory in bytes, compute units, PCI device id."""

    name: str
    memory: int
    units: int = 0
    device_id: int = 0
    wave: int = 64


NVIDIA_PRODUCTS = {
    "sm_70": Product("Tesla V100-SXM2-16GB", 16 * _GIB),
    "sm_75": Product("Tesla T4", 15 * _GIB),
    "sm_80": Product("NVIDIA A100-SXM4-80GB", 80 * _GIB),
    "sm_86": Product("NVIDIA A10", 23 * _GIB),
    "sm_89": Product("NVIDIA L4", 23 * _GIB),
    "sm_90": Product("NVIDIA H100 80GB HBM3", 80 * _GIB),
    "sm_100": Product("NVIDIA B200", 180 * _GIB),
    "sm_120": Product("NVIDIA GeForce RTX 5090", 32 * _GIB),
}
AMD_PRODUCTS = {
    "gfx906": Product("vega20", 16 * _GIB, 60, 0x66A1),
    "gfx908": Product("arcturus", 32 * _GIB, 120, 0x738C),
    "gfx90a": Product("aldebaran", 64 * _GIB, 110, 0x7408),
    "gfx942": Product("ip discovery", 192 * _GIB, 304, 0x74A1),
    "gfx1030": Product("sienna_cichlid", 16 * _GIB, 80, 0x73BF, 32),
    "gfx1100": Product("ip discovery", 24 * _GIB, 96, 0x744C, 32),
}


def compute_capability(arch: str) -> str:
    """``9.0`` for ``sm_90``: the last digit is the minor part."""
    digits = arch.removeprefix("sm_").rstrip("abcdefghijklmnopqrstuvwxyz")
    return f"{digits[:-1]}.{digits[-1]}"


def gfx_target_version(arch: str) -> int:
    """KFD's number of an architecture: 10000 x major + 100 x minor + step, the latter two hexadecimal digits."""
    match = re.fullmatch(r"gfx(\d+)([0-9a-f])([0-9a-f])", arch)
    if match is None:
        raise ValueError(f"{arch} is no AMD architecture")
    return int(match[1]) * 10_000 + int(match[2], 16) * 100 + int(match[3], 16)


def nvml_description(devices: Accelerators, node: str) -> str:
    """The text that the simulated NVML library reads."""
    product = NVIDIA_PRODUCTS.get(devices.arch, Product(f"NVIDIA {devices.arch}", 16 * _GIB))
    values = {
        "count": devices.count,
        "arch": compute_capability(devices.arch),
        "name": product.name,
        "memory": product.memory,
        "driver": NVIDIA_DRIVER,
        "cuda": CUDA_DRIVER,
        "seed": f"{zlib.crc32(node.encode()) & 0xFFFF:04x}",
    }
    return "".join(f"{key} {value}\n" for key, value in values.items())


def _properties(values: dict[str, int]) -> str:
    return "".join(f"{key} {value}\n" for key, value in values.items())


def kfd_cpu_node(cores: int) -> dict[str, str]:
    """KFD topology node 0, which is the processor: no SIMD units, and gpu_id 0."""
    values = {
        "cpu_cores_count": cores,
        "simd_count": 0,
        "mem_banks_count": 1,
        "caches_count": 0,
        "io_links_count": 0,
        "cpu_core_id_base": 0,
        "simd_id_base": 0,
        "max_waves_per_simd": 0,
        "gfx_target_version": 0,
        "vendor_id": 0,
        "device_id": 0,
        "location_id": 0,
        "drm_render_minor": 0,
        "max_engine_clk_ccompute": 2400,
    }
    return {"properties": _properties(values), "gpu_id": "0\n", "name": "\n"}


def kfd_gpu_node(arch: str, ordinal: int, seed: int) -> dict[str, str]:
    """KFD topology node of device ``ordinal`` (from 0): file below the node's folder -> text."""
    product = AMD_PRODUCTS.get(arch, Product("ip discovery", 16 * _GIB, 64, 0x7400))
    values = {
        "cpu_cores_count": 0,
        "simd_count": product.units * 4,
        "mem_banks_count": 1,
        "caches_count": 0,
        "io_links_count": 1,
        "cpu_core_id_base": 0,
        "simd_id_base": 2147487744 + 4096 * ordinal,
        "max_waves_per_simd": 8,
        "lds_size_in_kb": 64,
        "gds_size_in_kb": 0,
        "wave_front_size": product.wave,
        "array_count": 32,
        "simd_arrays_per_engine": 1,
        "cu_per_simd_array": 10,
        "simd_per_cu": 4,
        "max_slots_scratch_cu": 32,
        "gfx_target_version": gfx_target_version(arch),
        "vendor_id": 0x1002,
        "device_id": product.device_id,
        "location_id": 0x0500 + 0x100 * ordinal,
        "domain": 0,
        "drm_render_minor": 128 + ordinal,
        "num_sdma_engines": 2,
        "num_cp_queues": 24,
        "max_engine_clk_fcompute": 2100,
        "local_mem_size": 0,
        "unique_id": (seed << 32) + ordinal + 1,
        "max_engine_clk_ccompute": 2400,
    }
    bank = {"heap_type": 1, "size_in_bytes": product.memory, "flags": 0, "width": 8192, "mem_clk_max": 1300}
    return {
        "properties": _properties(values),
        "gpu_id": f"{1000 + ordinal}\n",
        "name": f"{product.name}\n",
        "mem_banks/0/properties": _properties(bank),
    }


def resources(accelerators: Iterable[Accelerators]) -> str:
    """Lines ``RESOURCE COUNT`` for the device plugin."""
    return "".join(f"{DEVICE_RESOURCES[a.vendor]} {a.count}\n" for a in accelerators)


def _put(root: Path, files: dict[str, str], mode: int = 0o644) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_text(text)
        temporary.chmod(mode)
        temporary.rename(path)


def _put_device_files(root: Path, names: Iterable[str]) -> None:
    """Plain files in the place of device files, which members may open as those of a node that is set up well."""
    _put(root / "dev", dict.fromkeys(names, ""), mode=0o666)


def _nvidia(root: Path, devices: Accelerators, node: str, library: Path) -> None:
    target = root / LIBRARY
    target.parent.mkdir(parents=True, exist_ok=True)
    # A new file each time would be a new inode, while programs have the old one mapped: keep it.
    if not target.exists():
        shutil.copyfile(library, target)
        target.chmod(0o755)
    (root / "dev").mkdir(exist_ok=True)
    for path in (root / "dev").glob("nvidia[0-9]*"):
        path.unlink()
    _put_device_files(root, ("nvidiactl", "nvidia-uvm", *(f"nvidia{i}" for i in range(devices.count))))
    _put(root, {DESCRIPTION: nvml_description(devices, node)})


def _amd(root: Path, devices: Accelerators, node: str, cores: int) -> None:
    nodes = "sys/class/kfd/kfd/topology/nodes"
    shutil.rmtree(root / "sys", ignore_errors=True)
    shutil.rmtree(root / "dev", ignore_errors=True)
    seed = zlib.crc32(node.encode())
    files = {f"{nodes}/0/{name}": text for name, text in kfd_cpu_node(cores).items()}
    for i in range(devices.count):
        files |= {f"{nodes}/{i + 1}/{name}": text for name, text in kfd_gpu_node(devices.arch, i, seed).items()}
    files |= {"sys/class/kfd/kfd/topology/generation_id": "1\n", "sys/module/amdgpu/version": f"{AMDGPU_VERSION}\n"}
    _put(root, files)
    _put_device_files(root, ("kfd", *(f"dri/renderD{128 + i}" for i in range(devices.count))))


def write(root: Path, accelerators: Iterable[Accelerators], node: str, library: Path, cores: int) -> None:
    """Writes the driver root of a node, replacing what it showed before.

    ``library`` is the simulated NVML as built; ``cores`` what the processor's KFD node counts.
    """
    root.mkdir(parents=True, exist_ok=True)
    present = {a.vendor: a for a in accelerators if a.count}
    if "nvidia" in present:
        _nvidia(root / "nvidia", present["nvidia"], node, library)
    else:
        shutil.rmtree(root / "nvidia", ignore_errors=True)
    if "amd" in present:
        _amd(root / "amd", present["amd"], node, cores)
    else:
        shutil.rmtree(root / "amd", ignore_errors=True)
    _put(
        root,
        {
            "resources": resources(
                Accelerators(v, present[v].count if v in present else 0, "") for v in DEVICE_RESOURCES
            )
        },
    )
