"""One node for every finding of the catalogue: what it looks like when just that is wrong with it."""

import errno
from pathlib import Path
from typing import Any

from fdl_api.report import (
    DeepDevice,
    DeepFacts,
    Device,
    Faults,
    GoneDevice,
    Host,
    Interface,
    RdmaDevice,
    Sentinel,
)
from fdl_prober import decide
from fdl_prober.box import Box, Torch, VariantFile
from fdl_prober.devfiles import DeviceFile
from fdl_prober.facts import Facts
from fdl_prober.kernellog import Xid
from fdl_prober.kfd import KfdReport
from fdl_prober.limits import Limits
from fdl_prober.nvml import LostDevice, NvmlReport
from fdl_prober.pci import PciGpu
from fdl_prober.ports import Listener
from fdl_prober.processes import Holder
from fdl_prober.settings import Folder
from fdl_prober.volumes import Seen

from .stories import CPU, CUDA, HOST, NOW, amd, facts, nvidia, result, seen

GIB = 1 << 30
H100, MI300 = nvidia("sm_90"), amd("gfx942")
PLUGGED = {"plugged": {"nvidia": 1}, "pci": (PciGpu("0000:10:00.0", "nvidia", "10de:2330", "nvidia"),)}
DATA, CHECKPOINTS = Folder(Path("/data")), Folder(Path("/saves"), "checkpoints")
ETHERNET, OTHER = HOST.interfaces[0], Interface(name="eth1", up=True)


def device(report: NvmlReport | KfdReport, **changes: Any) -> Any:
    """The report with its first device changed."""
    first, *rest = report.devices
    return report.model_copy(update={"devices": (first.model_copy(update=changes), *rest)})


def broken(**faults: Any) -> Facts:
    return facts(seen(nvml=device(H100, faults=Faults(**faults))))


def silent_nvml(error: str, **changes: Any) -> Facts:
    values: dict[str, Any] = {"library": "libnvidia-ml.so.1", "error": error}
    return facts(seen(nvml=NvmlReport(**(values | changes)), **PLUGGED))


def box(**changes: Any) -> Facts:
    """A machine outside of a cluster with an NVIDIA device."""
    observed: dict[str, Any] = {"nvml": H100} | changes.pop("observed", {})
    values: dict[str, Any] = {"nccl": {"/l/libnccl.so.2.27.5": "2.27.5"}, "shared_memory_bytes": 8 * GIB}
    return facts(
        seen(box=Box(**(values | changes)), **observed), local=True, cluster_known=False, variants=(),
        clock_offset_seconds=None,
    )  # fmt: skip


def file(**changes: Any) -> DeviceFile:
    values: dict[str, Any] = {"path": "/dev/kfd", "mode": 0o660, "gid": 109, "group": "render"}
    return DeviceFile(**(values | changes))


def machine(**changes: Any) -> Host:
    return HOST.model_copy(update=changes)


def checked(**changes: Any) -> Facts:
    """A node whose variant went through a deep check; changes are its result's, ``told`` the facts in it."""
    node = seen(nvml=H100)
    told = changes.pop("told", {})
    good = result(decide.report(facts(node), NOW), CUDA)
    assert good.facts is not None
    changes = {"facts": good.facts.model_copy(update=told), "message": "a kernel ran"} | changes
    return facts(node, variants=(CPU, CUDA), deep={"cuda": good.model_copy(update=changes)})


def folder(where: Folder, **found: Any) -> Facts:
    return facts(seen(volumes={where: Seen(**found)}))


def sentinel(**changes: Any) -> Facts:
    return facts(seen(sentinel=Sentinel(path="/v/x", **changes)))


def covered_by(*archs: str) -> Facts:
    return facts(seen(nvml=H100), variants=(CPU, CUDA.model_copy(update={"archs": archs})))


TWO_CARDS = (PciGpu("0000:10:00.0", "nvidia"), PciGpu("0000:20:00.0", "nvidia"))
CPX = tuple(
    Device(vendor="amd", index=i, arch="gfx942", uuid=f"G/{i}", pci="0000:05:00.0", partition_mode="CPX")
    for i in range(8)
)

