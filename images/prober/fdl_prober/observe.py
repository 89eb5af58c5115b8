"""One look at the node: every source with its own time limit, no judgement."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from fdl_api.report import Host, Sentinel
from fdl_prober import box, devfiles, host, hotplug, kfd, nvml, pci, processes
from fdl_prober.bounded import Bounded, StuckError
from fdl_prober.box import Box
from fdl_prober.devfiles import DeviceFile
from fdl_prober.kernellog import KernelLog, Xid
from fdl_prober.kfd import KfdReport
from fdl_prober.nvml import NvmlReport
from fdl_prober.parts import words
from fdl_prober.pci import PciGpu
from fdl_prober.processes import Holder, Holding
from fdl_prober.settings import Folder, Settings
from fdl_prober.volumes import Folders, Seen, SharedFile

LIMIT_SECONDS = 10.0
KFD_FILE, NVIDIA_FILE = "/dev/kfd", "/dev/nvidiactl"
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Observation:
    """What was seen.

    Attributes:
        nvml: NVIDIA's answer.
        kfd: AMD's topology.
        plugged: number of GPUs by PCI identity, by vendor.
        pci: those GPUs.
        host: the machine.
        device_files: files that open the devices.
        xids: NVIDIA's messages in the kernel log.
        holders: processes that hold device memory, where they are asked for.
        sentinel: the shared volume's file, if one is configured.
        volumes: folders that the prober was told of.
        box: what counts only outside of a cluster.
        silent: sources, and parts of them, that gave no answer, with the reason.
    """

    nvml: NvmlReport = field(default_factory=NvmlReport)
    kfd: KfdReport = field(default_factory=KfdReport)
    plugged: Mapping[str, int] = field(default_factory=dict)
    pci: tuple[PciGpu, ...] = ()
    host: Host = field(default_factory=Host)
    device_files: tuple[DeviceFile, ...] = ()
    xids: tuple[Xid, ...] = ()
    holders: tuple[Holder, ...] = ()
    sentinel: Sentinel | None = None
    volumes: Mapping[Folder, Seen] = field(default_factory=dict)
    box: Box | None = None
    silent: Mapping[str, str] = field(default_factory=dict)


def sources(settings: Settings, simulated: bool) -> tuple[tuple[str, ...], Path]:
    """NVIDIA driver roots and AMD's sysfs root. Simulated ones count only on a node that is labelled as simulated.

    On such a node they replace the real ones: what is not simulated there is not there.
    """
    if not simulated:
        return settings.driver_roots, settings.sysfs_root
    return (str(settings.simulated_root / "nvidia"),), settings.simulated_root / "amd/sys"


class Observer:
    """Looks again and again; remembers what is stuck, how far the kernel log was read, and what of volumes is known.

    Args:
        settings: where to look.
        local: whether this is a machine outside of a cluster.
        clock: seconds that never go back.
    """

    def __init__(self, settings: Settings, local: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._local = local
        self._bounded = Bounded()
        self._log = KernelLog(settings.kernel_log)
        self._folders = Folders(settings.folders, clock)
        self._shared = SharedFile(settings.sentinel, clock) if settings.sentinel else None

    async def _ask(
        self, silent: dict[str, str], name: str, empty: Found, look: Callable[..., Found], *args: Any
    ) -> Found:
        """A look's answer, or an empty one and its name among the silent."""
        try:
            return await self._bounded.run(name, LIMIT_SECONDS, look, *args)
        except StuckError as error:
            silent[name] = str(error)
        except Exception as error:  # whatever a file of a broken driver brings about is no reason to stop
            silent[name] = words(error)
        return empty

    async def marks(self, simulated: bool) -> tuple[hotplug.Mark, ...] | None:
        """What tells a change of hardware or drivers; ``None`` where it cannot be asked, which is no change."""
        try:
            return await self._bounded.run("marks", LIMIT_SECONDS, hotplug.marks, self._settings, simulated)
        except Exception:  # as for a look; what is wrong is told there
            return None

    async def look(self, simulated: bool) -> Observation:
        """Look at the node once.

        Args:
            simulated: whether the node is labelled as one with simulated devices.
        """
        settings, silent = self._settings, dict[str, str]()
        roots, sysfs = sources(settings, simulated)
        answer = await nvml.observe(roots, processes=not simulated and settings.stale_processes)
        topology = await self._ask(silent, "kfd", KfdReport(), kfd.observe, sysfs)
        real = not simulated
        plugged = await self._plugged(silent) if real else ()
        nothing: tuple[Host, Mapping[str, str]] = host.known(), {}
        machine, parts = await self._ask(
            silent, "host", nothing, host.observe, settings.sysfs_root, settings.proc_root, settings.driver_roots
        )
        silent |= parts
        files = self._files(answer, topology, simulated)
        volumes, sentinel = await asyncio.gather(self._folders.look(), self._sentinel())
        return Observation(
            nvml=answer,
            kfd=topology,
            plugged=pci.count(plugged),
            pci=plugged,
            host=machine,
            device_files=await self._ask(silent, "device-files", (), devfiles.observe, files, self._local),
            xids=await self._ask(silent, "kernel-log", (), self._log.look) if real and answer.devices else (),
            holders=await self._holders(silent, answer) if real and settings.stale_processes else (),
            sentinel=sentinel,
            volumes=volumes,
            box=await self._box(silent) if self._local else None,
            silent=silent,
        )

    async def _plugged(self, silent: dict[str, str]) -> tuple[PciGpu, ...]:
        nothing: tuple[tuple[PciGpu, ...], str] = (), ""
        found, untold = await self._ask(silent, "pci", nothing, pci.gpus, self._settings.sysfs_root)
        if untold:
            silent["pci"] = untold
        return found

    def _files(self, answer: NvmlReport, topology: KfdReport, simulated: bool) -> list[Path]:
        """Files that open the devices; those of simulated devices lie beside their drivers."""
        found: list[Path] = []
        for vendor, devices, common in (("nvidia", answer.devices, NVIDIA_FILE), ("amd", topology.devices, KFD_FILE)):
            root = self._settings.simulated_root / vendor / "dev" if simulated else self._settings.dev_root
            names = [*(device.device_node for device in devices if device.device_node), *([common] if devices else ())]
            found += [root / name.removeprefix("/dev/") for name in dict.fromkeys(names)]
        return found

    async def _holders(self, silent: dict[str, str], answer: NvmlReport) -> tuple[Holder, ...]:
        held = await self._ask(silent, "processes", list[Holding](), processes.kfd_holdings, self._settings.sysfs_root)
        every = [*answer.holdings, *held]
        return await self._ask(silent, "processes", (), processes.holders, self._settings.proc_root, every)

    async def _sentinel(self) -> Sentinel | None:
        return await self._shared.look() if self._shared is not None else None

    async def _box(self, silent: dict[str, str]) -> Box | None:
        own = self._settings
        asked = (own.sysfs_root, own.proc_root, own.ports, own.variant_file)
        nothing: tuple[Box | None, Mapping[str, str]] = None, {}
        found, parts = await self._ask(silent, "box", nothing, box.observe, *asked)
        silent |= parts
        return found
