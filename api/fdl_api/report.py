"""A node's report: what its prober saw, when, and what to do about it.

It is JSON in the node annotation :data:`fdl_api.labels.REPORT`. Labels say the same in short, for selectors; only the
report has an age and reasons. Written by the node's prober, read by the operator and by ``fdl``.
"""

import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, AwareDatetime, Field

from fdl_api import reading
from fdl_api.labels import REPORT
from fdl_api.model import StatusModel

MAX_TERMINATION_BYTES: Final = 4000
"""The kubelet keeps 4,096 bytes of a termination message."""

Severity = Literal["pass", "warn", "unknown", "fail"]
SEVERITIES: Final[tuple[Severity, ...]] = ("pass", "warn", "unknown", "fail")
"""From good to bad. ``unknown``: it could not be looked at, and nothing was concluded from that."""

Persistence = Literal["transient", "permanent"]
"""transient: it may pass without anybody touching this machine; permanent: this machine needs a person."""

Outcome = Literal["passed", "failed", "no-result"]


def _countable(moment: datetime) -> datetime:
    """A time that can be counted with: sums of times near the ends of the calendar are errors.

    Raises:
        ValueError: it is before 1970 or after 9998.
    """
    if not 1970 <= moment.year <= 9998:
        raise ValueError("the year is none of 1970 to 9998")
    return moment


Moment = Annotated[AwareDatetime, AfterValidator(_countable)]
"""A time with its zone. What a node writes is not believed: a report with another kind of time is none."""


class Check(StatusModel):
    """One thing that was looked at."""

    name: str = Field(description="Stable name, one of docs/reference/checks.md.")
    reason: str = Field(
        default="", description="Stable name of what was found, one of those of the check; empty for pass."
    )
    severity: Severity = Field(
        description="pass; warn: works, but a person should know; unknown: could not be looked at; fail: does not work."
    )
    subject: str = Field(default="", description="The device, variant or interface that it is about, if it is one.")
    message: str = Field(description="What was seen.")
    remedy: str = Field(default="", description="What to do about it; empty for pass.")
    persistence: Persistence | None = Field(
        default=None,
        alias="class",
        description="transient: may pass without a change of this machine; permanent: needs a person. Absent for pass.",
    )
    blocking: bool = Field(default=False, description="Whether a fail keeps every member off the node.")
    evidence: dict[str, str] = Field(default_factory=dict, description="What it was concluded from, by name.")


class Faults(StatusModel):
    """Faults of a device's memory since its driver was loaded."""

    ecc_uncorrected: int = Field(default=0, description="Errors that could not be corrected.")
    remap_pending: bool = Field(default=False, description="Whether memory is replaced at the next reset.")
    remap_failed: bool = Field(default=False, description="Whether no spare memory is left to replace what is broken.")
    recovery: str = Field(default="", description="What the driver asks for, e.g. gpu-reset; empty for nothing.")


class Device(StatusModel):
    """A GPU as its driver describes it."""

    vendor: Literal["nvidia", "amd"]
    index: int = Field(description="Number of the device, in the driver's order.")
    name: str = Field(default="unknown", description="Product name; unknown is not absent.")
    arch: str = Field(default="", description="Architecture token, e.g. sm_90 or gfx942; empty when unknown.")
    uuid: str = Field(default="", description="The driver's own identity of the device.")
    memory_bytes: int = Field(default=0, description="Device memory, in bytes; 0 when unknown.")
    pci: str = Field(default="", description="PCI address, e.g. 0000:c1:00.0.")
    pci_id: str = Field(default="", description="PCI vendor and device, e.g. 1002:74a1, where the kernel tells them.")
    device_node: str = Field(default="", description="File in /dev that opens it, e.g. /dev/nvidia0.")
    unified: bool = Field(default=False, description="Whether its memory is the machine's main memory.")
    mig: bool = Field(default=False, description="Whether it is cut into MIG instances.")
    mig_pending: bool = Field(default=False, description="Whether MIG mode changes at the next reset.")
    partitions: tuple[str, ...] = Field(default=(), description="Names of its MIG instances.")
    partition_mode: str = Field(default="", description="AMD's compute partitioning, e.g. CPX; empty for none.")
    faults: Faults = Field(default_factory=Faults, description="Faults of its memory.")


