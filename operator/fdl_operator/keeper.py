"""Keeps FdlCluster/default: its status, Events on transitions, and the taints of quarantine."""

import logging
from collections.abc import Callable, Iterable

from fdl_api import labels
from fdl_api.cluster import QuarantineStatus
from fdl_api.network import sentences
from fdl_api.nodes import NodeRecord
from fdl_api.reasons import ClusterReason
from fdl_api.version import GROUP_VERSION
from fdl_operator import client as api
from fdl_operator import clock
from fdl_operator.build.events import event
from fdl_operator.client import ApiError, Client
from fdl_operator.model import EventNote
from fdl_operator.plan import conditions, quarantine
from fdl_operator.plan.cluster import ClusterRecord, describe
from fdl_operator.records import cluster_record
from fdl_operator.settings import Settings
from fdl_operator.store import Store

logger = logging.getLogger(__name__)

WRITE_SECONDS = 1.0
"""Fewest seconds between two writes of the status: a thousand nodes that are labelled at once are a few writes."""
REFRESH_SECONDS = 60.0
REFUSED_SECONDS = 600.0
"""Time for which nothing is tried that the API server has refused for want of a right."""
EVENT_NAMESPACE = "default"
"""Events of objects without a namespace live here."""


class ClusterKeeper:
    """Brings the cluster object and its nodes in line with what is observed."""

    def __init__(
        self, client: Client, store: Store, settings: Settings, written: Callable[[ClusterRecord], None]
    ) -> None:
        self._client = client
        self._store = store
        self._settings = settings
        self._written = written
        self._written_at = 0.0
        self._refused_at: float | None = None

    async def reconcile(self, cluster: ClusterRecord, now: float) -> float:
        """One pass.

        Args:
            cluster: the object as last seen.
            now: seconds since 1970.

        Returns:
            Seconds after which the next pass is due, should nothing happen before.

        Raises:
            ApiError: the status could not be written.
        """
        status = describe(cluster, self._store.nodes.values(), now, self._store.policies)
        self._store.put_quarantine(sentences(status.quarantine))
        await self._taint(cluster, status.quarantine, now)
        if status == cluster.status:
            return _wait(status.quarantine, now)
        wait = self._written_at + WRITE_SECONDS - now
        if 0 < wait <= WRITE_SECONDS:
            return wait
        body = {
            "apiVersion": GROUP_VERSION,
            "kind": "FdlCluster",
            "metadata": {"name": cluster.name, "uid": cluster.uid},
            "status": status.to_dict(),
        }
        written = await self._client.apply(api.CLUSTERS, "", body, subresource="status")
        self._written_at = now
        # Taken in at once: a pass that comes before the watch shows it would write the same again.
        self._written(cluster_record(written))
        for note in conditions.transitions(cluster.status.conditions, status.conditions):
            await self._event(cluster, note, now)
        return _wait(status.quarantine, now)

    def prime(self, cluster: ClusterRecord, now: float) -> None:
        """Know the nodes in quarantine before any run is planned."""
        rows = describe(cluster, self._store.nodes.values(), now).quarantine
        self._store.put_quarantine(sentences(rows))

    async def _taint(self, cluster: ClusterRecord, rows: Iterable[QuarantineStatus], now: float) -> None:
        if self._refused_at is not None and abs(now - self._refused_at) < REFUSED_SECONDS:
            return
        for change in quarantine.taint_changes(cluster.spec.quarantine, rows, self._store.nodes):
            try:
                await self._client.patch(api.NODES, "", change.node.name, quarantine.patch(change))
            except ApiError as error:
                if error.status == 403:
                    await self._refused(cluster, change.node, error, now)
                    return
                # 409 and 422: the node has changed meanwhile, and its newer version comes by the watch.
                level = logging.INFO if error.status in (404, 409, 422) else logging.WARNING
                logger.log(level, "taint of node %s: %s", change.node.name, error)

    async def _refused(self, cluster: ClusterRecord, node: NodeRecord, error: ApiError, now: float) -> None:
        """Say once that the right is missing; nodes are kept out of placement all the same."""
        told, self._refused_at = self._refused_at is not None, now
        if told:
            return
        text = (
            f"the taint {labels.QUARANTINE} of node {node.name} cannot be changed, since the chart gives the operator "
            f"that right only with operator.taintNodes: true ({error.message})"
        )
        logger.warning("%s", text)
        await self._event(cluster, EventNote(ClusterReason.TAINT_REFUSED, text, warning=True), now)

    async def _event(self, cluster: ClusterRecord, note: EventNote, now: float) -> None:
        regarding = {"apiVersion": GROUP_VERSION, "kind": "FdlCluster", "name": cluster.name, "uid": cluster.uid}
        body = event(note, regarding, EVENT_NAMESPACE, self._settings.identity, now)
        try:
            await self._client.create(api.EVENTS, EVENT_NAMESPACE, body)
        except ApiError as error:
            logger.warning("Event %s of FdlCluster/%s: %s", note.reason, cluster.name, error)


def _wait(rows: Iterable[QuarantineStatus], now: float) -> float:
    """Seconds to the next pass: until a quarantine ends by itself, where that comes first."""
    ends = (clock.parse(row.until) for row in rows)
    soonest = min((end - now for end in ends if end is not None), default=REFRESH_SECONDS)
    return min(REFRESH_SECONDS, max(WRITE_SECONDS, soonest))
