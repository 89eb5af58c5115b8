"""Checks of NCCL and RCCL."""

import re
from collections.abc import Iterator
from typing import Final

from fdl_api.checks import software as catalogue
from fdl_api.nccl_env import troubles
from fdl_api.report import Check
from fdl_prober.facts import Facts, missing_libraries

_LIBRARY: Final = re.compile(r"(lib[nr]ccl\.so[.\d]*): cannot open")


def major_minor(version: str) -> str:
    """``2.27.3`` is ``2.27``; NCCL releases of one major.minor work together."""
    return ".".join(version.split(".")[:2])


def nccl_library(facts: Facts) -> Iterator[Check]:
    """Whether a variant loads the NCCL or RCCL that the cluster's list says; on a machine, which ones it has."""
    info = catalogue.NCCL_LIBRARY
    for variant in facts.variants:
        result = facts.deep.get(variant.name)
        if variant.vendor == "cpu" or result is None or result.facts is None or result.facts.simulated:
            continue
        if result.facts.error and not result.facts.torch_version:
            continue  # torch did not load, so nothing is known of NCCL unless the loader missed just that
        loaded, told = result.facts.nccl_version, variant.nccl_version
        if not loaded:
            yield info.found("none-loaded", "torch in this variant's image loads no NCCL or RCCL", variant.name)
        elif told is not None and major_minor(told) != major_minor(loaded):
            message = f"the image loads NCCL {loaded}, FdlCluster says {told}; the label has what was loaded"
            yield info.found("differs", message, variant.name)
        else:
            yield info.passed(f"NCCL {loaded} loads", variant.name)
    for name, library in missing_libraries(facts, _LIBRARY):
        yield info.found("none-loaded", f"torch does not load without {library}", name)
    yield from _machine(facts)


def _machine(facts: Facts) -> Iterator[Check]:
    """The libraries of a machine outside of a cluster, whose torch loads one of them."""
    box = facts.seen.box
    if box is None or not facts.vendors or facts.unseen("installed-nccl"):
        return
    info = catalogue.NCCL_LIBRARY
    versions = {path: version or "of unknown version" for path, version in box.nccl.items()}
    told = ", ".join(sorted(set(versions.values())))
    if not versions:
        yield info.found("not-found", "no libnccl.so or librccl.so was found")
    elif len({major_minor(version) for version in box.nccl.values() if version}) > 1:
        yield info.found("several", f"there are several: {told}", evidence=versions)
    else:
        yield info.passed(told)


def nccl_environment(facts: Facts) -> Iterator[Check]:
    """Variables that make NCCL hang, fail or crawl, outside of a cluster; in one, a run's spec sets them."""
    box = facts.seen.box
    if box is None or facts.unseen("environment"):
        return
    found = troubles(box.environment, facts.host.interfaces)
    for trouble in found:
        names = ", ".join(trouble.variables)
        told = {name: box.environment[name] for name in trouble.variables}
        yield catalogue.NCCL_ENVIRONMENT.found(trouble.reason, f"{names}: {trouble.message}", names, told)
    if not found:
        yield catalogue.NCCL_ENVIRONMENT.passed("no variable is in the way")


ALL = (nccl_library, nccl_environment)
