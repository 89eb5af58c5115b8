"""The checks: each a pure function from facts to what a person should know, with a remedy.

Names are stable; docs/node-labels.md lists them. A check that does not apply to a node is not in its report.
"""

from collections.abc import Callable, Iterator

from fdl_api.coverage import Fit, best_fit
from fdl_api.report import Check, Driver
from fdl_prober.facts import Facts, known_kernels

CLOCK_WARN_SECONDS = 2.0
CLOCK_FAIL_SECONDS = 30.0
CLOCK_RESOLUTION_SECONDS = 1.0
"""The API server's Date header has whole seconds."""

_BRAND = {"nvidia": "NVIDIA", "amd": "AMD"}


def gpu_survey(facts: Facts) -> Iterator[Check]:
    """Which devices work; a device without a known architecture cannot be matched with a variant."""
    counts = ", ".join(f"{len(facts.of(vendor))} {_BRAND[vendor]}" for vendor in facts.vendors)
    kind = "simulated device(s)" if facts.simulated else "device(s)"
    yield Check(name="gpu-survey", severity="pass", message=f"{counts or 'no'} {kind}")
    for device in facts.devices:
        if not device.arch:
            yield Check(
                name="gpu-survey",
                severity="warn",
                subject=f"{device.vendor} {device.index}",
                message="the driver does not tell the device's architecture, so no variant can be matched with it",
                remedy="Update the node's GPU driver; a virtual function may need the host's driver updated as well.",
            )


def _driver_remedy(vendor: str, driver: Driver) -> str:
    if vendor == "amd" and "hides" in driver.detail:
        return (
            "The kernel shows AMD GPUs only to containers that may open them: set prober.privileged=true in the "
            "chart's values."
        )
    if vendor == "amd":
        return "Load the amdgpu kernel module on the node, or install the AMD GPU operator; the prober looks again."
    return (
        "Install NVIDIA's driver on the node or wait until the GPU operator has done so. Where it is installed, let "
        "the prober reach it: prober.runtimeClassName=nvidia, or prober.driverRoot and prober.privileged=true."
    )


def gpu_driver(facts: Facts) -> Iterator[Check]:
    """Whether each vendor's driver answers for the GPUs that are plugged in.

    Not blocking: without the driver the vendor's labels are missing, which keeps its members away, and members on the
    processor do not need it.
    """
    for vendor, driver in facts.drivers.items():
        ready = driver.state == "ready"
        if ready and not facts.of(vendor):
            continue
        version = driver.version or "of unknown version"
        seen = f"driver {version} answers" if ready else f"driver-not-ready: {driver.detail}"
        yield Check(
            name="gpu-driver",
            severity="pass" if ready else "fail",
            subject=vendor,
            message=seen,
            remedy="" if ready else _driver_remedy(vendor, driver),
        )


def device_files(facts: Facts) -> Iterator[Check]:
    """Whether members, which do not run as root, may open the device files."""
    for closed in facts.closed_devices:
        yield Check(
            name="device-files",
            severity="fail",
            subject=closed.split(" ", 1)[0],
            message=f"{closed}: a member that is not root cannot open it",
            remedy="Set mode 0660 and a group that members have (render or video for AMD), or 0666, by a udev rule.",
            blocking=True,
        )


def mig(facts: Facts) -> Iterator[Check]:
    """MIG instances have resource names of their own."""
    for device in facts.devices:
        if device.mig:
            yield Check(
                name="mig",
                severity="warn",
                subject=f"nvidia {device.index}",
                message="the device is cut into MIG instances; the count label counts whole devices",
                remedy="Name the instances' resource in spec.cohorts[].deviceResource, or turn MIG off on this device.",
            )


def variant_metadata(facts: Facts) -> Iterator[Check]:
    """Whether the cluster has a variant for each vendor of the node."""
    if not facts.cluster_known:
        if facts.local:
            return
        yield Check(
            name="variant-metadata",
            severity="warn",
            message="FdlCluster/default could not be read, so it is not known which images to judge",
            remedy="See that the operator runs (it creates FdlCluster/default) and that the prober may read it.",
        )
        return
    for vendor in (*facts.vendors, "cpu"):
        if not any(variant.vendor == vendor for variant in facts.variants):
            yield Check(
                name="variant-metadata",
                severity="warn",
                subject=vendor,
                message=f"the cluster has no variant of vendor {vendor}, so no {vendor} member can run here",
                remedy=f"Add an image to spec.variants of FdlCluster/default with vendor: {vendor}.",
            )


def kernel_coverage(facts: Facts) -> Iterator[Check]:
    """Whether some variant's torch has kernels for each device. Which variants do is in the node's labels."""
    for device in facts.devices:
        own = [
            known_kernels(variant, facts.deep.get(variant.name))
            for variant in facts.variants
            if variant.vendor == device.vendor
        ]
        fits = {kernels.variant: best_fit(kernels.archs, device.arch) for kernels in own}
        by_fit = {fit: ", ".join(name for name, found in fits.items() if found is fit) for fit in Fit}
        subject, arch = f"{device.vendor} {device.index}", device.arch or "an unknown architecture"
        if by_fit[Fit.EXACT] or by_fit[Fit.BINARY]:
            covering = by_fit[Fit.EXACT] or by_fit[Fit.BINARY]
            yield Check(name="kernel-coverage", severity="pass", subject=subject, message=f"{arch}: {covering}")
        elif by_fit[Fit.PTX]:
            yield Check(
                name="kernel-coverage",
                severity="warn",
                subject=subject,
                message=f"{arch} runs only by compiling PTX at load time: {by_fit[Fit.PTX]}",
                remedy="Expect a slow first start; a variant with machine code for the device avoids it.",
            )
        elif own:
            told = "; ".join(f"{k.variant} has {', '.join(k.archs) or 'nothing known'}" for k in own)
            yield Check(
                name="kernel-coverage",
                severity="fail",
                subject=subject,
                message=f"no variant has kernels for {arch}: {told}",
                remedy=f"Add an image whose torch was built for {device.arch or 'this device'} to spec.variants of "
                "FdlCluster/default.",
            )


