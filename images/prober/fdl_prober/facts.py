"""What the checks and labels are decided from: an observation brought into the report's terms. Pure."""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fdl_api.cluster_nodes import Variant
from fdl_api.coverage import Kernels
from fdl_api.labels import GPU_VENDORS
from fdl_api.report import DeepFacts, DeepResult, Device, Driver, GoneDevice, Host, Sentinel
from fdl_prober import history
from fdl_prober.observe import Observation


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that one decision depends on.

    Attributes:
        node: name of the node.
        simulated: whether its devices are simulated.
        devices: GPUs that a driver answers for.
        drivers: state of each GPU vendor's driver.
        fingerprints: of each vendor's hardware and driver, by vendor (:func:`fingerprints`).
        plugged: vendors whose GPUs are there, driver or not.
        gone: devices that were there since the machine started and are not any more.
        seen: the observation itself, for what needs no bringing over.
        host: the machine.
        sentinel: the shared volume's file, if one is configured.
        variants: trainer images of the cluster, in their order.
        cluster_known: whether the FdlCluster could be read at all.
        judged_by: mark of its spec; empty for none.
        deep: newest deep check by variant, only those that are still about this hardware and image.
        socket_interface: the interface for collectives that the cluster names for this node; empty for none.
        image_trouble: variants whose image the kubelet cannot get, with its words.
        local: whether this is a machine outside of any cluster, where programs run without containers.
    """

    node: str
    simulated: bool = False
    devices: tuple[Device, ...] = ()
    drivers: Mapping[str, Driver] = field(default_factory=dict)
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    plugged: frozenset[str] = frozenset()
    gone: tuple[GoneDevice, ...] = ()
    seen: Observation = field(default_factory=Observation)
    host: Host = field(default_factory=Host)
    sentinel: Sentinel | None = None
    variants: tuple[Variant, ...] = ()
    cluster_known: bool = True
    judged_by: str = ""
    deep: Mapping[str, DeepResult] = field(default_factory=dict)
    socket_interface: str = ""
    image_trouble: Mapping[str, str] = field(default_factory=dict)
    local: bool = False

    def of(self, vendor: str) -> tuple[Device, ...]:
        """The devices of one vendor."""
        return tuple(device for device in self.devices if device.vendor == vendor)

    def unseen(self, *sources: str) -> bool:
        """Whether one of some sources, or parts of them, gave no answer, so that nothing may be concluded from it."""
        return any(source in self.seen.silent for source in sources)

    def archs(self, vendor: str) -> tuple[str, ...]:
        """One architecture token per device of a vendor; empty text where it is unknown."""
        return tuple(device.arch for device in self.of(vendor))

    def answers(self, vendor: str) -> bool:
        """Whether a vendor's driver answers for all of its devices, as far as it is there."""
        return vendor not in self.drivers or self.drivers[vendor].state == "ready"

    @property
    def vendors(self) -> tuple[str, ...]:
        """Vendors with at least one device that works."""
        return tuple(vendor for vendor in GPU_VENDORS if self.of(vendor))

    @property
    def all_answer(self) -> bool:
        """Whether the drivers of all GPUs in the node are ready: else it is not known what the node has."""
        ready = all(driver.state == "ready" for driver in self.drivers.values())
        unknown = self.plugged - self.drivers.keys() - set(self.vendors)
        return ready and not unknown and not self.unseen("pci")


def nvidia_driver(seen: Observation) -> Driver:
    """State of NVIDIA's driver. A library without any GPU plugged in (a CPU node of one image) is no fault."""
    answer, plugged = seen.nvml, seen.plugged.get("nvidia", 0)
    if answer.loaded:
        state = "ready" if answer.devices or not plugged else "not-ready"
        detail = "" if state == "ready" else "the driver answers but knows no device"
        return Driver.model_validate(
            {"state": state, "version": answer.driver, "runtime": answer.cuda, "source": answer.library}
            | {"detail": detail}
        )
    if not plugged and (answer.missing or not answer.library):
        return Driver(state="absent")
    return Driver(state="not-ready", version=answer.driver, source=answer.library, detail=answer.error)


def amd_driver(seen: Observation) -> Driver:
    """State of AMD's driver. ``hidden`` nodes are GPUs that the kernel does not show to this container."""
    report, plugged = seen.kfd, seen.plugged.get("amd", 0)
    if "kfd" in seen.silent:
        return Driver(state="not-ready", detail=seen.silent["kfd"])
    version = report.driver or (f"kernel {seen.host.kernel}" if report.source else "")
    if report.devices and not report.error and not report.hidden:
        return Driver(state="ready", version=version, source=report.source)
    if report.error:
        detail = report.error
    elif report.hidden:
        detail = f"the kernel hides {report.hidden} GPU(s) from this container"
    elif not plugged:
        return Driver(state="absent")
    else:
        detail = "no KFD topology" if not report.source else "the KFD topology has no GPU"
    return Driver(state="not-ready", version=version, source=report.source, detail=detail)


