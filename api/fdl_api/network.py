"""What a run, and FdlCluster as a whole, ask of placement: for the operator, and for ``fdl explain``. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final

from fdl_api.checks.machine import QUARANTINE
from fdl_api.cluster import FdlClusterSpec, QuarantineStatus
from fdl_api.fitting import Cluster, Variant
from fdl_api.nodes import NodeRecord
from fdl_api.report import Check
from fdl_api.run import Cohort, FdlRunSpec
from fdl_api.run_env import template_env
from fdl_api.ways import Communicator

SOCKET_INTERFACE: Final = "NCCL_SOCKET_IFNAME"


def communicator(spec: FdlRunSpec, cohort: Cohort, *, version: str = "") -> Communicator | None:
    """What an NCCL mode asks of the nodes for a cohort; ``None`` in other modes.

    Args:
        spec: the run.
        cohort: one of its cohorts.
        version: major.minor of the members that it has already (status.cohorts[].nccl while an attempt runs).
    """
    if not spec.mode.is_nccl:
        return None
    ceiling = sum(other.ceiling for other in spec.cohorts if other.vendor is cohort.vendor)
    given = SOCKET_INTERFACE in {
        *(entry.name for entry in spec.trainer.env),
        *(name for name, _ in template_env(cohort)),
    }
    return Communicator(version, spans=ceiling > 1, interface_given=given)


def variants(spec: FdlClusterSpec) -> tuple[Variant, ...]:
    """FdlCluster's trainer images as placement looks at them."""
    return tuple(
        Variant(entry.name, str(entry.vendor), entry.image, tuple(entry.archs), entry.nccl_bridge)
        for entry in spec.variants
    )


def sentences(rows: Iterable[QuarantineStatus]) -> dict[str, str]:
    """Why each node in quarantine gets no new member, without times that move by themselves."""
    return {row.name: _sentence(row) for row in rows}


def confined(rows: Iterable[QuarantineStatus]) -> dict[str, Check]:
    """The finding about each node in quarantine."""
    return {
        row.name: QUARANTINE.found(
            "by-people" if row.source == "spec" else "deep-checks", f"in quarantine: {_sentence(row)}"
        )
        for row in rows
    }


def cluster_of(
    spec: FdlClusterSpec, quarantine: Iterable[QuarantineStatus], nodes: Mapping[str, NodeRecord], now: float
) -> Cluster:
    """Everything that placement looks at.

    Args:
        spec: FdlCluster/default.
        quarantine: rows of its status.
        nodes: all nodes, by name.
        now: seconds since 1970.
    """
    return Cluster(
        nodes,
        variants(spec),
        float(spec.prober.report_max_age_seconds),
        now,
        sentences(quarantine),
        spec.fabric.groups,
        spec.defaults.tolerations,
    )


def _sentence(row: QuarantineStatus) -> str:
    return row.reason + (f" (until {row.until})" if row.until else "")
