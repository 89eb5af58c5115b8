"""Builders for the prober's tests: nodes with devices, variants, and answers of deep checks."""

from datetime import UTC, datetime
from typing import Any

from fdl_api.cluster import Variant
from fdl_api.report import DeepDevice, DeepFacts, DeepResult, Device, Host, Interface, Report
from fdl_prober.facts import Facts, gather
from fdl_prober.kfd import KfdReport
from fdl_prober.nvml import NvmlReport
from fdl_prober.observe import Observation

NOW = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)

CPU = Variant(name="cpu", vendor="cpu", image="r/cpu:1", torch_version="2.6.0+debian")
CUDA = Variant(
    name="cuda",
    vendor="nvidia",
    image="r/cuda:1",
    archs=("sm_75", "sm_80", "sm_90"),
    torch_version="2.10.0+cu128",
    nccl_version="2.27.5",
)
OLD_CUDA = Variant(name="cuda-old", vendor="nvidia", image="r/old:1", archs=("sm_60", "sm_70"), nccl_version="2.21.5")
ROCM = Variant(
    name="rocm",
    vendor="amd",
    image="r/rocm:1",
    archs=("gfx90a", "gfx942"),
    torch_version="2.10.0+rocm7.0",
    nccl_version="2.26.6",
)
ALL = (CPU, CUDA, OLD_CUDA, ROCM)
HOST = Host(
    cpus=8,
    cpu_model="a processor",
    memory_bytes=2**34,
    kernel="6.12.0",
    interfaces=(Interface(name="eth0", addresses=("10.0.0.7",), up=True),),
)


def nvidia(*archs: str) -> NvmlReport:
    """An answering NVIDIA driver with one device per architecture."""
    devices = tuple(
        Device(vendor="nvidia", index=i, name="NVIDIA", arch=arch, uuid=f"GPU-{i}") for i, arch in enumerate(archs)
    )
    return NvmlReport(library="libnvidia-ml.so.1", loaded=True, driver="580.65.06", cuda="13.0", devices=devices)


def amd(*archs: str) -> KfdReport:
    """A KFD topology with one device per architecture."""
    devices = tuple(
        Device(vendor="amd", index=i, name="AMD", arch=arch, uuid=f"GPU-{i:016x}") for i, arch in enumerate(archs)
    )
    return KfdReport(source="/sys/class/kfd/kfd/topology", driver="6.12.12", devices=devices)


def seen(**changes: Any) -> Observation:
    """A healthy look at a node; without changes, one without devices."""
    values: dict[str, Any] = {"nvml": NvmlReport(missing=True, error="no library"), "host": HOST}
    return Observation(**(values | changes))


def facts(observation: Observation | None = None, **changes: Any) -> Facts:
    """Facts of a node."""
    values: dict[str, Any] = {
        "simulated": False,
        "variants": ALL,
        "cluster_known": True,
        "deep": {},
        "clock_offset_seconds": 0.1,
    }
    return gather("n1", observation or seen(), **(values | changes))


def result(report: Report, variant: Variant, **changes: Any) -> DeepResult:
    """A deep check's result that is about this report's hardware: passed unless changed."""
    own = DeepFacts(
        variant=variant.name,
        vendor=variant.vendor,
        torch_version="2.10.0+x",
        torch_build="x",
        archs=variant.archs,
        nccl_version=variant.nccl_version or "",
        devices=(DeepDevice(index=0, ok=True),),
    )
    values: dict[str, Any] = {
        "image": variant.image,
        "fingerprint": report.fingerprints[variant.vendor],
        "time": NOW,
        "outcome": "passed",
        "facts": own,
    }
    return DeepResult(**(values | changes))
