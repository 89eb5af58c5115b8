"""Ties it together: store, queue, plan, act."""

import asyncio
import logging
import time
from collections.abc import Callable

from fdl_api import labels, names
from fdl_api.version import GROUP_VERSION
from fdl_operator import client as api
from fdl_operator.act import Actor, ConflictError
from fdl_operator.client import ApiError, Client, Throttle
from fdl_operator.deepcheck import DeepChecks
from fdl_operator.keeper import ClusterKeeper
from fdl_operator.model import ObjectKind, PodRecord, RunKey, Snapshot, StreamView, Wake, WriteStatus
from fdl_operator.plan import plan
from fdl_operator.plan.cluster import ClusterRecord
from fdl_operator.policies import Door, Policies
from fdl_operator.queue import WorkQueue
from fdl_operator.records import cluster_record
from fdl_operator.settings import Settings
from fdl_operator.store import Store
from fdl_operator.streams import Streams, Target

logger = logging.getLogger(__name__)

CLUSTER_KEY: RunKey = ("", "default")
"""The cluster object's key in the queue; no run has an empty namespace."""


class Engine:
    """The operator while it leads."""

    def __init__(self, client: Client, settings: Settings, clock: Callable[[], float] = time.time) -> None:
        self._client = client
        self._settings = settings
        self._clock = clock
        self.queue: WorkQueue[RunKey] = WorkQueue(self.reconcile, workers=settings.workers)
        self.store = Store(settings.limits, self.queue.add, clock)
        self.streams = Streams(self.store.stream, self._put_stream, clock)
        self._actor = Actor(client, self.store, self.streams, settings)
        self._training = Throttle(
            settings.limits.training_writes_per_second, settings.limits.training_writes_per_second
        )
        self.store.training_budget = self._training.available
        self.cluster: ClusterRecord | None = None
        self.deep = DeepChecks(client, settings)
        self._keeper = ClusterKeeper(client, self.store, settings, self.cluster_changed)
        self._targets: dict[RunKey, str] = {}
        self._policies = Policies(self._policy_tried)

    def cluster_changed(self, record: ClusterRecord | None) -> None:
        """FdlCluster/default was seen, or is gone. What is no newer than what is known says nothing."""
        if record is not None and self.cluster is not None and not record.is_newer_than(self.cluster):
            return
        self.cluster = record
        self.queue.add(CLUSTER_KEY)

    def cluster_touched(self) -> None:
        """The node table may need an update; many changes at once become one."""
        self.queue.add_after(CLUSTER_KEY, 1.0)

    async def reconcile(self, key: RunKey) -> None:
        """One pass for one key. Raises what another try may mend."""
        if key == CLUSTER_KEY:
            await self._reconcile_cluster()
            return
        snapshot = self.store.snapshot(key)
        if snapshot is None:
            self._end_stream(key)
            self.queue.forget(key)
            return
        now = self._clock()
        actions = plan(snapshot, now)
        work = [action for action in actions if not isinstance(action, Wake)]
        for action in actions:
            if isinstance(action, Wake):
                self.queue.add_after(key, max(0.05, action.at - now))
        if any(isinstance(action, WriteStatus) and action.training for action in work):
            self._training.delay()
        if work:
            try:
                await self._actor.perform(snapshot, work, now)
            except ConflictError as conflict:
                # The newer version comes by the watch; should it have come already, look again at once.
                logger.debug("%s", conflict)
                self.queue.add_after(key, 0.5)
        self._tend_stream(snapshot)

    # --- streams ---

    def _put_stream(self, uid: str, view: StreamView, wake: bool) -> None:
        self.store.put_stream(uid, view, plan=wake)

    def _tend_stream(self, snapshot: Snapshot) -> None:
        """Dial the newest coordinator as soon as it has an address; hang up when there is none to come."""
        run = snapshot.run
        key = run.key
        keys = self.store.keys.get(run.uid)
        pod = next(
            (
                pod
                for pod in self.store.pods_of(run.uid)
                if pod.role == labels.ROLE_COORDINATOR and pod.name == run.status.coordinator.pod_name
            ),
            None,
        )
        if keys is None or pod is None or not pod.ip or pod.ended or run.deleting:
            if pod is None or pod.ended or run.deleting:
                self._end_stream(key)
            return
        self._targets[key] = run.uid
        self.streams.ensure(
            Target(
                run_uid=run.uid,
                address=pod.ip,
                host=names.coordinator_host(run.name, run.namespace),
                token=keys.token,
                ca=keys.ca,
                generation=pod.incarnation,
            )
        )
        if self._settings.in_pod and (ObjectKind.NETWORK_POLICY, names.network_policy(run.name)) in snapshot.owned:
            self._try_policy(run.uid, pod)

    def _end_stream(self, key: RunKey) -> None:
        uid = self._targets.pop(key, None)
        if uid is not None:
            self.streams.close(uid)
            self._policies.close(uid)

    # --- NetworkPolicies ---

    def _try_policy(self, run_uid: str, coordinator: PodRecord) -> None:
        """Try the run's NetworkPolicy while its coordinator answers."""
        view = self.store.stream(run_uid)
        if view.connected and view.closed_port and coordinator.node:
            self._policies.ensure(Door(run_uid, coordinator.node, coordinator.ip, view.closed_port))

    def _policy_tried(self, node: str, enforced: bool) -> None:
        if self.store.policies.get(node) is not enforced:
            self.store.policies[node] = enforced
            self.cluster_touched()

    # --- the cluster object ---

    async def _reconcile_cluster(self) -> None:
        if self.cluster is None:
            await self.load_cluster()
            return
        now = self._clock()
        spec = self.cluster.spec
        wait = await self._keeper.reconcile(self.cluster, now)
        await self.deep.reconcile(spec, self.store.nodes.values(), now)
        self.queue.add_after(CLUSTER_KEY, wait)

    async def await_kinds(self) -> None:
        """Return once the API server knows both own kinds: kopf looks for them only once, when it starts."""
        namespace = self._settings.watch_namespaces[0] if self._settings.watch_namespaces else ""
        for resource, where in ((api.RUNS, namespace), (api.CLUSTERS, "")):
            while True:
                try:
                    async for _ in self._client.pages(resource, where, ""):
                        break
                except ApiError as error:
                    logger.warning("%s cannot be listed yet: %s", resource.plural, error)
                    await asyncio.sleep(1.0)
                else:
                    break

    async def load_cluster(self) -> None:
        """See FdlCluster/default once, and make it where there is none, before any run is planned."""
        while self.cluster is None:
            try:
                item = await self._client.get(api.CLUSTERS, "", "default")
            except ApiError as error:
                logger.log(logging.INFO if error.status == 404 else logging.WARNING, "FdlCluster/default: %s", error)
                if error.status == 404:
                    await self._create_cluster()
                else:
                    await asyncio.sleep(1.0)
            else:
                record = cluster_record(item)
                self.store.put_cluster(record.spec)
                self._keeper.prime(record, self._clock())
                self.cluster_changed(record)

    async def _create_cluster(self) -> None:
        """A chart cannot ship a CRD and its object together, so the operator makes the one that is needed."""
        body = {
            "apiVersion": GROUP_VERSION,
            "kind": "FdlCluster",
            "metadata": {"name": "default"},
            "spec": {"variants": list(self._settings.variants)},
        }
        try:
            await self._client.create(api.CLUSTERS, "", body)
        except ApiError as error:
            if error.status != 409:
                raise

    async def stop(self) -> None:
        """Stop working; nothing is rolled back."""
        await self.queue.stop()
        await self.streams.stop()
        await self._policies.stop()
        await asyncio.sleep(0)
