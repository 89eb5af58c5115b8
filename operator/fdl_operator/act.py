"""Carries out what a plan asks for.

The status goes first, under an optimistic lock; when it cannot be written nothing else happens, and the plan is made
anew from what the API server says by then. Pods are created side by side, a bounded number at a time.
"""

import asyncio
import datetime
import logging
from collections.abc import Coroutine, Sequence
from typing import Any

from fdl_api import labels, names
from fdl_api.run import FdlRunSpec
from fdl_api.version import GROUP_VERSION
from fdl_operator import client as api
from fdl_operator.build import objects, pki, pods
from fdl_operator.build.common import Body
from fdl_operator.build.events import event
from fdl_operator.build.runconfig import run_config
from fdl_operator.client import ApiError, Client, Resource
from fdl_operator.model import (
    Action,
    ApplyObject,
    CreateCoordinator,
    CreateMember,
    DeleteObject,
    DeletePod,
    DeleteRun,
    EnsureSecret,
    EventNote,
    ObjectKind,
    RunRecord,
    SendHint,
    Snapshot,
    WriteStatus,
)
from fdl_operator.plan.keys import SECRET_CHILD
from fdl_operator.plan.objects import MOUNTED, child_key
from fdl_operator.plan.pass_ import TEMPLATE_CHILD
from fdl_operator.records import run_record
from fdl_operator.settings import Settings
from fdl_operator.store import Store
from fdl_operator.streams import Streams

logger = logging.getLogger(__name__)

RESOURCES: dict[ObjectKind, Resource] = {
    ObjectKind.CONFIG_MAP: api.CONFIG_MAPS,
    ObjectKind.SERVICE: api.SERVICES,
    ObjectKind.NETWORK_POLICY: api.NETWORK_POLICIES,
    ObjectKind.DISRUPTION_BUDGET: api.DISRUPTION_BUDGETS,
}
REFUSALS = (400, 403, 404, 409, 413, 422, 500)
"""Answers to the creation of a child that are the child's own fault, not the connection's."""


class ConflictError(Exception):
    """The run has changed since the snapshot; the pass ends, and the newer version starts the next one."""