def deep_check(facts: Facts) -> Iterator[Check]:
    """What a real kernel in the variant's own image said."""
    for name, result in facts.deep.items():
        if result.outcome == "passed":
            yield Check(name="deep-check", severity="pass", subject=name, message=result.message)
        elif result.outcome == "failed":
            yield Check(
                name="deep-check",
                severity="fail",
                subject=name,
                message=f"a kernel did not run right in this variant's image: {result.message}",
                remedy="See the devices in the report (fdl.dev/report); check the driver against the image's torch "
                "build, and the device for faults.",
            )
        else:
            yield Check(
                name="deep-check",
                severity="warn",
                subject=name,
                message=f"the deep check ended without a result: {result.message}",
                remedy="See the Events of pods with label fdl.dev/role=deep-check; the image can often not be pulled.",
            )


def nccl_library(facts: Facts) -> Iterator[Check]:
    """Whether a variant loads the NCCL or RCCL that the cluster's list says."""
    for variant in facts.variants:
        result = facts.deep.get(variant.name)
        if variant.vendor == "cpu" or result is None or result.facts is None or result.facts.simulated:
            continue
        loaded, told = result.facts.nccl_version, variant.nccl_version
        if not loaded:
            yield Check(
                name="nccl-library",
                severity="fail",
                subject=variant.name,
                message="torch in this variant's image loads no NCCL or RCCL",
                remedy="Use an image whose torch has NCCL, or run in a cpu-* mode.",
            )
        elif told is not None and told.split(".")[:2] != loaded.split(".")[:2]:
            yield Check(
                name="nccl-library",
                severity="warn",
                subject=variant.name,
                message=f"the image loads NCCL {loaded}, FdlCluster says {told}; the label has what was loaded",
                remedy="Correct ncclVersion of this variant in FdlCluster/default, or leave it out.",
            )
        else:
            yield Check(name="nccl-library", severity="pass", subject=variant.name, message=f"NCCL {loaded} loads")


def interfaces(facts: Facts) -> Iterator[Check]:
    """Whether a pod here has an interface that other nodes can reach."""
    usable = [item for item in facts.host.interfaces if item.up and item.addresses]
    names = ", ".join(f"{item.name} {item.addresses[0]}" for item in usable)
    yield Check(
        name="interfaces",
        severity="pass" if usable else "fail",
        message=names or "pods on this node have no network interface that is up and has an address",
        remedy="" if usable else "Check the node's CNI plugin: members cannot reach each other without one.",
        blocking=not usable,
    )


def shared_volume(facts: Facts) -> Iterator[Check]:
    """Whether the shared volume's file can be read. Different content on two nodes is the operator's finding."""
    if facts.sentinel is None:
        return
    good = bool(facts.sentinel.sha256)
    yield Check(
        name="shared-volume",
        severity="pass" if good else "fail",
        subject=facts.sentinel.path,
        message=f"SHA-256 {facts.sentinel.sha256[:12]}" if good else f"cannot be read: {facts.sentinel.error}",
        remedy="" if good else "Check prober.sentinel in the chart's values, and the volume's mount on this node.",
        blocking=not good,
    )


def clock(facts: Facts) -> Iterator[Check]:
    """Whether the node's clock agrees with the API server's."""
    offset = facts.host.clock_offset_seconds
    if offset is None:
        return
    away = max(0.0, abs(offset) - CLOCK_RESOLUTION_SECONDS)
    severity = "fail" if away > CLOCK_FAIL_SECONDS else "warn" if away > CLOCK_WARN_SECONDS else "pass"
    good = severity == "pass"
    # The limit and not the offset: a sentence that changes with every look would be written with every look.
    limit = CLOCK_FAIL_SECONDS if severity == "fail" else CLOCK_WARN_SECONDS
    yield Check.model_validate(
        {
            "name": "clock",
            "severity": severity,
            "message": "agrees with the API server's" if good else f"is more than {limit:g} s from the API server's",
            "remedy": "" if good else "Run a time service (chrony, systemd-timesyncd) on this node.",
            "blocking": severity == "fail",
        }
    )


ALL: tuple[Callable[[Facts], Iterator[Check]], ...] = (
    gpu_survey,
    gpu_driver,
    device_files,
    mig,
    variant_metadata,
    kernel_coverage,
    deep_check,
    nccl_library,
    interfaces,
    shared_volume,
    clock,
)


def run(facts: Facts) -> tuple[Check, ...]:
    """All checks that apply to the node, in a fixed order."""
    return tuple(check for source in ALL for check in source(facts))
