"""Checks of GPUs and their drivers: each a pure function from facts to what a person should know."""

import errno
import re
from collections.abc import Iterable, Iterator
from typing import Final

from fdl_api.checks import devices as catalogue
from fdl_api.report import Check, Device, Driver
from fdl_prober.devfiles import DeviceFile
from fdl_prober.facts import Facts, missing_libraries

_ROCM_LIBRARY: Final = re.compile(r"(lib(?:amdhip64|hsa-runtime64|hip\w+|roc\w+|hiprtc)\.so[.\d]*): cannot open")
_BRAND: Final = {"nvidia": "NVIDIA", "amd": "AMD"}

FATAL_XIDS: Final = frozenset({48, 62, 64, 79, 95, 119, 120, 136, 140, 143})
"""Xids after which the device does not work on before a reset: uncorrected and uncontained memory errors (48, 95, 140),
a failed row remap (64), halted controllers (62, 119, 120, 136, 143), a device off the bus (79)."""

NOTED_XIDS: Final = frozenset({63, 74, 92, 94})
"""Xids that tell of a device or link that begins to fail: a remapped row, NVLink, many corrected errors, a contained
error. All others are application errors or belong to one of these."""


def ranges(numbers: Iterable[int]) -> str:
    """Numbers for people: ``0-3, 5``."""
    found: list[list[int]] = []
    for number in sorted(set(numbers)):
        if found and number == found[-1][-1] + 1:
            found[-1] = [found[-1][0], number]
        else:
            found.append([number])
    return ", ".join("-".join(str(number) for number in run) for run in found)


def _subject(vendor: str, devices: Iterable[Device]) -> str:
    return f"{vendor} {ranges(device.index for device in devices)}"


def gpu_survey(facts: Facts) -> Iterator[Check]:
    """Which devices work; a device without a known architecture cannot be matched with a variant."""
    counts = ", ".join(f"{len(facts.of(vendor))} {_BRAND[vendor]}" for vendor in facts.vendors)
    kind = "device" if sum(len(facts.of(vendor)) for vendor in facts.vendors) == 1 else "devices"
    yield catalogue.GPU_SURVEY.passed(f"{counts or 'no'} {'simulated ' if facts.simulated else ''}{kind}")
    for vendor in facts.vendors:
        unknown = [device for device in facts.of(vendor) if not device.arch]
        if unknown:
            message = "the driver does not tell the architecture, so no variant can be matched"
            told = {device.pci or str(device.index): f"{device.name} {device.pci_id}".strip() for device in unknown[:8]}
            yield catalogue.GPU_SURVEY.found("unknown-architecture", message, _subject(vendor, unknown), told)


def _nvidia_reason(facts: Facts) -> str:
    answer = facts.seen.nvml
    if any(gpu.vendor == "nvidia" and gpu.driver == "nouveau" for gpu in facts.seen.pci):
        return "nouveau"
    if answer.unknown:
        return "no-answer" if "did not answer" in answer.error else "nonsense"
    if answer.mismatch:
        return "nvidia-mismatch"
    if answer.loaded or (answer.library and not answer.missing):
        return "nvidia-broken"
    return "nvidia-not-loaded"


def _amd_reason(facts: Facts) -> str:
    if "kfd" in facts.seen.silent:
        return "no-answer"
    if facts.seen.kfd.error:
        return "nonsense"
    return "amd-hidden" if facts.seen.kfd.hidden else "amd-not-loaded"


def gpu_driver(facts: Facts) -> Iterator[Check]:
    """Whether each vendor's driver answers for the GPUs that are plugged in.

    Not blocking: without the driver the vendor's labels are missing, which keeps its members away, and members on the
    processor do not need it.
    """
    for vendor, driver in facts.drivers.items():
        if driver.state != "ready":
            reason = _nvidia_reason(facts) if vendor == "nvidia" else _amd_reason(facts)
            message = f"driver-not-ready: {driver.detail}"
            yield catalogue.GPU_DRIVER.found(reason, message, vendor, _driver_evidence(facts, vendor, driver))
        elif facts.of(vendor):
            yield catalogue.GPU_DRIVER.passed(f"driver {driver.version or 'of unknown version'} answers", vendor)


def _driver_evidence(facts: Facts, vendor: str, driver: Driver) -> dict[str, str]:
    held = sorted({gpu.driver or "none" for gpu in facts.seen.pci if gpu.vendor == vendor})
    told = {
        "source": driver.source,
        "plugged": str(facts.seen.plugged.get(vendor, "")),
        "kernelDriver": ", ".join(held),
    }
    return {key: value for key, value in told.items() if value}


def _file_finding(file: DeviceFile, local: bool) -> str:
    """What is wrong with a device file; empty for nothing."""
    if not file.exists:
        return "absent" if local else ""
    if not file.by_group and not file.everybody:
        return "closed" if not local else "not-openable" if file.failure else ""
    if local:
        # EPERM: the mode allows it and the device cgroup does not.
        return {0: "", errno.EPERM: "not-allowed", errno.EACCES: "not-openable"}.get(file.failure, "")
    return "" if file.everybody else "group-needed"


def device_files(facts: Facts) -> Iterator[Check]:
    """Whether members, which do not run as root, may open the device files; outside of a cluster, whether we may."""
    found: dict[str, list[DeviceFile]] = {}
    for file in facts.seen.device_files:
        found.setdefault(_file_finding(file, facts.local), []).append(file)
    good = found.pop("", [])
    for reason, files in found.items():
        for file in files:
            told = f"{file.path} is not there" if reason == "absent" else file.told()
            yield catalogue.DEVICE_FILES.found(reason, told, file.path)
    if good and not found and any(file.exists for file in good):
        yield catalogue.DEVICE_FILES.passed(f"{sum(file.exists for file in good)} file(s) can be opened")