def fingerprints(devices: Sequence[Device], drivers: Mapping[str, Driver], host: Host) -> dict[str, str]:
    """Short hash of each vendor's hardware and driver on the node; a deep check is valid for one value of it."""

    def of(*parts: str) -> str:
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]

    found = {"cpu": of(host.cpu_model, str(host.cpus))}
    for vendor in GPU_VENDORS:
        own = sorted(f"{d.uuid or d.pci or d.index} {d.arch} {d.mig}" for d in devices if d.vendor == vendor)
        if own:
            found[vendor] = of(drivers[vendor].version if vendor in drivers else "", *own)
    return found


def _on_cpu(variant: Variant) -> bool:
    return variant.vendor == "cpu"


def known_kernels(variant: Variant, deep: DeepResult | None) -> Kernels:
    """What a variant covers: by its own torch's word where a deep check has it, else as the FdlCluster says."""
    told = spoken(deep)
    return Kernels(variant.name, variant.vendor, (told.archs if told else ()) or variant.archs)


def image_to_check(variant: Variant, variants: Sequence[Variant], simulated: bool) -> str | None:
    """The image that a deep check of a variant runs on this node.

    In place of simulated devices, members run the first cpu variant's image, so that is what is checked there; ``None``
    when there is none.
    """
    if not simulated or variant.vendor == "cpu":
        return variant.image
    return next((other.image for other in variants if other.vendor == "cpu"), None)


def missing_libraries(facts: Facts, name: re.Pattern[str]) -> list[tuple[str, str]]:
    """Variants whose torch does not load for want of a library, by the loader's words in their deep checks.

    Args:
        facts: of the node.
        name: pattern of the loader's sentence, whose first group is the library.
    """
    errors = {variant: result.facts.error for variant, result in facts.deep.items() if result.facts is not None}
    return [(variant, match[1]) for variant, error in errors.items() if (match := name.search(error))]


def spoken(result: DeepResult | None) -> DeepFacts | None:
    """What a variant's own torch said on a real device, if a deep check asked it."""
    if result is None or result.facts is None or result.facts.simulated:
        return None
    return result.facts


def gather(
    node: str,
    seen: Observation,
    *,
    simulated: bool,
    variants: tuple[Variant, ...],
    cluster_known: bool,
    deep: Mapping[str, DeepResult],
    clock_offset_seconds: float | None,
    known: Iterable[GoneDevice] = (),
    socket_interface: str = "",
    image_trouble: Mapping[str, str] | None = None,
    judged_by: str = "",
    local: bool = False,
) -> Facts:
    """Bring an observation into the report's terms.

    Args:
        node: name of the node or machine.
        seen: the observation.
        simulated: whether the devices are simulated.
        variants: trainer images of the cluster, in their order.
        cluster_known: whether the FdlCluster could be read at all.
        deep: newest deep checks, also those of other hardware and images, which are left out.
        clock_offset_seconds: this clock minus the API server's, in seconds.
        known: devices that were there since the machine started.
        socket_interface: the interface for collectives that the cluster names for this node; empty for none.
        image_trouble: variants whose image the kubelet cannot get, with its words.
        judged_by: mark of FdlCluster's spec; empty for none.
        local: whether this is a machine outside of any cluster.
    """
    identities = {gpu.address: gpu.identity for gpu in seen.pci}
    devices = tuple(
        device if device.pci_id else device.model_copy(update={"pci_id": identities.get(device.pci, "")})
        for device in (*seen.nvml.devices, *seen.kfd.devices)
    )
    drivers = {"nvidia": nvidia_driver(seen), "amd": amd_driver(seen)}
    drivers = {vendor: driver for vendor, driver in drivers.items() if driver.state != "absent"}
    own = fingerprints(devices, drivers, seen.host)
    images = {variant.name: variant for variant in variants}
    if "host" in seen.silent:  # what could not be looked at has not changed for that
        known_cpu = (result.fingerprint for name, result in deep.items() if name in images and _on_cpu(images[name]))
        own["cpu"] = next(known_cpu, own["cpu"])
    valid = {
        name: result
        for name, result in deep.items()
        if name in images
        and result.image == image_to_check(images[name], variants, simulated)
        and result.fingerprint == own.get(images[name].vendor)
    }
    answering = {vendor for vendor, driver in drivers.items() if driver.state == "ready"}
    return Facts(
        node=node,
        simulated=simulated,
        devices=devices,
        drivers=drivers,
        fingerprints=own,
        plugged=frozenset(seen.plugged) | {device.vendor for device in devices},
        gone=history.gone(known, devices, answering),
        seen=seen,
        host=seen.host.model_copy(update={"clock_offset_seconds": clock_offset_seconds}),
        sentinel=seen.sentinel,
        variants=variants,
        cluster_known=cluster_known,
        judged_by=judged_by,
        deep=valid,
        socket_interface=socket_interface,
        image_trouble=image_trouble or {},
        local=local,
    )
