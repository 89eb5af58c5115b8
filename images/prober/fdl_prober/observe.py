"""One look at the node: every source, no judgement."""

from dataclasses import dataclass, field
from pathlib import Path

from fdl_api.report import Host, Sentinel
from fdl_prober import host, kfd, nvml, pci, sentinel
from fdl_prober.kfd import KfdReport
from fdl_prober.nvml import NvmlReport
from fdl_prober.settings import Settings


@dataclass(frozen=True, slots=True)
class Observation:
    """What was seen.

    Attributes:
        nvml: NVIDIA's answer.
        kfd: AMD's topology.
        plugged: GPUs by PCI identity, by vendor.
        host: the machine.
        closed_devices: device files that members could not open.
        sentinel: the shared volume's file, if one is configured.
    """

    nvml: NvmlReport = field(default_factory=NvmlReport)
    kfd: KfdReport = field(default_factory=KfdReport)
    plugged: dict[str, int] = field(default_factory=dict)
    host: Host = field(default_factory=Host)
    closed_devices: tuple[str, ...] = ()
    sentinel: Sentinel | None = None


def sources(settings: Settings, simulated: bool) -> tuple[tuple[str, ...], Path]:
    """NVIDIA driver roots and AMD's sysfs root. Simulated ones count only on a node that is labelled as simulated.

    On such a node they replace the real ones: what is not simulated there is not there.
    """
    if not simulated:
        return settings.driver_roots, settings.sysfs_root
    return (str(settings.simulated_root / "nvidia"),), settings.simulated_root / "amd/sys"


async def observe(settings: Settings, simulated: bool) -> Observation:
    """Look at the node once. Every step has its own time limit.

    Args:
        settings: where to look.
        simulated: whether the node is labelled as one with simulated devices.
    """
    roots, sysfs = sources(settings, simulated)
    answer = await nvml.observe(roots)
    topology = kfd.observe(sysfs)
    files = [device.device_node for device in (*answer.devices, *topology.devices) if device.device_node]
    files += ["/dev/kfd"] if topology.devices else []
    files += ["/dev/nvidiactl"] if answer.devices else []
    return Observation(
        nvml=answer,
        kfd=topology,
        plugged={} if simulated else pci.gpus(settings.sysfs_root),
        host=host.observe(settings.sysfs_root, settings.proc_root, settings.driver_roots),
        closed_devices=tuple(
            host.closed_device_files(settings.dev_root / file.removeprefix("/dev/") for file in files)
            if not simulated
            else ()
        ),
        sentinel=await sentinel.observe(settings.sentinel) if settings.sentinel else None,
    )
