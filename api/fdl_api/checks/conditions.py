"""What the conditions of FdlCluster may say besides that all is well, and what to do about it.

A condition's message ends with the remedy, for those who read it with kubectl; ``fdl probe`` shows it apart.
"""

from collections.abc import Mapping
from typing import Final

from fdl_api.checks.model import Finding
from fdl_api.reasons import ClusterCondition, ClusterReason

_SEE_PROBERS: Final = "See that the prober's DaemonSet runs: kubectl get pods -A -l fdl.dev/role=prober."

CONDITIONS: Final[Mapping[str, tuple[Finding, ...]]] = {
    ClusterCondition.NODES_READY: (
        Finding(ClusterReason.NO_REPORTS, "unknown", "transient", "no node has a report", _SEE_PROBERS),
        Finding(
            ClusterReason.NODES_NOT_READY,
            "fail",
            "transient",
            "new members are kept off a node: its kubelet, a cordon, a quarantine, an old report, or a blocking check",
            "See each node's problems with their remedies: fdl probe.",
        ),
    ),
    ClusterCondition.NCCL_CONSISTENT: (
        Finding(
            ClusterReason.VERSION_SKEW,
            "fail",
            "permanent",
            "nodes of one vendor load different major.minor of NCCL or RCCL, so that no NCCL cohort can span them",
            "Use images of one major.minor, or give spec.variants[] an ncclBridge.",
        ),
        Finding(
            ClusterReason.VERSION_UNKNOWN,
            "unknown",
            "transient",
            "a node's version is not known",
            "Wait for the deep check of a covering variant there, or set its ncclVersion in spec.variants.",
        ),
    ),
    ClusterCondition.VARIANT_COVERAGE: (
        Finding(ClusterReason.NO_REPORTS, "unknown", "transient", "no node has a report", _SEE_PROBERS),
        Finding(
            ClusterReason.NOT_COVERED,
            "fail",
            "permanent",
            "no variant has kernels for what a node computes on",
            "Add an image whose torch was built for it to spec.variants.",
        ),
        Finding(
            ClusterReason.NOT_JUDGED,
            "unknown",
            "transient",
            "a prober has not judged the variants yet",
            "Wait for the node's next look; if it stays so, see the log of its prober pod.",
        ),
    ),
    ClusterCondition.SHARED_VOLUME_CONSISTENT: (
        Finding(
            ClusterReason.NO_SENTINEL,
            "unknown",
            "permanent",
            "no fresh report has a sentinel",
            "Set prober.sentinel in the chart's values to have the volume checked.",
        ),
        Finding(
            ClusterReason.SENTINEL_UNREADABLE,
            "fail",
            "transient",
            "a node cannot read it",
            "See that the volume is mounted there and that its server answers.",
        ),
        Finding(
            ClusterReason.CONTENT_DIFFERS,
            "fail",
            "permanent",
            "nodes see different contents: they mount different volumes, or one has a stale cache",
            "Mount one volume on all of them; where it is one already, mount it anew to drop what is cached.",
        ),
    ),
    ClusterCondition.FABRIC_KNOWN: (
        Finding(
            ClusterReason.INTERFACE_NOT_NAMED,
            "warn",
            "permanent",
            "spec.fabric names no network interface for a node with devices, and another node has some of its vendor",
            "Name their interface in spec.fabric.groups: NCCL modes with members on several nodes need one.",
        ),
        Finding(
            ClusterReason.INTERFACE_DOWN,
            "warn",
            "transient",
            "pods on a node do not have the interface that is named, or it is down",
            "Bring it up on these nodes, or name another one in spec.fabric.groups.",
        ),
        Finding(
            ClusterReason.INTERFACE_UNKNOWN,
            "unknown",
            "transient",
            "no fresh report lists a node's interfaces",
            "See the log of the prober pods on these nodes.",
        ),
        Finding(
            ClusterReason.MTU_DIFFERS,
            "warn",
            "permanent",
            "nodes of one vendor have the interface with different MTUs",
            "Give them one MTU: large packets may be lost between them, and collectives hang.",
        ),
        Finding(
            ClusterReason.RDMA_DIFFERS,
            "warn",
            "permanent",
            "nodes of one vendor have different RDMA devices",
            "Name those that all have in NCCL_IB_HCA, set NCCL_IB_DISABLE=1, or keep NCCL cohorts on nodes of one kind "
            "by spec.cohorts[].nodeSelector.",
        ),
    ),
    ClusterCondition.CLOCKS_AGREE: (
        Finding(
            ClusterReason.CLOCKS_DIFFER,
            "warn",
            "transient",
            "a node's clock is more than 2 s from the median of all",
            "Run a time service (chrony, systemd-timesyncd) on these nodes.",
        ),
        Finding(
            ClusterReason.CLOCK_UNKNOWN,
            "unknown",
            "transient",
            "fewer than two fresh reports tell their node's clock",
            "See the log of the prober pods: each compares its node's clock with the API server's.",
        ),
    ),
    ClusterCondition.NETWORK_POLICY_ENFORCED: (
        Finding(
            ClusterReason.POLICY_NOT_ENFORCED,
            "warn",
            "permanent",
            "the operator got through to a port of a coordinator on this node that the run's NetworkPolicy closes",
            "Install a network plugin that enforces NetworkPolicies (Calico, Cilium, kube-router), or see its agent on "
            "these nodes; until then any pod of the cluster can reach the members of runs.",
        ),
        Finding(
            ClusterReason.POLICY_NOT_TRIED,
            "unknown",
            "transient",
            "there has been no coordinator to try it on",
            "Start a run whose spec.network.policy is not none: the operator tries its policy by itself.",
        ),
    ),
}


def finding(condition: str, reason: str) -> Finding | None:
    """What is fixed about a reason of a condition; ``None`` where all is well, or where this release knows neither."""
    return next((entry for entry in CONDITIONS.get(condition, ()) if entry.reason == reason), None)


def joined(seen: str, entry: Finding | None) -> str:
    """A condition's message: what was seen, and the remedy."""
    return f"{seen}. {entry.remedy}" if entry is not None else seen


def seen_in(message: str, entry: Finding | None) -> str:
    """What was seen, out of a message of :func:`joined`; the message as it is where it is none."""
    return message.removesuffix(f". {entry.remedy}") if entry is not None else message
