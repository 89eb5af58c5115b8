"""Checks of variants and of what their torch can compute on."""

import re
from collections.abc import Iterator

from fdl_api.checks import software as catalogue
from fdl_api.coverage import Fit, best_fit
from fdl_api.names import VARIANT_FILE
from fdl_api.report import Check, Device
from fdl_api.variantfile import VariantFileError, archs
from fdl_prober.facts import Facts, known_kernels, spoken

_TOO_OLD = re.compile(r"version [`']GLIBC_(\d+\.\d+)' not found")


def variant_metadata(facts: Facts) -> Iterator[Check]:
    """Whether the cluster has a variant for each vendor of the node, and says of it what its torch says."""
    info = catalogue.VARIANT_METADATA
    if not facts.cluster_known:
        if not facts.local:
            message = "FdlCluster/default could not be read, so it is not known which images to judge"
            yield info.found("cluster-unknown", message)
        return
    for vendor in (*facts.vendors, "cpu"):
        if not any(variant.vendor == vendor for variant in facts.variants):
            message = f"the cluster has no variant of vendor {vendor}, so no {vendor} member can run here"
            yield info.found("no-variant", message, vendor)
    for variant in facts.variants:
        told = spoken(facts.deep.get(variant.name))
        if variant.vendor != "cpu" and told and told.archs and set(told.archs) != set(variant.archs):
            message = f"the image's torch has kernels for {', '.join(told.archs)}"
            yield info.found("archs-differ", message, variant.name, {"listed": ", ".join(variant.archs)})


def variant_image(facts: Facts) -> Iterator[Check]:
    """Whether the kubelet gets the images of the deep checks that wait here."""
    for name, words in facts.image_trouble.items():
        yield catalogue.VARIANT_IMAGE.found("not-pulled", f"the kubelet says: {words}", name)


def variant_file(facts: Facts) -> Iterator[Check]:
    """The descriptions of torch: the file that was named on this machine, and those in the images of deep checks."""
    info = catalogue.VARIANT_FILE
    file = facts.seen.box.variant_file if facts.seen.box else None
    if file is not None and file.text is None:
        yield info.found("missing", f"it cannot be read: {file.error}", file.path)
    elif file is not None and file.text is not None:
        try:
            archs(file.text)
        except VariantFileError as error:
            yield info.found("garbage", str(error), file.path)
        else:
            yield info.passed("it describes a variant", file.path)
    # Outside of a cluster a deep check runs in no image.
    for name, result in () if facts.local else facts.deep.items():
        if result.facts is not None and result.facts.variant_file:
            message = f"{VARIANT_FILE} in the image: {result.facts.variant_file}"
            yield info.found("not-in-image", message, name, {"image": result.image})


def _by_arch(facts: Facts) -> dict[tuple[str, str], list[Device]]:
    found: dict[tuple[str, str], list[Device]] = {}
    for device in facts.devices:
        found.setdefault((device.vendor, device.arch), []).append(device)
    return found


def kernel_coverage(facts: Facts) -> Iterator[Check]:
    """Whether some variant's torch has kernels for each architecture. Which variants do is in the node's labels."""
    info = catalogue.KERNEL_COVERAGE
    for (vendor, arch), devices in _by_arch(facts).items():
        own = [known_kernels(v, facts.deep.get(v.name)) for v in facts.variants if v.vendor == vendor]
        if not own:
            continue
        subject = f"{vendor} {arch}".strip()
        if not arch:
            message = f"the architecture of {len(devices)} device(s) is unknown"
            yield info.found("not-comparable", message, subject)
            continue
        fits = {kernels.variant: best_fit(kernels.archs, arch) for kernels in own}
        covering = [name for name, fit in fits.items() if fit in (Fit.EXACT, Fit.BINARY)]
        by_ptx = [name for name, fit in fits.items() if fit is Fit.PTX]
        if covering:
            yield info.passed(f"covered by {', '.join(covering)}", subject)
        elif by_ptx:
            yield info.found("ptx-only", f"runs only by compiling PTX at load time: {', '.join(by_ptx)}", subject)
        else:
            told = {kernels.variant: ", ".join(kernels.archs) or "nothing known" for kernels in own}
            yield info.found("gap", f"no variant has kernels for {arch}", subject, told)


def deep_check(facts: Facts) -> Iterator[Check]:
    """What a real kernel in the variant's own image said."""
    info = catalogue.DEEP_CHECK
    for name, result in facts.deep.items():
        if result.outcome == "passed":
            yield info.passed(result.message, name)
        elif result.outcome == "failed":
            yield info.found("failed", f"a kernel did not run right in this variant's image: {result.message}", name)
        else:
            yield info.found("no-result", f"the deep check ended without a result: {result.message}", name)


def running_glibc(text: str) -> tuple[int, int] | None:
    """(major, minor) of ``glibc 2.36``; ``None`` for another C library (musl) and for no text."""
    match = re.fullmatch(r"glibc (\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def glibc(facts: Facts) -> Iterator[Check]:
    """Whether the C library is new enough: as the loader says in an image, as torch's package says on a machine."""
    info = catalogue.GLIBC
    for name, result in facts.deep.items():
        if match := _TOO_OLD.search(result.facts.error if result.facts else ""):
            has = result.facts.glibc if result.facts else ""
            yield info.found("too-old", f"torch needs glibc {match[1]}, the image has {has}", name)
    torch = facts.seen.box.torch if facts.seen.box else None
    has_now = running_glibc(facts.host.glibc)
    if torch is None or torch.glibc is None or has_now is None:
        return
    needs, has = ".".join(map(str, torch.glibc)), ".".join(map(str, has_now))
    if has_now < torch.glibc:
        yield info.found("too-old", f"torch {torch.version} needs glibc {needs}, this machine has {has}")
    else:
        yield info.passed(f"glibc {has}; torch {torch.version} needs {needs}")


ALL = (variant_metadata, variant_image, variant_file, kernel_coverage, deep_check, glibc)
