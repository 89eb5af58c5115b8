"""Why a pod ended: one cause a death, by fixed precedence, billed to one budget (cases J5, Q8).

Precedence: disruption > node > out of memory > what the agent wrote > exit code. So a drained pod whose
script died of the SIGTERM is a preemption, not a fault of the script.
"""

from dataclasses import dataclass
from typing import Final

from fdl_api import termination
from fdl_api.exitcodes import PodExit
from fdl_api.nodes import NodeRecord
from fdl_api.reasons import Ended, Refusal
from fdl_api.termination import Cause
from fdl_operator.model import NCCL_INIT, PodPhase, PodRecord

SEAT_ONLY: Final = frozenset(
    {
        Refusal.WIRE_VERSION_MISMATCH,
        Refusal.UNKNOWN_COHORT,
        Refusal.VENDOR_MISMATCH,
        Refusal.NCCL_VERSION_SKEW,
        Refusal.MODEL_MISMATCH,
        Refusal.DATASET_MISMATCH,
        Refusal.COHORT_FULL,
        Refusal.BAD_REQUEST,
    }
)
"""Refusals that say something about one member: the run goes on without it."""

_NODE_REASONS: Final = frozenset({"NodeLost", "NodeShutdown", "Shutdown", "Terminated", "NodeAffinity"})
_DISRUPTIONS: Final = {"PreemptionByScheduler": Ended.PREEMPTED}

_EXIT: Final[dict[int, tuple[Cause, Ended]]] = {
    PodExit.USER_CODE: (Cause.APP, Ended.SCRIPT_EXITED),
    PodExit.DIVERGED: (Cause.APP, Ended.SCRIPT_EXITED),
    PodExit.DATA: (Cause.APP, Ended.DATASET_MISMATCH),
    PodExit.INTERNAL: (Cause.INFRASTRUCTURE, Ended.INTERNAL),
    PodExit.LEFT: (Cause.PREEMPTION, Ended.LEFT),
    PodExit.FENCED: (Cause.FENCED, Ended.FENCED),
    PodExit.BELOW_MINIMUM: (Cause.INFRASTRUCTURE, Ended.BELOW_MINIMUM),
    PodExit.COORDINATOR_LOST: (Cause.INFRASTRUCTURE, Ended.COORDINATOR_LOST),
    PodExit.REFUSED: (Cause.APP, Ended.REFUSED),
    PodExit.KILLED: (Cause.INFRASTRUCTURE, Ended.KILLED),
    PodExit.TERMINATED: (Cause.PREEMPTION, Ended.LEFT),
}


@dataclass(frozen=True, slots=True)
class Death:
    """Why one incarnation ended.

    Attributes:
        cause: the budget that it is billed to; ``complete`` to none, ``fenced`` as :mod:`fdl_operator.plan.budgets`
            says.
        reason: stable word, of :class:`fdl_api.reasons.Ended` or a refusal.
        message: sentence for people.
        permanent: whether another try cannot help until a person acts.
    """

    cause: Cause
    reason: str
    message: str
    permanent: bool = False

    @property
    def refused(self) -> bool:
        """Whether the coordinator refused this member alone."""
        return self.permanent and self.reason in SEAT_ONLY

    @property
    def given_up(self) -> bool:
        """Whether nothing ended the member but the coordinator's not hearing of it."""
        return self.cause is Cause.FENCED or self.reason == Ended.HEARTBEAT_LOST


VANISHED: Final = Death(Cause.PREEMPTION, Ended.POD_DELETED, "the pod was deleted")

APART: Final = Death(
    Cause.FENCED,
    Ended.FENCED,
    "it finished with a coordinator that had been replaced, apart from the run: what it trained there does not count",
)
"""A member that was cut off together with the old coordinator, and saw an end that is not the run's."""


def classify(pod: PodRecord, node: NodeRecord | None) -> Death:
    """Cause of the end of a pod that has ended, or that will not come back.

    Args:
        pod: the pod as last seen.
        node: its node; ``None`` when the node does not exist (any more).
    """
    return _disruption(pod) or _node(pod, node) or _out_of_memory(pod) or _last_words(pod) or _by_exit_code(pod)


def _disruption(pod: PodRecord) -> Death | None:
    if pod.disruption and not _finished_well(pod):
        reason = _DISRUPTIONS.get(pod.disruption, Ended.EVICTED)
        return Death(Cause.PREEMPTION, reason, _join(f"the pod was disrupted ({pod.disruption})", pod.status_message))
    if pod.status_reason == "Evicted":
        return Death(Cause.PREEMPTION, Ended.EVICTED, _join("the kubelet evicted the pod", pod.status_message))
    return None


def _node(pod: PodRecord, node: NodeRecord | None) -> Death | None:
    if pod.status_reason in _NODE_REASONS:
        return Death(Cause.INFRASTRUCTURE, Ended.NODE_LOST, _join(f"node {pod.node} went away", pod.status_message))
    if pod.node and not pod.ended and (node is None or not node.ready):
        state = "does not exist any more" if node is None else "is not ready"
        return Death(Cause.INFRASTRUCTURE, Ended.NODE_LOST, f"node {pod.node} {state}")
    return None


def _out_of_memory(pod: PodRecord) -> Death | None:
    if pod.exit_reason != "OOMKilled":
        return None
    return Death(
        Cause.APP,
        Ended.OUT_OF_MEMORY,
        "the kernel killed the container for memory; raise spec.trainer.resources.limits.memory or lower the batch",
    )


def _last_words(pod: PodRecord) -> Death | None:
    words = termination.parse(pod.termination)
    if words is None:
        return None
    return Death(words.cause, words.reason, words.message, words.permanent)


def _by_exit_code(pod: PodRecord) -> Death:
    code = pod.exit_code
    if not pod.ended and code is None:
        return Death(Cause.PREEMPTION, Ended.POD_DELETED, "the pod was deleted and does not end")
    if code is None:
        reason = pod.status_reason or "no exit code"
        return Death(Cause.INFRASTRUCTURE, Ended.INTERNAL, _join(f"the pod failed ({reason})", pod.status_message))
    if code == 0:
        return Death(
            Cause.APP,
            Ended.SCRIPT_EXITED,
            "the container exited 0 without fdl's last words; do not replace its command in podTemplate",
        )
    if pod.init_container == NCCL_INIT:
        sentence = (
            f"its init container {NCCL_INIT} could not copy the library from image {pod.image} (exit code {code}); "
            "correct image or path of the variant's ncclBridge in FdlCluster/default"
        )
        return Death(Cause.INFRASTRUCTURE, Ended.CONTAINER_CONFIG, _join(sentence, pod.termination[:500]))
    cause, ended = _EXIT.get(code, (Cause.APP, Ended.SCRIPT_EXITED))
    if pod.exit_reason in ("ContainerCannotRun", "StartError", "CreateContainerError"):
        cause, ended = Cause.INFRASTRUCTURE, Ended.CONTAINER_CONFIG
    return Death(cause, ended, _join(f"the container ended with exit code {code}", pod.termination[:500]))


def _finished_well(pod: PodRecord) -> bool:
    words = termination.parse(pod.termination)
    return pod.phase is PodPhase.SUCCEEDED and words is not None and words.cause is Cause.COMPLETE


def _join(sentence: str, detail: str) -> str:
    return f"{sentence}: {detail}" if detail else sentence