class Driver(StatusModel):
    """A vendor's driver on the node."""

    state: Literal["ready", "not-ready", "absent"]
    version: str = Field(default="", description="Version of the kernel driver.")
    runtime: str = Field(default="", description="Newest CUDA version that the driver supports, e.g. 13.2.")
    source: str = Field(default="", description="Library or folder that was asked.")
    detail: str = Field(default="", description="Why it is not ready.")


class Interface(StatusModel):
    """A network interface as members on this node see theirs."""

    name: str
    addresses: tuple[str, ...] = ()
    speed_mbps: int = Field(default=0, description="Link speed in Mbit/s; 0 when the driver does not say.")
    mtu: int = Field(default=0, description="Largest packet in bytes; 0 when unknown.")
    up: bool = False


class RdmaDevice(StatusModel):
    """An RDMA device (InfiniBand, RoCE)."""

    name: str = Field(description="As in NCCL_IB_HCA, e.g. mlx5_0.")
    active_ports: int = Field(default=0, description="Ports that are active.")
    rate: str = Field(default="", description="Rate of its first active port, in the kernel's words.")
    link: str = Field(default="", description="InfiniBand or Ethernet.")


class GoneDevice(StatusModel):
    """A device that was there since the machine started, and is not any more."""

    vendor: str
    uuid: str = Field(description="The driver's own identity of the device.")
    name: str = "unknown"
    pci: str = ""


class Host(StatusModel):
    """The machine below the node."""

    cpus: int = Field(default=0, description="Processors.")
    cpu_model: str = ""
    memory_bytes: int = Field(default=0, description="Memory in bytes.")
    kernel: str = ""
    boot_id: str = Field(default="", description="Differs for each start of the machine.")
    glibc: str = Field(default="", description="C library of the prober's image.")
    interfaces: tuple[Interface, ...] = ()
    rdma: tuple[RdmaDevice, ...] = ()
    locked_memory_bytes: int | None = Field(default=None, description="Limit on locked memory; none when unset.")
    nccl: dict[str, str] = Field(default_factory=dict, description="NCCL and RCCL on the host: path and version.")
    clock_offset_seconds: float | None = Field(
        default=None, description="Node's clock minus the API server's, in seconds (resolution 1 s)."
    )


class Sentinel(StatusModel):
    """A file of the shared volume, as this node sees it."""

    path: str
    sha256: str = Field(default="", description="Hash of its content; empty when it could not be read.")
    error: str = ""
    errno: int = Field(default=0, description="The system's number of the error.")
    answered: bool = Field(default=True, description="Whether the look ended within its time limit.")


class DeepDevice(StatusModel):
    """One kernel run on one device by a deep check."""

    index: int
    name: str = ""
    arch: str = ""
    ok: bool
    milliseconds: float = Field(default=0.0, description="Duration of the kernel, in ms.")
    error: str = ""


class DeepFacts(StatusModel):
    """What a variant's own image says on a node: the termination message of a deep check."""

    variant: str
    vendor: str
    simulated: bool = Field(default=False, description="Whether the kernels ran on the CPU in place of a device.")
    torch_version: str = ""
    torch_build: str = Field(default="", description="cu132, rocm7.0, cpu.")
    archs: tuple[str, ...] = Field(default=(), description="Architectures that torch has kernels for.")
    nccl_version: str = Field(default="", description="NCCL or RCCL version that torch loaded.")
    glibc: str = Field(default="", description="C library of the image.")
    variant_file: str = Field(
        default="", description="Why the image's variant.json does not describe its torch; empty where it does."
    )
    devices: tuple[DeepDevice, ...] = ()
    error: str = Field(default="", description="Why nothing could be run.")

    @property
    def passed(self) -> bool:
        """True when a kernel really ran on at least one device and every result was right."""
        return not self.error and bool(self.devices) and all(device.ok for device in self.devices)

    def render(self) -> str:
        """JSON of at most :data:`MAX_TERMINATION_BYTES` bytes; error texts are cut where they must be."""
        text = self.model_dump_json(by_alias=True, exclude_defaults=True)
        reasons = {"error": self.error, "variant_file": self.variant_file}
        for limit in (400, 100, 0):
            if len(text.encode()) <= MAX_TERMINATION_BYTES:
                break
            devices = tuple(
                device.model_copy(update={"error": device.error[:limit], "name": device.name[:limit]})
                for device in self.devices
            )
            # Never cut to nothing: an empty reason would say that all is well.
            told = {key: reason[:limit] or reason[:1] for key, reason in reasons.items()}
            short = self.model_copy(update={"devices": devices} | told)
            text = short.model_dump_json(by_alias=True, exclude_defaults=True)
        return text


