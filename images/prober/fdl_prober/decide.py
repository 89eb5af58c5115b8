"""From facts to labels and report. Pure: no clock, no file, no API."""

import re
from collections.abc import Mapping
from datetime import datetime

from fdl_api import VERSION, labels
from fdl_api.cluster_nodes import Variant
from fdl_api.coverage import Kernels, auto_variant, covered, lowest
from fdl_api.report import DeepResult, Report
from fdl_prober import checks, deep, fit
from fdl_prober.checks.nccl import major_minor
from fdl_prober.facts import Facts, known_kernels, spoken


def label_value(text: str) -> str:
    """Text as a label's value: at most 63 letters, digits and ``.-_``, with letters or digits at the ends."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", text)[:63].strip("._-")


def gpu_vendor(facts: Facts) -> str:
    """The vendor of the GPUs in the node, working or not; empty when the bus gave no answer, nor any driver."""
    present = [vendor for vendor in labels.GPU_VENDORS if vendor in facts.plugged]
    if not present and facts.unseen("pci"):
        return ""
    return {0: "none", 1: present[0] if present else "none"}.get(len(present), "mixed")


def variant_value(facts: Facts, variant: Variant) -> str | None:
    """Value of a variant's label: what is known about it here; ``None`` where it does not apply.

    ``verified`` only after a real kernel ran on every device that the deep check saw (and at least on one); a node
    with simulated devices never gets it. ``gap`` also when only some of the devices are covered, since a pod may get
    any of them, and when a kernel failed. Nothing while the driver does not answer for all of them.
    """
    result = facts.deep.get(variant.name)
    if variant.vendor != "cpu":
        archs = facts.archs(variant.vendor)
        if not archs or not facts.answers(variant.vendor):
            return None
        if covered(known_kernels(variant, result), archs) < len(archs):
            return "gap"
    if result is not None and result.outcome == "failed":
        return "gap"
    if facts.simulated:
        return "simulated"
    return "verified" if _really_ran(result) else "covers"


def _really_ran(result: DeepResult | None) -> bool:
    told = spoken(result)
    return result is not None and result.outcome == "passed" and told is not None and told.passed


def nccl_version(variant: Variant, result: DeepResult | None) -> str:
    """NCCL or RCCL of a variant: what its torch loaded, else what the FdlCluster says; empty for cpu."""
    if variant.vendor == "cpu":
        return ""
    told = spoken(result)
    return (told.nccl_version if told else "") or variant.nccl_version or ""


def torch_version(variant: Variant, result: DeepResult | None) -> tuple[str, str]:
    """Version and build of a variant's torch: ``2.10.0+cu128`` is (2.10.0, cu128)."""
    told = spoken(result)
    version, _, local = ((told.torch_version if told else "") or variant.torch_version or "").partition("+")
    build = told.torch_build if told else ""
    return version, build or local or ("cpu" if variant.vendor == "cpu" and version else "")


def _coverage(facts: Facts, kernels: Kernels) -> str:
    """``full`` when every GPU of the node is covered (or there is none to cover), ``none`` when none is."""
    archs = [device.arch for device in facts.devices]
    done = covered(kernels, archs)
    return "full" if done == len(archs) else "partial" if done else "none"


def _auto_labels(facts: Facts) -> dict[str, str]:
    """What ``auto`` picks here; nothing while a driver is silent, since what it would answer for is not known."""
    if not facts.all_answer:
        return {}
    by_name = {variant.name: variant for variant in facts.variants}
    kernels = [known_kernels(variant, facts.deep.get(variant.name)) for variant in facts.variants]
    chosen = auto_variant(kernels, [device.arch for device in facts.devices])
    if chosen is None:
        return {}
    result = facts.deep.get(chosen.variant)
    version, build = torch_version(by_name[chosen.variant], result)
    return {
        labels.LIBTORCH_COVERAGE: _coverage(facts, chosen),
        labels.LIBTORCH_VERSION: label_value(version),
        labels.LIBTORCH_BUILD: label_value(build),
        labels.NCCL_VERSION: label_value(nccl_version(by_name[chosen.variant], result)),
    }


def _variant_labels(facts: Facts) -> dict[str, str]:
    found: dict[str, str] = {}
    for variant in facts.variants:
        value = variant_value(facts, variant)
        if value is None:
            continue
        found[labels.variant(variant.name)] = value
        found[labels.nccl(variant.name)] = label_value(major_minor(nccl_version(variant, facts.deep.get(variant.name))))
    return found


def node_labels(facts: Facts, ready: bool) -> dict[str, str]:
    """All labels of the node that fdl owns; what is unknown has no label.

    ``fdl.dev/simulated`` is not among them: it belongs to whoever registered the node.
    """
    found = {
        labels.GPU_VENDOR: gpu_vendor(facts),
        labels.GPU_ARCH: lowest(device.arch for device in facts.devices if facts.answers(device.vendor)) or "",
        labels.READY: "true" if ready else "false",
        labels.vendor("cpu"): "true",
    }
    for vendor in facts.vendors:
        found[labels.vendor(vendor)] = "true"
        found[labels.count(vendor)] = str(len(facts.of(vendor)))
    found |= {labels.arch(device.arch): "true" for device in facts.devices if device.arch}
    found |= _variant_labels(facts) | _auto_labels(facts)
    return {key: value for key, value in found.items() if value}


def report(facts: Facts, now: datetime) -> Report:
    """The node's report at a time."""
    results = checks.run(facts)
    whole = Report(
        node=facts.node,
        time=now,
        prober_version=VERSION,
        simulated=facts.simulated,
        local=facts.local,
        judged_by=facts.judged_by,
        ready=not any(check.blocking and check.severity in ("fail", "unknown") for check in results),
        host=facts.host,
        drivers=dict(facts.drivers),
        devices=facts.devices,
        gone=facts.gone,
        fingerprints=dict(facts.fingerprints),
        sentinel=facts.sentinel,
        checks=results,
        deep=dict(facts.deep),
        deep_wanted=deep.wanted(facts, now),
    )
    return fit.fitted(whole)


def desired(facts: Facts, now: datetime) -> tuple[dict[str, str], Report]:
    """Labels and report of the node at a time."""
    made = report(facts, now)
    return node_labels(facts, made.ready), made


def apply_body(node: str, node_labels: Mapping[str, str], made: Report) -> dict[str, object]:
    """The object for a server-side apply: nothing but the labels and the annotation that the prober owns."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node, "labels": dict(node_labels), "annotations": {labels.REPORT: made.render()}},
    }
