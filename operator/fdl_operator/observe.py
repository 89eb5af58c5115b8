"""From watch events to the store: kopf for the two own kinds, projected watches for everything else.

kopf's low-level event handlers put no finalizer and no annotation on our objects (cases O1, O3, O6), and its change
detection, which would, is never used. Pods and nodes would cost 8-20 KB each in kopf; here they are projected while
they are parsed.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import kopf

from fdl_api import labels
from fdl_api.nodes import NodeRecord, node_record
from fdl_api.version import API_VERSION, GROUP
from fdl_operator import client as api
from fdl_operator.client import Client, Resource
from fdl_operator.model import ObjectKind, OwnedRecord, PodRecord
from fdl_operator.plan.cluster import ClusterRecord
from fdl_operator.records import cluster_record, owned_record, pod_record, run_record
from fdl_operator.settings import Settings
from fdl_operator.store import Store
from fdl_operator.watch import Watch

logger = logging.getLogger(__name__)

OWNED: dict[ObjectKind, Resource] = {
    ObjectKind.CONFIG_MAP: api.CONFIG_MAPS,
    ObjectKind.SERVICE: api.SERVICES,
    ObjectKind.NETWORK_POLICY: api.NETWORK_POLICIES,
    ObjectKind.DISRUPTION_BUDGET: api.DISRUPTION_BUDGETS,
}


class Watches:
    """The watches of everything but the own kinds."""

    def __init__(
        self,
        client: Client,
        store: Store,
        settings: Settings,
        deep_pods: dict[str, PodRecord],
        cluster_touched: Callable[[], None],
    ) -> None:
        self._watches: list[Watch[Any]] = []
        self._tasks: list[asyncio.Task[None]] = []

        def put_node(key: str, record: NodeRecord) -> None:
            if store.put_node(key, record):
                cluster_touched()

        def drop_node(key: str) -> None:
            store.drop_node(key)
            cluster_touched()

        def put_deep(key: str, record: PodRecord) -> None:
            deep_pods[record.name] = record
            cluster_touched()

        def drop_deep(key: str) -> None:
            deep_pods.pop(key.rpartition("/")[2], None)
            cluster_touched()

        self._watches.append(
            Watch[NodeRecord](client, api.NODES, selector="", project=node_record, put=put_node, drop=drop_node)
        )
        self._watches.append(
            Watch[PodRecord](
                client,
                api.PODS,
                selector=f"{labels.ROLE}={labels.ROLE_DEEP_CHECK}",
                namespace=settings.namespace,
                project=pod_record,
                put=put_deep,
                drop=drop_deep,
            )
        )
        for namespace in settings.watch_namespaces or ("",):
            self._watches.append(
                Watch[PodRecord](
                    client,
                    api.PODS,
                    selector=labels.RUN_UID,
                    namespace=namespace,
                    project=pod_record,
                    put=store.put_pod,
                    drop=store.drop_pod,
                )
            )
            self._watches.extend(_owned_watch(client, store, kind, namespace) for kind in OWNED)

    def start(self) -> None:
        """Start watching."""
        self._tasks = [asyncio.create_task(watch.run(), name="watch") for watch in self._watches]

    async def synced(self) -> None:
        """Return once every first list is complete: before that nothing may be planned."""
        for watch in self._watches:
            await watch.synced.wait()

    async def broken(self) -> None:
        """Return never; raise what ended a watch: an operator that sees only half must not go on."""
        await asyncio.gather(*self._tasks)

    async def stop(self) -> None:
        """Stop watching."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _owned_watch(client: Client, store: Store, kind: ObjectKind, namespace: str) -> Watch[OwnedRecord]:
    return Watch[OwnedRecord](
        client,
        OWNED[kind],
        selector=f"{labels.MANAGED_BY}={labels.MANAGED_BY_VALUE},{labels.RUN_UID}",
        namespace=namespace,
        project=lambda item: owned_record(item, kind),
        put=store.put_owned,
        drop=lambda key: store.drop_owned(kind, key),
        metadata_only=True,
    )


def registry(store: Store, cluster_changed: Callable[[ClusterRecord | None], None]) -> kopf.OperatorRegistry:
    """kopf's handlers: they take the event in, and do nothing else."""
    handlers = kopf.OperatorRegistry()
    told: set[tuple[str, ...]] = set()

    def tell(what: str, unknown: tuple[str, ...]) -> None:
        """Say what this release goes on without; once, for a newer schema fills in the same fields of every object."""
        if unknown and unknown not in told:
            told.add(unknown)
            logger.warning("%s: this release does not know %s, and goes on without", what, ", ".join(unknown))

    async def run_event(*, event: Any, **_: Any) -> None:
        record = run_record(event["object"])
        tell(f"FdlRun {record.namespace}/{record.name}", record.unknown)
        if not record.phase_known:
            logger.error("FdlRun %s/%s: %s; it is left alone", record.namespace, record.name, record.problem)
        if event["type"] == "DELETED":
            store.drop_run(record.key, record.uid)
        else:
            store.put_run(record)

    async def cluster_event(*, event: Any, **_: Any) -> None:
        item = event["object"]
        if item["metadata"]["name"] != "default":
            return
        record = None if event["type"] == "DELETED" else cluster_record(item)
        tell("FdlCluster/default", record.unknown if record is not None else ())
        store.put_cluster(record.spec if record is not None else None)
        cluster_changed(record)

    kopf.on.event(GROUP, API_VERSION, api.RUNS.plural, registry=handlers, id="runs")(run_event)
    kopf.on.event(GROUP, API_VERSION, api.CLUSTERS.plural, registry=handlers, id="clusters")(cluster_event)
    return handlers


def kopf_settings() -> kopf.OperatorSettings:
    """kopf as quiet as it can be: no Events from log lines, no peering, watches of five minutes."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.watching.server_timeout = 300
    settings.watching.connect_timeout = 10
    settings.watching.chunk_size = api.PAGE
    settings.networking.request_timeout = 30
    settings.networking.enforce_retry_after = True
    settings.scanning.disabled = True  # no right to list CRDs and namespaces is needed; see Engine.await_kinds
    settings.queueing.idle_timeout = 1.0
    settings.persistence.finalizer = f"{GROUP}/unused"
    return settings


def login(client: Client) -> Callable[..., Any]:
    """A kopf login handler with the credentials of our own client."""

    async def connection(**_: Any) -> kopf.ConnectionInfo:
        configuration = client.configuration
        header = await configuration.get_api_key_with_prefix("BearerToken", "authorization")
        scheme, _separator, token = (header or "").partition(" ")
        return kopf.ConnectionInfo(
            server=configuration.host,
            ca_path=configuration.ssl_ca_cert,
            ca_data=configuration.ca_cert_data,
            insecure=not configuration.verify_ssl,
            scheme=scheme.capitalize() or None,
            token=token or None,
            certificate_path=configuration.cert_file,
            private_key_path=configuration.key_file,
        )

    return connection
