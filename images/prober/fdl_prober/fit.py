"""A report within what an API server stores. Pure.

All annotations of an object together may have 256 KiB, and what a node has need not be sane: interfaces with thousands
of addresses, drivers that invent partitions. A report that is refused would be worse than one with less in it.
"""

from collections.abc import Callable
from typing import Final

from fdl_api.report import Device, Host, Report
from fdl_prober.text import plain

MAX_BYTES: Final = 200_000
FEW: Final = 16
SOME: Final = 64
MANY: Final = 512


def fitted(report: Report, limit: int = MAX_BYTES) -> Report:
    """The report, with less and less in it until its text has at most ``limit`` bytes.

    First go parts of long lists, then names and what findings were concluded from, then findings. Whether the node is
    ready is decided before, by all of them.
    """
    for step in _STEPS:
        if len(report.render().encode()) <= limit:
            break
        report = step(report)
    return report


def _host(host: Host) -> Host:
    return host.model_copy(
        update={
            "cpu_model": plain(host.cpu_model),
            "kernel": plain(host.kernel),
            "boot_id": plain(host.boot_id),
            "interfaces": tuple(
                interface.model_copy(update={"addresses": interface.addresses[:FEW]})
                for interface in host.interfaces[:SOME]
            ),
            "rdma": host.rdma[:SOME],
            "nccl": dict(list(host.nccl.items())[:FEW]),
        }
    )


def _shorter_lists(report: Report) -> Report:
    devices = tuple(
        device.model_copy(update={"partitions": device.partitions[: FEW // 2]}) for device in report.devices[:MANY]
    )
    return report.model_copy(update={"host": _host(report.host), "devices": devices, "gone": report.gone[:SOME]})


def _bare(device: Device) -> Device:
    return device.model_copy(update={"name": plain(device.name, FEW), "partitions": (), "device_node": ""})


def _without_names(report: Report) -> Report:
    checks = tuple(check.model_copy(update={"evidence": {}}) for check in report.checks)
    devices = tuple(_bare(device) for device in report.devices)
    return report.model_copy(update={"devices": devices, "checks": checks})


def _only_problems(report: Report) -> Report:
    worse = [check for check in report.checks if check.severity != "pass"]
    return report.model_copy(update={"checks": tuple(worse[:SOME])})


_STEPS: Final[tuple[Callable[[Report], Report], ...]] = (_shorter_lists, _without_names, _only_problems)
