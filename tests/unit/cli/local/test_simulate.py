"""Simulated accelerators: the library as a program sees it, and the tree as the prober reads it."""

import ctypes
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from fdl_cli.local import simulate
from fdl_cli.local.nodespec import Accelerators, parse_node
from fdl_cli.local.paths import tools_source


@pytest.mark.parametrize(("arch", "version"), [("gfx942", 90402), ("gfx90a", 90010), ("gfx1100", 110000)])
def test_gfx_target_versions(arch: str, version: int) -> None:
    assert simulate.gfx_target_version(arch) == version


@pytest.mark.parametrize(("arch", "capability"), [("sm_90", "9.0"), ("sm_120", "12.0"), ("sm_90a", "9.0")])
def test_compute_capabilities(arch: str, capability: str) -> None:
    assert simulate.compute_capability(arch) == capability


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The simulated NVML, compiled as the build does."""
    if shutil.which("gcc") is None:
        pytest.skip("no C compiler is here")
    target = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = tools_source() / "fake-nvml/nvml.c"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-fvisibility=hidden"]
    subprocess.run(["gcc", *flags, "-o", target, source], check=True, timeout=60)
    return target


ASK = """
import ctypes, sys, pynvml
real = ctypes.CDLL
ctypes.CDLL = lambda name, *a, **k: real(sys.argv[1] if name == "libnvidia-ml.so.1" else name, *a, **k)
pynvml.CDLL = ctypes.CDLL
try:
    pynvml.nvmlInit()
except pynvml.NVMLError as fault:
    print(fault); sys.exit()
for i in range(pynvml.nvmlDeviceGetCount()):
    h = pynvml.nvmlDeviceGetHandleByIndex(i)
    memory = pynvml.nvmlDeviceGetMemoryInfo(h).total
    minor = pynvml.nvmlDeviceGetMinorNumber(h)
    print(pynvml.nvmlDeviceGetName(h), pynvml.nvmlDeviceGetCudaComputeCapability(h), memory, minor, sep="|")
print(pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlSystemGetCudaDriverVersion(), sep="|")
print(len({pynvml.nvmlDeviceGetUUID(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(pynvml.nvmlDeviceGetCount())}))
"""


def ask(root: Path) -> list[str]:
    """What a program that uses nvidia-ml-py finds below a driver root."""
    command = [sys.executable, "-c", ASK, str(root / "nvidia" / simulate.LIBRARY)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()


def test_nvidia_ml_py_reads_the_simulated_devices_and_their_change(tmp_path: Path, library: Path) -> None:
    pytest.importorskip("pynvml")
    simulate.write(tmp_path, parse_node("nvidia=2:sm_90").accelerators, "n", library, 2)
    line = f"NVIDIA H100 80GB HBM3|(9, 0)|{80 * 2**30}"
    assert ask(tmp_path) == [f"{line}|0", f"{line}|1", f"{simulate.NVIDIA_DRIVER}|{simulate.CUDA_DRIVER}", "2"]
    simulate.write(tmp_path, parse_node("nvidia=1:sm_80").accelerators, "n", library, 2)
    assert ask(tmp_path)[0].startswith("NVIDIA A100-SXM4-80GB|(8, 0)")
    (tmp_path / "nvidia" / simulate.DESCRIPTION).unlink()
    assert ask(tmp_path) == ["Driver Not Loaded"]


def test_a_program_that_has_the_library_open_sees_the_change(tmp_path: Path, library: Path) -> None:
    simulate.write(tmp_path, [Accelerators("nvidia", 2, "sm_90")], "n", library, 2)
    opened = ctypes.CDLL(str(tmp_path / "nvidia" / simulate.LIBRARY))
    count = ctypes.c_uint()
    assert opened.nvmlInit_v2() == 0
    opened.nvmlDeviceGetCount_v2(ctypes.byref(count))
    assert count.value == 2
    simulate.write(tmp_path, [Accelerators("nvidia", 3, "sm_90")], "n", library, 2)
    opened.nvmlDeviceGetCount_v2(ctypes.byref(count))
    assert count.value == 3


def test_two_nodes_have_different_devices() -> None:
    devices = Accelerators("nvidia", 1, "sm_90")
    assert simulate.nvml_description(devices, "a") != simulate.nvml_description(devices, "b")


def properties(text: str) -> dict[str, int]:
    return {key: int(value) for key, value in (line.split() for line in text.splitlines())}


def test_the_kfd_tree_has_a_processor_and_the_devices(tmp_path: Path) -> None:
    simulate.write(tmp_path, [Accelerators("amd", 2, "gfx942")], "n", tmp_path / "unused", 8)
    nodes = tmp_path / "amd/sys/class/kfd/kfd/topology/nodes"
    assert sorted(p.name for p in nodes.iterdir()) == ["0", "1", "2"]
    processor = properties((nodes / "0/properties").read_text())
    assert (processor["simd_count"], processor["cpu_cores_count"]) == (0, 8)
    assert (nodes / "0/gpu_id").read_text() == "0\n"
    device = properties((nodes / "2/properties").read_text())
    assert (device["gfx_target_version"], device["vendor_id"], device["simd_count"]) == (90402, 0x1002, 1216)
    assert properties((nodes / "2/mem_banks/0/properties").read_text())["size_in_bytes"] == 192 * 2**30
    assert (tmp_path / "amd/dev/dri" / f"renderD{device['drm_render_minor']}").exists()
    assert (tmp_path / "amd/sys/module/amdgpu/version").exists()


@pytest.mark.parametrize(
    ("devices", "files"),
    [
        (Accelerators("nvidia", 1, "sm_90"), {"nvidiactl", "nvidia-uvm", "nvidia0"}),
        (Accelerators("amd", 2, "gfx942"), {"kfd", "renderD128", "renderD129"}),
    ],
)
def test_everybody_may_open_the_device_files(tmp_path: Path, devices: Accelerators, files: set[str]) -> None:
    (library := tmp_path / "library").touch()
    simulate.write(tmp_path / "root", [devices], "n", library, 2)
    found = {path for path in (tmp_path / "root" / devices.vendor / "dev").rglob("*") if path.is_file()}
    assert {path.name: path.stat().st_mode & 0o777 for path in found} == dict.fromkeys(files, 0o666)


def test_devices_that_are_taken_away_leave_no_driver(tmp_path: Path) -> None:
    simulate.write(tmp_path, [Accelerators("amd", 1, "gfx942")], "n", tmp_path / "unused", 2)
    simulate.write(tmp_path, parse_node("amd=0").accelerators, "n", tmp_path / "unused", 2)
    assert not (tmp_path / "amd").exists()
    assert (tmp_path / "resources").read_text() == "nvidia.com/gpu 0\namd.com/gpu 0\n"
