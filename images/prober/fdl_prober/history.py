"""Devices that were there since the machine started, and those of them that are gone. Pure."""

from collections.abc import Collection, Iterable

from fdl_api.report import Device, GoneDevice, Report


def _identity(device: Device | GoneDevice) -> tuple[str, str]:
    """A device is told by its place on the bus: its partitions come and go with a setting, its place does not."""
    return device.vendor, device.pci or device.uuid


def _known(device: Device) -> GoneDevice:
    return GoneDevice(vendor=device.vendor, uuid=device.uuid, name=device.name, pci=device.pci)


def remembered(before: Report | None, boot_id: str) -> tuple[GoneDevice, ...]:
    """Devices that an earlier report of the same start of the machine knew; none after a restart."""
    if before is None or not boot_id or before.host.boot_id != boot_id:
        return ()
    return update(before.gone, before.devices)


def update(known: Iterable[GoneDevice], devices: Iterable[Device]) -> tuple[GoneDevice, ...]:
    """What is known after a look: all that was, and all that is."""
    found = {_identity(device): device for device in known}
    found |= {_identity(device): _known(device) for device in devices if device.pci or device.uuid}
    return tuple(found.values())


def gone(known: Iterable[GoneDevice], devices: Iterable[Device], answering: Collection[str]) -> tuple[GoneDevice, ...]:
    """Known devices that are not there, of vendors whose driver answers: of the others nothing is known."""
    present = {_identity(device) for device in devices}
    return tuple(device for device in known if device.vendor in answering and _identity(device) not in present)
