"""Checks of variants and of what their torch can compute on."""

import json
import re
from collections.abc import Iterator
from typing import Any

from fdl_api.checks import software as catalogue
from fdl_api.coverage import Fit, best_fit
from fdl_api.report import Check, Device
from fdl_prober.facts import Facts, known_kernels, spoken

_TOO_OLD = re.compile(r"version [`']GLIBC_(\d+\.\d+)' not found")
VARIANT_KEYS = {"name": str, "torchVersion": str, "build": str, "archs": list}


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


def variant_file_error(text: str) -> str:
    """Why a text is no description of a variant (fdl_trainer.variant); empty when it is one."""
    try:
        content: Any = json.loads(text)
    except ValueError as error:
        return f"it is no JSON: {error}"
    if not isinstance(content, dict):
        return "it is no object"
    wrong = [key for key, kind in VARIANT_KEYS.items() if not isinstance(content.get(key), kind)]
    if wrong:
        return f"it lacks {', '.join(wrong)}, or they are of another type"
    if not all(isinstance(arch, str) for arch in content["archs"]):
        return "archs has entries that are no text"
    return ""


def variant_file(facts: Facts) -> Iterator[Check]:
    """The file that was named as the description of this machine's torch."""
    file = facts.seen.box.variant_file if facts.seen.box else None
    if file is None:
        return
    info = catalogue.VARIANT_FILE
    if file.text is None:
        yield info.found("missing", f"it cannot be read: {file.error}", file.path)
    elif error := variant_file_error(file.text):
        yield info.found("garbage", error, file.path)
    else:
        yield info.passed("it describes a variant", file.path)


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
