"""Why a pod does not come to run, as a sentence that names cohort, image and remedy.

None of these is a death: the kubelet and the scheduler go on trying, and so does fdl (the cause is infrastructure).
Only a name that can be no image's is permanent.
"""

from dataclasses import dataclass
from typing import Final

from fdl_api import labels
from fdl_api.reasons import Ended, Progress
from fdl_operator.model import PodPhase, PodRecord

INVALID_IMAGE: Final = "InvalidImageName"
IMAGE_PROBLEMS: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "ImageInspectError", INVALID_IMAGE}
)
CONFIG_PROBLEMS: Final = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CreatePodSandboxError"}
)
SLOW_SECONDS: Final = 60.0
"""A pod on a node whose container was not made after this long is worth a word."""
REASONS: Final = (Ended.IMAGE_UNAVAILABLE, Ended.CONTAINER_CONFIG, Progress.NOT_SCHEDULED, Progress.SLOW_START)


MISSING_CLAIM: Final = (
    "create the claim in the run's namespace, or bind it; if its name is wrong, correct it in a new run"
)
SHORT: Final = "free or add what is short, or ask for less in resources and nodeSelector"


@dataclass(frozen=True, slots=True)
class Trouble:
    """What a pod waits for: stable reason, sentence, and whether only a person can help."""

    reason: str
    sentence: str
    permanent: bool = False


def trouble(pod: PodRecord, now: float) -> Trouble | None:
    """What keeps a pod from running; ``None`` while nothing is wrong.

    Args:
        pod: the pod.
        now: seconds since 1970.
    """
    if pod.phase is not PodPhase.PENDING:
        return None
    who = "the coordinator" if pod.role == labels.ROLE_COORDINATOR else f"cohort {pod.cohort}"
    detail = _detail(pod)
    if pod.unschedulable and not pod.node:
        remedy = MISSING_CLAIM if "persistentvolumeclaim" in detail else SHORT
        return Trouble(Progress.NOT_SCHEDULED, f"{who}: no node takes pod {pod.name} ({detail}); {remedy}")
    if pod.waiting_reason in IMAGE_PROBLEMS:
        return _image(pod, who, detail)
    if pod.waiting_reason in CONFIG_PROBLEMS:
        sentence = (
            f"{who}: node {pod.node} cannot make the container of pod {pod.name} from image {pod.image} ({detail}); "
            "create what is missing there, or correct spec.trainer.env or podTemplate in a new run"
        )
        return Trouble(Ended.CONTAINER_CONFIG, sentence)
    if pod.node and not pod.waiting_reason and now >= slow_at(pod):
        sentence = (
            f"{who}: node {pod.node} has not started the container of pod {pod.name} in {SLOW_SECONDS:.0f} s; it may "
            f"still pull image {pod.image}, or lack a volume: see kubectl describe pod {pod.name}"
        )
        return Trouble(Progress.SLOW_START, sentence)
    return None


def slow_at(pod: PodRecord) -> float:
    """When a pod that does not start is worth a word."""
    return pod.created_at + SLOW_SECONDS


def _image(pod: PodRecord, who: str, detail: str) -> Trouble:
    where = "the chart's values" if pod.role == labels.ROLE_COORDINATOR else "spec.trainer.image or the variant's image"
    if pod.waiting_reason == INVALID_IMAGE:
        sentence = f"{who}: {pod.image!r} is no valid name of an image ({detail}); correct {where}"
        return Trouble(Ended.IMAGE_UNAVAILABLE, sentence, permanent=True)
    sentence = (
        f"{who}: node {pod.node} cannot get image {pod.image} ({detail}); correct {where}, "
        "push the image, or name the registry's secret in the chart's imagePullSecrets"
    )
    return Trouble(Ended.IMAGE_UNAVAILABLE, sentence)


def _detail(pod: PodRecord) -> str:
    if pod.unschedulable and not pod.node:
        return pod.unschedulable
    return f"{pod.waiting_reason}: {pod.waiting_message}" if pod.waiting_message else pod.waiting_reason
