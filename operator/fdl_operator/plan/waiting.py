"""Why a pod does not come to run, as a sentence that names cohort, image and remedy.

None of these is a death: the kubelet and the scheduler go on trying, and so does fdl (the cause is infrastructure).
Only a name that can be no image's is permanent.
"""

import re
from dataclasses import dataclass
from typing import Final

from fdl_api import labels
from fdl_api.reasons import Ended, Progress
from fdl_operator import clock
from fdl_operator.model import NCCL_INIT, PodPhase, PodRecord

INVALID_IMAGE: Final = "InvalidImageName"
IMAGE_PROBLEMS: Final = frozenset(
    {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "ImageInspectError", INVALID_IMAGE}
)
CONFIG_PROBLEMS: Final = frozenset(
    {"CreateContainerConfigError", "CreateContainerError", "RunContainerError", "CreatePodSandboxError"}
)
EARLY_SECONDS: Final = 5.0
"""After this long on a node a pod without a container is told with what the node does for it: no fault so far."""
SLOW_SECONDS: Final = 60.0
"""A pod on a node whose container was not made after this long is worth a word."""
REASONS: Final = (
    Ended.IMAGE_UNAVAILABLE,
    Ended.CONTAINER_CONFIG,
    Progress.NOT_SCHEDULED,
    Progress.SLOW_START,
    Progress.PULLING,
    Progress.STARTING,
)
"""Most telling first."""
FINE: Final = (Progress.SLOW_START, Progress.PULLING, Progress.STARTING)
"""Those of a pod that may still come to run by itself."""

_MISSING: Final = re.compile(r'(persistentvolumeclaim|configmap|secret) "([^"]+)" not found')
_MISSING_KEY: Final = re.compile(r"couldn't find key (\S+) in (ConfigMap|Secret) (?:[^/\s]+/)?(\S+)")
_PREEMPTION: Final = re.compile(r"(?:^|[.,])\s*preemption: |[.,]\s*no new claims to deallocate")
"""Where the scheduler's words begin to be of preemption."""
_KINDS: Final = {"persistentvolumeclaim": "PersistentVolumeClaim", "configmap": "ConfigMap", "secret": "Secret"}
UNBOUND_CLAIM: Final = (
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
        remedy = missing(detail, pod.namespace) or (
            UNBOUND_CLAIM if "persistentvolumeclaim" in detail.lower() else SHORT
        )
        return Trouble(Progress.NOT_SCHEDULED, f"{who}: no node takes pod {pod.name} ({detail}); {remedy}")
    if pod.waiting_reason in IMAGE_PROBLEMS:
        return _image(pod, who, detail)
    if pod.waiting_reason in CONFIG_PROBLEMS:
        remedy = missing(detail, pod.namespace) or (
            "create what is missing there, or correct spec.trainer.env or podTemplate in a new run"
        )
        sentence = (
            f"{who}: node {pod.node} cannot make the container of pod {pod.name} from image {pod.image} ({detail}); "
            f"{remedy}"
        )
        return Trouble(Ended.CONTAINER_CONFIG, sentence)
    return _starting(pod, who, now) if pod.node and not pod.waiting_reason else None


def missing(detail: str, namespace: str) -> str:
    """What to do about the object that a message of the kubelet or the scheduler calls missing, by its name.

    Args:
        detail: the message.
        namespace: of the run.

    Returns:
        The end of a sentence; empty when the message names none.
    """
    if found := _MISSING.search(detail):
        name = f"{_KINDS[found[1]]} {found[2]}"
        return f"create {name} in namespace {namespace}; if its name is wrong, correct it in a new run"
    if found := _MISSING_KEY.search(detail):
        return f"add the key {found[1]} to {found[2]} {found[3]} in namespace {namespace}, or correct it in a new run"
    return ""


def _starting(pod: PodRecord, who: str, now: float) -> Trouble | None:
    """What a node does for a pod whose container it has not made yet; said early, since a pull may take minutes."""
    since = _began(pod)
    at = clock.render(since)
    where = f"{who}: node {pod.node}"
    if pod.sandbox_at is not None and now >= pod.sandbox_at + EARLY_SECONDS:
        return Trouble(Progress.PULLING, f"{where} gets image {pod.image} for pod {pod.name} since {at}")
    mounts = f"mount {', '.join(pod.mounts)}" if pod.mounts else "mount its volumes"
    if now >= slow_at(pod):
        sentence = (
            f"{where} has not started the container of pod {pod.name} since {at}, for more than {SLOW_SECONDS:.0f} s; "
            f"it may still pull image {pod.image}, or cannot {mounts}: see kubectl describe pod {pod.name}"
        )
        return Trouble(Progress.SLOW_START, sentence)
    if now >= since + EARLY_SECONDS:
        sentence = f"{where} prepares pod {pod.name} since {at}: it has to {mounts}, and to pull image {pod.image}"
        return Trouble(Progress.STARTING, f"{sentence} where it has not got it")
    return None


def next_word_at(pod: PodRecord, now: float) -> float | None:
    """When there will be more to say about a pod that starts; ``None`` when never."""
    since = _began(pod)
    return min((at for at in (since + EARLY_SECONDS, slow_at(pod)) if at > now), default=None)


def _began(pod: PodRecord) -> float:
    """When the node began with what it does for a pod now."""
    return pod.sandbox_at or pod.scheduled_at or pod.created_at


def slow_at(pod: PodRecord) -> float:
    """When a pod that does not start is worth a word."""
    return pod.created_at + SLOW_SECONDS


def _image(pod: PodRecord, who: str, detail: str) -> Trouble:
    where = "the chart's values" if pod.role == labels.ROLE_COORDINATOR else "spec.trainer.image or the variant's image"
    if pod.init_container == NCCL_INIT:
        where = "spec.variants[].ncclBridge.image of FdlCluster/default"
    if pod.waiting_reason == INVALID_IMAGE:
        sentence = f"{who}: {pod.image!r} is no valid name of an image ({detail}); correct {where}"
        return Trouble(Ended.IMAGE_UNAVAILABLE, sentence, permanent=True)
    sentence = (
        f"{who}: node {pod.node} cannot get image {pod.image} ({detail}); correct {where}, "
        "push the image, or name the registry's secret in the chart's imagePullSecrets"
    )
    return Trouble(Ended.IMAGE_UNAVAILABLE, sentence)


def condensed(words: str) -> str:
    """What the scheduler says, each thing once.

    It ends with what preemption could do, which repeats the count of nodes, and may add a reason's last words a second
    time ('persistentvolumeclaim "data" not found. not found').

    Args:
        words: the message of the condition PodScheduled.
    """
    parts: list[str] = []
    for part in _PREEMPTION.split(words)[0].split(". "):
        text = part.strip().rstrip(".")
        if text and not any(f" {text} " in f" {before} " for before in parts):
            parts.append(text)
    return ". ".join(parts) or words


def _detail(pod: PodRecord) -> str:
    if pod.unschedulable and not pod.node:
        return condensed(pod.unschedulable)
    return f"{pod.waiting_reason}: {pod.waiting_message}" if pod.waiting_message else pod.waiting_reason