def rocm_userspace(facts: Facts) -> Iterator[Check]:
    """Whether there is a HIP runtime for AMD's devices; in a cluster the trainer's image has to bring it."""
    for name, library in missing_libraries(facts, _ROCM_LIBRARY):
        yield catalogue.ROCM_USERSPACE.found("missing", f"torch does not load without {library}", name)
    box = facts.seen.box
    if box is None or not facts.of("amd") or facts.unseen("installed-hip"):
        return
    if box.hip:
        yield catalogue.ROCM_USERSPACE.passed(box.hip)
    else:
        yield catalogue.ROCM_USERSPACE.found("missing", "no libamdhip64.so was found")


def mixed_vendors(facts: Facts) -> Iterator[Check]:
    """Two vendors in one machine: works, and is easily taken for one."""
    if len(facts.vendors) > 1:
        counts = " and ".join(f"{len(facts.of(vendor))} {_BRAND[vendor]}" for vendor in facts.vendors)
        yield catalogue.MIXED_VENDORS.found("mixed", f"{counts} devices are in one machine")


def unified_memory(facts: Facts) -> Iterator[Check]:
    """Devices that use the machine's main memory."""
    for vendor in facts.vendors:
        shared = [device for device in facts.of(vendor) if device.unified]
        if shared:
            names = ", ".join(sorted({device.name for device in shared}))
            yield catalogue.UNIFIED_MEMORY.found("shared", f"{names}: main memory", _subject(vendor, shared))


def device_presence(facts: Facts) -> Iterator[Check]:
    """Devices that vanished, do not answer, or are plugged in and not listed."""
    info, seen = catalogue.DEVICE_PRESENCE, facts.seen
    for device in facts.gone:
        yield info.found("vanished", f"{device.name} was there and is gone", f"{device.vendor} {device.pci}".strip())
    for lost in seen.nvml.lost:
        yield info.found("lost", f"the driver says: {lost.error}", f"nvidia {lost.index}")
    for vendor, driver in facts.drivers.items():
        listed = {device.pci for device in facts.of(vendor)} | {gone.pci for gone in facts.gone}
        silent = len(seen.nvml.lost) if vendor == "nvidia" else seen.kfd.hidden
        plugged = [gpu for gpu in seen.pci if gpu.vendor == vendor and not gpu.lent]
        missing = [gpu for gpu in plugged if gpu.address not in listed]
        if driver.state == "ready" and len(missing) > silent:
            addresses = ", ".join(gpu.address for gpu in missing[:8])
            message = f"{len(missing)} of {len(plugged)} GPUs on the bus do not answer: {addresses}"
            yield info.found("unclaimed", message, vendor)


def _xid_device(facts: Facts, pci: str) -> str:
    return next((f"nvidia {device.index}" for device in facts.devices if device.pci == pci), f"nvidia {pci}")


def device_errors(facts: Facts) -> Iterator[Check]:
    """Faults of devices: what the driver wrote to the kernel log, and what it counts."""
    info = catalogue.DEVICE_ERRORS
    for xid in facts.seen.xids:
        reason = "xid" if xid.number in FATAL_XIDS else "xid-noted" if xid.number in NOTED_XIDS else ""
        if reason:
            yield info.found(
                reason, f"Xid {xid.number} in the kernel log", _xid_device(facts, xid.pci), {"pci": xid.pci}
            )
    for device in facts.devices:
        subject, faults = f"{device.vendor} {device.index}", device.faults
        if faults.recovery:
            yield info.found("recovery", f"the driver asks for: {faults.recovery}", subject)
        if faults.ecc_uncorrected:
            told = {"uncorrected": faults.ecc_uncorrected, "device": device.uuid}
            yield info.found("ecc-uncorrected", "memory errors that could not be corrected", subject, told)
        if faults.remap_failed:
            yield info.found("remap-failed", "broken memory rows could not be replaced", subject)
        elif faults.remap_pending:
            yield info.found("remap-pending", "memory rows wait to be replaced", subject)


def mig(facts: Facts) -> Iterator[Check]:
    """MIG instances have resource names of their own."""
    cut: dict[tuple[str, str], list[Device]] = {}
    for device in facts.of("nvidia"):
        if device.mig_pending:
            cut.setdefault(("change-pending", "MIG mode waits for a reset of the device"), []).append(device)
        if device.mig and device.partitions:
            names = ", ".join(sorted(set(device.partitions)))
            message = f"the device is cut into {len(device.partitions)} MIG instance(s): {names}"
            cut.setdefault(("instances", message), []).append(device)
        elif device.mig:
            cut.setdefault(("no-instances", "MIG mode is on and there is no instance"), []).append(device)
    for (reason, message), devices in cut.items():
        yield catalogue.MIG.found(reason, message, _subject("nvidia", devices))


def partitions(facts: Facts) -> Iterator[Check]:
    """AMD cards that are cut into several devices."""
    modes: dict[str, list[Device]] = {}
    for device in facts.of("amd"):
        if device.partition_mode:
            modes.setdefault(device.partition_mode, []).append(device)
    for mode, devices in modes.items():
        cards = len({device.pci for device in devices})
        message = f"{cards} card(s) in mode {mode} count as {len(devices)} devices"
        yield catalogue.PARTITIONS.found("partitioned", message, _subject("amd", devices))


ALL = (
    gpu_survey,
    gpu_driver,
    device_files,
    rocm_userspace,
    mixed_vendors,
    unified_memory,
    device_presence,
    device_errors,
    mig,
    partitions,
)