class DeepResult(StatusModel):
    """The newest deep check of a variant on this node."""

    image: str
    fingerprint: str = Field(description="Fingerprint of the hardware that it was made for.")
    time: Moment = Field(description="When the prober read it.")
    outcome: Outcome
    failures: int = Field(default=0, description="Deep checks of this image on this hardware that failed in a row.")
    message: str = ""
    wrong: int = Field(
        default=0,
        description="Deep checks of this image on this hardware in a row whose kernels went wrong; those without a "
        "result are not counted.",
    )
    wrong_at: Moment | None = Field(default=None, description="When the newest of those was read.")
    facts: DeepFacts | None = None


class DeepWanted(StatusModel):
    """A deep check that the prober asks the operator for; its pod is named by :func:`deep_pod_name`."""

    variant: str
    vendor: str
    image: str
    fingerprint: str = Field(description="Fingerprint of the hardware to check.")
    devices: int = Field(default=0, description="Devices of the vendor on this node, for the pod's request.")
    attempt: int = Field(default=0, description="Failures so far; part of the pod's name.")
    simulated: bool = Field(default=False, description="Whether the devices are simulated: no device is requested.")


class Report(StatusModel):
    """Everything that a prober knows about its node."""

    version: int = 1
    node: str
    time: Moment = Field(description="When it was made, by the node's clock.")
    prober_version: str = ""
    simulated: bool = False
    local: bool = Field(default=False, description="Whether it is about a machine outside of any cluster.")
    ready: bool = Field(default=False, description="False when a blocking check fails.")
    judged_by: str = Field(
        default="", description="Mark of what of FdlCluster's spec it was made by; empty for none, and in old reports."
    )
    host: Host = Field(default_factory=Host)
    drivers: dict[str, Driver] = Field(default_factory=dict, description="By vendor.")
    devices: tuple[Device, ...] = ()
    gone: tuple[GoneDevice, ...] = Field(default=(), description="Devices that vanished since the machine started.")
    fingerprints: dict[str, str] = Field(default_factory=dict, description="Hash of hardware and driver, by vendor.")
    sentinel: Sentinel | None = None
    checks: tuple[Check, ...] = ()
    deep: dict[str, DeepResult] = Field(default_factory=dict, description="Newest deep check, by variant.")
    deep_wanted: tuple[DeepWanted, ...] = ()

    def render(self) -> str:
        """The annotation's value."""
        return self.model_dump_json(by_alias=True, exclude_defaults=True)

    def is_outdated(self, mark: str) -> bool:
        """Whether it was made by another spec of FdlCluster than that of a mark
        (:func:`fdl_api.cluster_nodes.mark`); not where either is not known.
        """
        return bool(self.judged_by and mark) and self.judged_by != mark

    def material(self) -> dict[str, Any]:
        """Everything but what changes with time alone; equal when nothing happened between two reports."""
        return self.model_dump(mode="json", exclude={"time": True, "host": {"clock_offset_seconds"}})

    def age(self, now: datetime) -> timedelta:
        """Time since the report was made; never negative, so that a node with a fast clock is not for ever fresh."""
        return abs(now - self.time)


def worst(checks: Iterable[Check]) -> Severity:
    """The worst severity of some checks; ``pass`` when there are none."""
    return max((check.severity for check in checks), key=SEVERITIES.index, default="pass")


def parse(text: str | None) -> Report | None:
    """Read an annotation's value; ``None`` when there is none or when it is no report. What a newer prober says in
    words that this release does not know is left out.
    """
    return reading.lenient_text(Report, text) if text else None


def of_node(annotations: Mapping[str, str] | None) -> Report | None:
    """The report in a node's annotations, if any."""
    return parse((annotations or {}).get(REPORT))


def deep_pod_name(node: str, wanted: DeepWanted) -> str:
    """Name of the pod for a deep check.

    The same wish has the same name, so that creating its pod twice is harmless; a wish for another image, other
    hardware or a further attempt has another one, so that no answer is taken for a later question's.
    """
    seed = "\n".join((node, wanted.variant, wanted.image, wanted.fingerprint, str(wanted.attempt)))
    return f"fdl-deep-{wanted.variant}-{hashlib.sha256(seed.encode()).hexdigest()[:10]}"