FINDINGS: dict[str, Facts] = {
    # devices
    "gpu-survey/unknown-architecture": facts(seen(nvml=nvidia("", "sm_90", ""))),
    "gpu-driver/nvidia-not-loaded": facts(seen(plugged={"nvidia": 1})),
    "gpu-driver/nvidia-mismatch": silent_nvml("Driver/library version mismatch", mismatch=True, driver="580.1"),
    "gpu-driver/nvidia-broken": facts(seen(nvml=nvidia(), plugged={"nvidia": 1})),
    "gpu-driver/nouveau": facts(
        seen(plugged={"nvidia": 1}, pci=(PciGpu("0000:10:00.0", "nvidia", "10de:1c03", "nouveau"),))
    ),
    "gpu-driver/amd-not-loaded": facts(seen(plugged={"amd": 1})),
    "gpu-driver/amd-hidden": facts(seen(kfd=KfdReport(source="/s", hidden=2), plugged={"amd": 2})),
    "gpu-driver/no-answer": silent_nvml("NVML did not answer within 30 s", unknown=True),
    "gpu-driver/nonsense": silent_nvml("the look at NVML was ended by SIGSEGV", unknown=True),
    "device-files/closed": facts(seen(nvml=H100, device_files=(file(path="/dev/nvidia0", mode=0o600),))),
    "device-files/group-needed": facts(seen(kfd=MI300, device_files=(file(),))),
    "device-files/not-openable": box(
        observed={"nvml": NvmlReport(), "kfd": MI300, "device_files": (file(failure=errno.EACCES),)}, hip="/h"
    ),
    "device-files/not-allowed": box(observed={"device_files": (file(mode=0o666, failure=errno.EPERM),)}),
    "device-files/absent": box(observed={"device_files": (file(exists=False),)}),
    "rocm-userspace/missing": box(observed={"nvml": NvmlReport(), "kfd": MI300}),
    "mixed-vendors/mixed": facts(seen(nvml=H100, kfd=MI300)),
    "unified-memory/shared": facts(seen(kfd=device(MI300, unified=True, name="an APU"))),
    "device-presence/vanished": facts(
        seen(nvml=H100), known=(GoneDevice(vendor="nvidia", uuid="GPU-7", name="NVIDIA", pci="0000:70:00.0"),)
    ),
    "device-presence/lost": facts(
        seen(nvml=H100.model_copy(update={"lost": (LostDevice(index=1, error="GPU is lost"),)}))
    ),
    "device-presence/unclaimed": facts(
        seen(nvml=device(H100, pci="0000:10:00.0"), plugged={"nvidia": 2}, pci=TWO_CARDS)
    ),
    "device-errors/xid": facts(seen(nvml=device(H100, pci="0000:10:00.0"), xids=(Xid("0000:10:00.0", 79),))),
    "device-errors/xid-noted": facts(seen(nvml=H100, xids=(Xid("0000:10:00.0", 94),))),
    "device-errors/recovery": broken(recovery="gpu-reset"),
    "device-errors/ecc-uncorrected": broken(ecc_uncorrected=3),
    "device-errors/remap-pending": broken(remap_pending=True),
    "device-errors/remap-failed": broken(remap_pending=True, remap_failed=True),
    "mig/instances": facts(seen(nvml=device(H100, mig=True, partitions=("1g.10gb", "1g.10gb")))),
    "mig/no-instances": facts(seen(nvml=device(H100, mig=True))),
    "mig/change-pending": facts(seen(nvml=device(H100, mig_pending=True))),
    "partitions/partitioned": facts(seen(kfd=MI300.model_copy(update={"devices": CPX}))),
    # libtorch
    "variant-metadata/cluster-unknown": facts(variants=(), cluster_known=False),
    "variant-metadata/no-variant": facts(seen(kfd=MI300), variants=(CPU,)),
    "variant-metadata/archs-differ": checked(told={"archs": ("sm_80", "sm_90")}),
    "variant-image/not-pulled": facts(image_trouble={"cuda": "ImagePullBackOff (r/cuda:1)"}),
    "variant-file/missing": box(variant_file=VariantFile("/v.json", error="No such file or directory")),
    "variant-file/garbage": box(variant_file=VariantFile("/v.json", text='{"name": "cuda"')),
    "variant-file/not-in-image": checked(told={"variant_file": "it cannot be read: No such file or directory"}),
    "kernel-coverage/gap": covered_by("sm_70"),
    "kernel-coverage/ptx-only": covered_by("sm_70", "compute_70"),
    "kernel-coverage/not-comparable": facts(seen(nvml=nvidia(""))),
    "deep-check/failed": checked(outcome="failed", message="device 0: wrong"),
    "deep-check/no-result": checked(outcome="no-result", message="evicted", facts=None),
    "glibc/too-old": box(observed={"host": machine(glibc="glibc 2.27")}, torch=Torch("2.10.0", "cu128", (2, 28))),
    # nccl
    "nccl-library/none-loaded": checked(told={"nccl_version": ""}),
    "nccl-library/differs": checked(told={"nccl_version": "2.28.1"}),
    "nccl-library/not-found": box(nccl={}),
    "nccl-library/several": box(nccl={"/a/libnccl.so.2": "2.21.5", "/b/libnccl.so.2": "2.27.5"}),
    "nccl-environment/ignore-mismatch": box(environment={"NCCL_IGNORE_NET_MISMATCH": "1"}),
    "nccl-environment/protocol": box(environment={"NCCL_PROTO": "LL128,Simple"}),
    "nccl-environment/contradiction": box(environment={"NCCL_NET": "IB", "NCCL_IB_DISABLE": "1"}),
    "nccl-environment/wrong-interface": box(environment={"NCCL_SOCKET_IFNAME": "ib"}),
    "nccl-environment/slow-path": box(environment={"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}),
    "nccl-environment/visible-devices": box(environment={"CUDA_VISIBLE_DEVICES": "0"}),
    # fabric
    "interfaces/none": facts(seen(host=machine(interfaces=(Interface(name="eth0", up=False),)))),
    "socket-interface/missing": facts(socket_interface="ib0"),
    "socket-interface/down": facts(
        seen(host=machine(interfaces=(ETHERNET, Interface(name="ib0", up=False)))), socket_interface="ib0"
    ),
    "socket-interface/no-address": facts(seen(host=machine(interfaces=(ETHERNET, OTHER))), socket_interface="eth1"),
    "socket-interface/loopback": facts(socket_interface="lo"),
    "rdma/port-down": facts(seen(host=machine(rdma=(RdmaDevice(name="mlx5_0"),)))),
    "rdma/locked-memory": facts(
        seen(host=machine(rdma=(RdmaDevice(name="mlx5_0", active_ports=1),), locked_memory_bytes=64 << 10))
    ),
    "shared-memory/small": box(shared_memory_bytes=64 << 20),
    # data
    "data-path/absent": folder(DATA, step="look", errno=errno.ENOENT),
    "data-path/not-a-folder": folder(DATA, step="look", errno=errno.ENOTDIR),
    "data-path/no-permission": folder(DATA, step="list", errno=errno.EACCES),
    "data-path/read-only": folder(CHECKPOINTS, step="write", errno=errno.EROFS, free_bytes=99 * GIB),
    "data-path/stale": folder(DATA, step="list", errno=errno.ESTALE),
    "data-path/broken": folder(DATA, step="read", errno=errno.EIO),
    "data-path/no-answer": folder(DATA, error="reading did not end within 20 s"),
    "shared-volume/unreadable": sentinel(error="No such file or directory", errno=errno.ENOENT),
    "shared-volume/stale": sentinel(error="Stale file handle", errno=errno.ESTALE),
    "shared-volume/no-answer": sentinel(error="reading did not end within 20 s", answered=False),
    "disk-space/full": folder(CHECKPOINTS, step="write", errno=errno.ENOSPC, free_bytes=0),
    "disk-space/low": folder(CHECKPOINTS, free_bytes=5 * GIB),
    "read-speed/slow": folder(DATA, bytes_per_second=3_000_000),
    # host
    "clock/skewed": facts(clock_offset_seconds=7.0),
    "clock/far-off": facts(clock_offset_seconds=-40.0),
    "ports/in-use": box(listeners=(Listener(7337, "1", "python (12)"),)),
    "stale-processes/holding": facts(
        seen(nvml=H100, holders=(Holder(pid=7, name="python", vendor="nvidia", bytes=3 * GIB),))
    ),
    "limits/memory": box(limits=Limits(memory_bytes=GIB)),
    "limits/cpu": box(limits=Limits(cpus=0.5)),
    "limits/processes": box(limits=Limits(processes=100)),
    "host-survey/no-answer": facts(seen(silent={"host": "it did not end within 10 s"}, host=Host())),
}


def deep_error(error: str) -> Facts:
    """A node whose deep check could not even load torch."""
    told = DeepFacts(
        variant="cuda", vendor="nvidia", error=error, glibc="glibc 2.27", devices=(DeepDevice(index=0, ok=False),)
    )
    return checked(outcome="failed", message=error, facts=told)
