"""Deep checks: short-lived pods in a variant's own image that run one real kernel per device of a node.

The prober of a node asks for one in its report; the same wish has the same pod name, so that asking twice is harmless.
The pod's result is read by that prober. A pod that nobody wants any more is deleted.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from fdl_api import labels
from fdl_api import report as reports
from fdl_api.cluster import FdlClusterSpec
from fdl_api.nodes import NodeRecord
from fdl_api.report import DeepWanted, deep_pod_name
from fdl_operator import client as api
from fdl_operator.build.common import CONTAINER_SECURITY, POD_SECURITY, Body
from fdl_operator.client import ApiError, Client
from fdl_operator.model import PodRecord
from fdl_operator.settings import Settings

logger = logging.getLogger(__name__)

MAX_AT_ONCE: Final = 8
"""Deep checks that may run at one time in the whole cluster: images are large."""
MAX_DEVICES: Final = 512
DEADLINE_SECONDS: Final = 600
PENDING_SECONDS: Final = 900.0
"""A deep check that has not started by then (no image, no free device) is taken back and asked for again later."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Deep checks to start, by pod name, pods to delete, and the names of all that are wanted."""

    start: dict[str, tuple[str, DeepWanted]]
    delete: list[PodRecord]
    wanted: frozenset[str]


def decide(
    spec: FdlClusterSpec, nodes: Iterable[NodeRecord], pods: Mapping[str, PodRecord], tried: set[str], now: float
) -> Decision:
    """What to start and what to delete.

    Args:
        spec: FdlCluster/default; ``prober.deepCheck`` false starts nothing.
        nodes: all nodes.
        pods: deep-check pods that exist, by name.
        tried: names of pods that were made before, as far as remembered.
        now: seconds since 1970.
    """
    wishes: dict[str, tuple[str, DeepWanted]] = {}
    for node in nodes:
        report = reports.parse(node.report)
        if report is None or not node.ready or not spec.prober.deep_check:
            continue
        for wish in {wish.variant: wish for wish in report.deep_wanted}.values():
            if _of_the_cluster(spec, wish):
                wishes[deep_pod_name(node.name, wish)] = (node.name, wish)
    delete = [
        pod
        for name, pod in pods.items()
        if pod.deleted_at is None
        and (name not in wishes or (pod.phase == "Pending" and now - pod.created_at > PENDING_SECONDS))
    ]
    running = sum(1 for pod in pods.values() if not pod.ended)
    room = max(0, MAX_AT_ONCE - running)
    new = [name for name in sorted(wishes) if name not in pods and name not in tried]
    return Decision({name: wishes[name] for name in new[:room]}, delete, frozenset(wishes))


def _of_the_cluster(spec: FdlClusterSpec, wish: DeepWanted) -> bool:
    """Whether a wish is about a variant of FdlCluster and its image: a report is written on the node, and whoever has
    the node must not choose what the operator starts.
    """
    variant = next((each for each in spec.variants if each.name == wish.variant), None)
    if variant is None or variant.vendor != wish.vendor or not 0 <= wish.devices <= MAX_DEVICES:
        return False
    images = [each.image for each in spec.variants if each.vendor == "cpu"] if wish.simulated else [variant.image]
    return wish.image in images


def pod(node: str, wish: DeepWanted, settings: Settings) -> Body:
    """The pod of one deep check. It asks for all devices of its vendor, except where they are simulated."""
    container: Body = {
        "name": "deep-check",
        "image": wish.image,
        "imagePullPolicy": settings.image_pull_policy,
        "command": ["python", "-m", "fdl_trainer.deepcheck", "--variant", wish.variant, "--vendor", wish.vendor],
        "securityContext": CONTAINER_SECURITY,
        "resources": {"requests": {"cpu": "10m", "memory": "64Mi"}},
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108 - a path in the container
    }
    if wish.simulated:
        container["command"].append("--simulated")
    elif wish.vendor != "cpu" and wish.devices:
        container["resources"]["limits"] = {labels.DEVICE_RESOURCES[wish.vendor]: str(wish.devices)}
    spec: Body = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": DEADLINE_SECONDS,
        "enableServiceLinks": False,
        "automountServiceAccountToken": False,
        "securityContext": POD_SECURITY,
        "terminationGracePeriodSeconds": 1,
        "tolerations": [{"operator": "Exists"}],
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [
                        {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
                    ]
                }
            }
        },
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    if settings.image_pull_secrets:
        spec["imagePullSecrets"] = [{"name": secret} for secret in settings.image_pull_secrets]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": deep_pod_name(node, wish),
            "namespace": settings.namespace,
            "labels": {labels.MANAGED_BY: labels.MANAGED_BY_VALUE, labels.ROLE: labels.ROLE_DEEP_CHECK},
        },
        "spec": spec,
    }


class DeepChecks:
    """Starts and deletes deep-check pods. ``pods`` is kept by a watch."""

    def __init__(self, client: Client, settings: Settings) -> None:
        self._client = client
        self._settings = settings
        self.pods: dict[str, PodRecord] = {}
        self._tried: dict[str, float] = {}
        """When each pod was made; the watch shows it a little later."""

    async def reconcile(self, spec: FdlClusterSpec, nodes: Iterable[NodeRecord], now: float) -> None:
        """Bring the pods in line with what the probers ask for."""
        # A pod that somebody else has deleted did not answer, and what nobody wants any more may be wanted anew: by a
        # node that was removed and came back.
        recent = {name for name, at in self._tried.items() if now - at < PENDING_SECONDS}
        decision = decide(spec, nodes, self.pods, recent, now)
        self._tried = {name: self._tried[name] for name in recent & decision.wanted}
        for name, (node, wish) in decision.start.items():
            try:
                await self._create(pod(node, wish, self._settings))
            except ApiError as error:
                logger.warning("deep check %s on node %s: %s", wish.variant, node, error)
            else:
                self._tried[name] = now
        for record in decision.delete:
            await self._client.delete(api.PODS, record.namespace, record.name, uid=record.uid)
            if not record.ended:
                self._tried.pop(record.name, None)

    async def _create(self, body: dict[str, Any]) -> None:
        try:
            await self._client.create(api.PODS, self._settings.namespace, body)
        except ApiError as error:
            if error.status != 409:
                raise
