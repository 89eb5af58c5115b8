"""Labels and annotations that fdl writes and reads.

Every key lies in the ``fdl.dev/`` domain. Node labels are written by the prober of that node, object
labels by the operator.
"""

from typing import Final

DOMAIN: Final = "fdl.dev/"

# On the objects of a run.
RUN: Final = DOMAIN + "run"
RUN_UID: Final = DOMAIN + "run-uid"
COHORT: Final = DOMAIN + "cohort"
ORDINAL: Final = DOMAIN + "ordinal"
INCARNATION: Final = DOMAIN + "incarnation"
ATTEMPT: Final = DOMAIN + "attempt"
ROLE: Final = DOMAIN + "role"
ROLE_MEMBER: Final = "member"
ROLE_COORDINATOR: Final = "coordinator"
ROLE_OPERATOR: Final = "operator"
ROLE_PROBER: Final = "prober"
ROLE_DEEP_CHECK: Final = "deep-check"
MANAGED_BY: Final = "app.kubernetes.io/managed-by"
MANAGED_BY_VALUE: Final = "fdl"
SPEC_HASH: Final = DOMAIN + "spec-hash"
"""Annotation: hash of what the operator last applied, so that an unchanged object costs no call."""

SAVE_NOW: Final = DOMAIN + "save-now"
"""Annotation that people put on an FdlRun: each new content, e.g. the time, asks for one checkpoint."""

PROBE_NOW: Final = DOMAIN + "probe-now"
"""Annotation that people put on a Node: each new content, e.g. the time, asks its prober for a look."""

FIELD_MANAGER: Final = "fdl-operator"
PROBER_FIELD_MANAGER: Final = "fdl-prober"

# On nodes, for people.
GPU_VENDOR: Final = DOMAIN + "gpu-vendor"
GPU_ARCH: Final = DOMAIN + "gpu-arch"
NCCL_VERSION: Final = DOMAIN + "nccl-version"
LIBTORCH_VERSION: Final = DOMAIN + "libtorch-version"
LIBTORCH_BUILD: Final = DOMAIN + "libtorch-build"
LIBTORCH_COVERAGE: Final = DOMAIN + "libtorch-coverage"
READY: Final = DOMAIN + "ready"
SIMULATED: Final = DOMAIN + "simulated"

# On nodes, for placement.
VENDOR_PREFIX: Final = DOMAIN + "vendor."
COUNT_PREFIX: Final = DOMAIN + "count."
ARCH_PREFIX: Final = DOMAIN + "arch."
VARIANT_PREFIX: Final = DOMAIN + "variant."
NCCL_PREFIX: Final = DOMAIN + "nccl."

QUARANTINE: Final = DOMAIN + "quarantine"
"""Key of the taint on nodes in quarantine, where FdlCluster asks for one."""

REPORT: Final = DOMAIN + "report"
"""Annotation on a node: the prober's evidence as JSON (:mod:`fdl_api.report`), with its time."""

GPU_VENDORS: Final = ("nvidia", "amd")
DEVICE_RESOURCES: Final = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu"}
"""Extended resource of each vendor's devices, as its device plugin names it; also the key of the usual taint."""
VARIANT_VALUES: Final = ("covers", "gap", "verified", "simulated")


def vendor(name: str) -> str:
    """Label that says whether a node has devices of a vendor, e.g. ``fdl.dev/vendor.nvidia``."""
    return VENDOR_PREFIX + name


def count(name: str) -> str:
    """Label with the number of devices of a vendor on a node."""
    return COUNT_PREFIX + name


def arch(token: str) -> str:
    """Label of one device architecture present on a node, e.g. ``fdl.dev/arch.sm_90``."""
    return ARCH_PREFIX + token


def variant(name: str) -> str:
    """Label with what a variant's torch is known to cover on a node, one of :data:`VARIANT_VALUES`."""
    return VARIANT_PREFIX + name


def nccl(variant_name: str) -> str:
    """Label with the NCCL or RCCL major.minor that a variant loads on a node."""
    return NCCL_PREFIX + variant_name
