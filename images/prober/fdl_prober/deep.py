"""Deep checks from the prober's side: which are wanted, and what a finished pod said. Pure.

The operator starts the pod, the kubelet keeps its termination message, and the prober of the node reads it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from fdl_api import labels
from fdl_api.coverage import covered
from fdl_api.report import DeepFacts, DeepResult, DeepWanted, Outcome, deep_pod_name
from fdl_prober.facts import Facts, image_to_check, known_kernels

RETRY_FIRST: Final = timedelta(minutes=10)
RETRY_LAST: Final = timedelta(hours=6)
IMAGE_REASONS: Final = {
    "ErrImagePull": "ImagePullBackOff",
    "ImagePullBackOff": "ImagePullBackOff",
    "ErrImageNeverPull": "ErrImageNeverPull",
    "InvalidImageName": "InvalidImageName",
    "RegistryUnavailable": "RegistryUnavailable",
}
"""The kubelet's reasons for a container that waits for its image; the first two take turns and are told as one."""


@dataclass(frozen=True, slots=True)
class FinishedPod:
    """A deep check's pod that has ended.

    Attributes:
        name: its name, from :func:`fdl_api.report.deep_pod_name`.
        image: image that it ran.
        message: termination message of its container.
        reason: why it ended, for people.
    """

    name: str
    image: str
    message: str
    reason: str


def finished(pods: Iterable[Mapping[str, Any]], node: str) -> dict[str, FinishedPod]:
    """The deep-check pods of this node that have ended, by name, from a pod list's items."""
    found: dict[str, FinishedPod] = {}
    for pod in pods:
        meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
        own = (meta.get("labels") or {}).get(labels.ROLE) == labels.ROLE_DEEP_CHECK and spec.get("nodeName") == node
        if not own or status.get("phase") not in ("Succeeded", "Failed"):
            continue
        containers: list[Mapping[str, Any]] = status.get("containerStatuses") or []
        ended: Mapping[str, Any] = containers[0].get("state", {}).get("terminated") or {} if containers else {}
        found[meta["name"]] = FinishedPod(
            name=meta["name"],
            image=spec["containers"][0]["image"],
            message=ended.get("message", ""),
            reason=status.get("reason") or ended.get("reason") or status["phase"],
        )
    return found


def image_trouble(pods: Iterable[Mapping[str, Any]], node: str, asked: Iterable[DeepWanted]) -> dict[str, str]:
    """Variants whose deep check waits here because the kubelet cannot get the image, with the kubelet's reason.

    Its message is left out: it changes with every try.
    """
    names = {deep_pod_name(node, want): want for want in asked}
    found: dict[str, str] = {}
    for pod in pods:
        want = names.get(pod["metadata"]["name"])
        for container in (pod.get("status") or {}).get("containerStatuses") or []:
            reason = ((container.get("state") or {}).get("waiting") or {}).get("reason", "")
            if want is not None and reason in IMAGE_REASONS:
                found[want.variant] = f"{IMAGE_REASONS[reason]} ({want.image})"
    return found


def _read(pod: FinishedPod, variant: str) -> DeepFacts | None:
    try:
        facts = DeepFacts.model_validate_json(pod.message)
    except ValueError:
        return None
    return facts if facts.variant == variant else None


def _summary(facts: DeepFacts) -> str:
    if facts.error:
        return facts.error
    bad = [f"device {device.index}: {device.error}" for device in facts.devices if not device.ok]
    if bad:
        return "; ".join(bad)
    on = "on 1 device" if len(facts.devices) == 1 else f"on {len(facts.devices)} devices"
    return f"torch {facts.torch_version} ran a kernel {'in place of a simulated device' if facts.simulated else on}"


def judge(pod: FinishedPod, want: DeepWanted, now: datetime, before: DeepResult | None = None) -> DeepResult:
    """What a finished pod means.

    Args:
        pod: the pod.
        want: what it was made for.
        now: time of reading.
        before: the newest result so far.
    """
    facts = _read(pod, want.variant)
    outcome: Outcome = "no-result" if facts is None else "passed" if facts.passed else "failed"
    wrong, wrong_at = _wrong(facts, want, now, before)
    return DeepResult(
        image=want.image,
        fingerprint=want.fingerprint,
        time=now,
        outcome=outcome,
        failures=0 if outcome == "passed" else want.attempt + 1,
        message=(_summary(facts) if facts else f"the pod ended with {pod.reason} and left no result")[:400],
        wrong=wrong,
        wrong_at=wrong_at,
        facts=facts,
    )


def _wrong(
    facts: DeepFacts | None, want: DeepWanted, now: datetime, before: DeepResult | None
) -> tuple[int, datetime | None]:
    """Checks in a row whose kernels went wrong, and when the newest of them was read.

    Only a kernel that ran and went wrong speaks against the node: what fails before that may be the image's fault.
    """
    if facts is not None and facts.passed:
        return 0, None
    same = before is not None and (before.image, before.fingerprint) == (want.image, want.fingerprint)
    count, at = (before.wrong, before.wrong_at) if before is not None and same else (0, None)
    if facts is not None and any(not device.ok for device in facts.devices):
        return count + 1, now
    return count, at


def settled(results: Mapping[str, DeepResult], now: datetime) -> dict[str, DeepResult]:
    """The results without a failure in the future: it was read by a clock that was set back since, and a quarantine
    that counts from it would last as long as the clock was wrong. It counts from now on.
    """
    return {
        name: result.model_copy(update={"wrong_at": now}) if result.wrong_at and result.wrong_at > now else result
        for name, result in results.items()
    }


def retry_due(result: DeepResult, now: datetime) -> bool:
    """Whether a check that did not pass should be made again: after 10 minutes, then twice as long each time.

    One that was read in the future was read by a clock that was wrong, and has had its time.
    """
    doublings = max(0, min(result.failures - 1, 10))
    return abs(now - result.time) >= min(RETRY_FIRST * (1 << doublings), RETRY_LAST)


def wanted(facts: Facts, now: datetime) -> tuple[DeepWanted, ...]:
    """The deep checks that would add to what is known: of variants that cover this node and were not checked yet."""
    found = []
    for variant in facts.variants:
        result = facts.deep.get(variant.name)
        archs = facts.archs(variant.vendor) if variant.vendor != "cpu" else ()
        kernels = known_kernels(variant, None if result is None or result.outcome != "passed" else result)
        if variant.vendor != "cpu" and (not archs or covered(kernels, archs) < len(archs)):
            continue
        image = image_to_check(variant, facts.variants, facts.simulated)
        if image is None:
            continue
        if result is not None and (result.outcome == "passed" or not retry_due(result, now)):
            continue
        found.append(
            DeepWanted(
                variant=variant.name,
                vendor=variant.vendor,
                image=image,
                fingerprint=facts.fingerprints[variant.vendor],
                devices=len(archs),
                attempt=result.failures if result else 0,
                simulated=facts.simulated and variant.vendor != "cpu",
            )
        )
    return tuple(found)


def collect(
    known: Mapping[str, DeepResult],
    node: str,
    asked: Iterable[DeepWanted],
    pods: Mapping[str, FinishedPod],
    now: datetime,
) -> dict[str, DeepResult]:
    """The newest results, after looking at the pods that have ended.

    Only an answer to an open question counts: a pod for another image, other hardware or an earlier attempt has
    another name and changes nothing.
    """
    results = dict(known)
    for want in asked:
        pod = pods.get(deep_pod_name(node, want))
        if pod is not None and pod.image == want.image:
            results[want.variant] = judge(pod, want, now, known.get(want.variant))
    return results