class Actor:
    """Performs actions for one cluster."""

    def __init__(self, client: Client, store: Store, streams: Streams, settings: Settings) -> None:
        self._client = client
        self._store = store
        self._streams = streams
        self._settings = settings
        self._slots = asyncio.Semaphore(settings.pod_parallelism)

    async def perform(self, snapshot: Snapshot, actions: Sequence[Action], now: float) -> None:
        """Carry out the actions of one plan.

        Raises:
            ConflictError: the run has changed, or is gone.
            ApiError: something failed that another try may mend.
        """
        run = snapshot.run
        notes: tuple[EventNote, ...] = ()
        for action in actions:
            if isinstance(action, SendHint):
                self._streams.hint(run.uid, action.hint)
            elif isinstance(action, WriteStatus):
                run = await self._write_status(run, action)
                notes = action.events
        try:
            if run.spec is not None:
                await self._children(run, run.spec, snapshot, actions)
        finally:
            for note in notes:
                await self._event(run, note, now)

    async def _children(self, run: RunRecord, spec: FdlRunSpec, snapshot: Snapshot, actions: Sequence[Action]) -> None:
        mountable = True
        for action in actions:
            if isinstance(action, EnsureSecret):
                work = self._ensure_secret(run, action, new=snapshot.run.status.phase is None)
                mountable = await self._child(run, SECRET_CHILD, work) and run.uid in self._store.keys
        applies = [action for action in actions if isinstance(action, ApplyObject)]
        worked = await self._together(
            self._child(run, child_key(action.kind), self._apply(run, spec, snapshot, action)) for action in applies
        )
        mountable &= all(well for action, well in zip(applies, worked, strict=True) if action.kind in MOUNTED)
        if mountable:
            await self._together(
                self._create_pod(run, spec, action)
                for action in actions
                if isinstance(action, CreateMember | CreateCoordinator)
            )
        await self._together(
            self._delete(run, action) for action in actions if isinstance(action, DeletePod | DeleteObject | DeleteRun)
        )

    async def _together(self, work: Any) -> list[Any]:
        """Side by side; all are finished before the first failure is raised."""
        results = await asyncio.gather(*work, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results

    # --- status and events ---

    async def _write_status(self, run: RunRecord, action: WriteStatus) -> RunRecord:
        body = {
            "apiVersion": GROUP_VERSION,
            "kind": "FdlRun",
            "metadata": {
                "name": run.name,
                "namespace": run.namespace,
                "uid": run.uid,
                "resourceVersion": run.resource_version,
            },
            "status": action.status.to_dict(),
        }
        try:
            written = await self._client.apply(api.RUNS, run.namespace, body, subresource="status")
        except ApiError as error:
            if error.status in (404, 409):
                raise ConflictError(f"run {run.namespace}/{run.name}: {error.message}") from error
            raise
        record = run_record(written)
        self._store.put_run(record)
        return record

    async def _event(self, run: RunRecord, note: EventNote, now: float) -> None:
        regarding = {
            "apiVersion": GROUP_VERSION,
            "kind": "FdlRun",
            "name": run.name,
            "namespace": run.namespace,
            "uid": run.uid,
        }
        body = event(note, regarding, run.namespace, self._settings.identity, now)
        try:
            await self._client.create(api.EVENTS, run.namespace, body)
        except ApiError as error:
            logger.warning("Event %s of run %s/%s: %s", note.reason, run.namespace, run.name, error)

    # --- children ---

    async def _child(self, run: RunRecord, child: str, work: Coroutine[Any, Any, None]) -> bool:
        """Do something about a child, and remember when the API server refuses it; returns whether it worked."""
        try:
            await work
        except ApiError as error:
            if error.status not in REFUSALS:
                raise
            logger.warning("run %s/%s: %s: %s", run.namespace, run.name, child, error)
            self._store.child_failed(run.uid, child, error.status, error.message)
            return False
        self._store.child_worked(run.uid, child)
        return True

    async def _found(self, run: RunRecord, name: str) -> Body | None:
        try:
            return await self._client.get(api.SECRETS, run.namespace, name)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def _ensure_secret(self, run: RunRecord, action: EnsureSecret, *, new: bool) -> None:
        """Read the Secret, or make it; a run that never had a status has none yet, which saves the look."""
        name = names.secret(run.name)
        found = None if new else await self._found(run, name)
        if found is None:
            keys = self._store.keys.get(run.uid)
            if keys is None and not action.fresh_keys:
                self._store.keys_gone(run.uid)
                return
            if keys is None:
                at = datetime.datetime.now(datetime.UTC)
                keys = await asyncio.to_thread(pki.new_keys, run.name, run.namespace, at)
            elif not action.fresh_keys:
                logger.warning("run %s/%s: Secret %s was deleted; it is made again", run.namespace, run.name, name)
            try:
                found = await self._client.create(api.SECRETS, run.namespace, objects.secret(run, keys))
            except ApiError as error:
                found = await self._found(run, name) if error.reason == "AlreadyExists" else None
                if found is None:
                    raise
        owners = {owner.get("uid") for owner in found["metadata"].get("ownerReferences") or []}
        if run.uid not in owners:
            raise ApiError(
                409, "NotOurs", f"Secret {name} belongs to something else; delete it, or give the run another name"
            )
        self._store.keys_found(run.uid, objects.keys_of(found))

    async def _apply(self, run: RunRecord, spec: FdlRunSpec, snapshot: Snapshot, action: ApplyObject) -> None:
        body = self._object(run, spec, action)
        known = snapshot.owned.get((action.kind, body["metadata"]["name"]))
        if known is not None and known.run_uid != run.uid:
            raise ApiError(409, "NotOurs", f"{action.kind} {known.name} belongs to another run")
        await self._client.apply(RESOURCES[action.kind], run.namespace, body)

    def _object(self, run: RunRecord, spec: FdlRunSpec, action: ApplyObject) -> Body:
        status = run.status
        if action.kind is ObjectKind.CONFIG_MAP:
            config = run_config(run, spec, attempt=status.attempt, must_resume=action.must_resume)
            return objects.config_map(run, config, action.spec_hash)
        if action.kind is ObjectKind.SERVICE:
            return objects.service(run, status.coordinator.incarnation, action.spec_hash)
        if action.kind is ObjectKind.NETWORK_POLICY:
            return objects.network_policy(run, spec, self._settings.namespace, action.spec_hash)
        return objects.disruption_budget(run, spec.join.min_members, action.spec_hash)

    async def _create_pod(self, run: RunRecord, spec: FdlRunSpec, action: CreateMember | CreateCoordinator) -> None:
        dry_run = isinstance(action, CreateMember) and action.dry_run
        if isinstance(action, CreateMember):
            body = pods.member(run, spec, action, self._settings, self._store.defaults)
        else:
            body = pods.coordinator(run, spec, action, self._settings, self._store.defaults)
        async with self._slots:
            if dry_run and isinstance(action, CreateMember):
                await self._try_template(run, action, body)
            else:
                await self._child(run, action.name, self._post_pod(run, action.name, body))

    async def _post_pod(self, run: RunRecord, name: str, body: Body) -> None:
        try:
            await self._client.create(api.PODS, run.namespace, body)
        except ApiError as error:
            if error.status != 409 or error.reason != "AlreadyExists":
                raise
            found = await self._client.get(api.PODS, run.namespace, name)
            if (found["metadata"].get("labels") or {}).get(labels.RUN_UID) != run.uid:
                ends = found["metadata"].get("deletionTimestamp") is not None
                remedy = "it ends by itself, wait for that" if ends else "delete it or rename the run"
                raise ApiError(409, "NotOurs", f"pod {name} exists and belongs to something else; {remedy}") from error
        self._store.expect_pod(run.uid, name)

    async def _try_template(self, run: RunRecord, action: CreateMember, body: Body) -> None:
        """Only a refusal of the pod itself is the template's fault; a quota is not, and shows at the creation."""
        try:
            await self._client.create(api.PODS, run.namespace, body, dry_run=True)
        except ApiError as error:
            if error.status in (400, 413, 422):
                self._store.child_failed(run.uid, TEMPLATE_CHILD + action.cohort, error.status, error.message)
                return
            if error.status not in REFUSALS:
                raise
        self._store.template_accepted(run)

    async def _delete(self, run: RunRecord, action: DeletePod | DeleteObject | DeleteRun) -> None:
        if isinstance(action, DeletePod):
            await self._client.delete(api.PODS, run.namespace, action.name, uid=action.uid)
        elif isinstance(action, DeleteObject):
            await self._client.delete(RESOURCES[action.kind], run.namespace, action.name, uid=action.uid)
        else:
            await self._client.delete(api.RUNS, run.namespace, run.name, uid=run.uid)
