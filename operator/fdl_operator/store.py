"""Everything that the operator knows, in memory: slim records, and what it did that no watch has shown yet."""

import dataclasses
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from fdl_api import labels
from fdl_api.cluster import FdlClusterSpec, RunDefaults
from fdl_api.network import variants
from fdl_api.nodes import NodeRecord, age_fault
from fdl_api.placement import Variant
from fdl_api.reasons import ConditionType
from fdl_operator.build.pki import KeyMaterial
from fdl_operator.model import ChildFailure, OwnedRecord, PodRecord, RunKey, RunRecord, Snapshot, StreamView
from fdl_operator.settings import Limits

EXPECTATION_SECONDS = 30.0
"""After this, a pod that was created but never seen is asked for again (a 409 then says that it is there)."""


class Store:
    """In-memory state. ``changed`` is called with the key of each run that should be planned again."""

    def __init__(
        self, limits: Limits, changed: Callable[[RunKey], None], clock: Callable[[], float] = time.time
    ) -> None:
        self.limits = limits
        self._changed = changed
        self._clock = clock
        self.runs: dict[RunKey, RunRecord] = {}
        self._by_uid: dict[str, RunKey] = {}
        self._pods: dict[str, PodRecord] = {}
        self._pods_of: dict[str, set[str]] = defaultdict(set)
        self._pods_on: dict[str, set[str]] = defaultdict(set)
        self.nodes: dict[str, NodeRecord] = {}
        self._owned: dict[str, OwnedRecord] = {}
        self._owned_of: dict[str, set[str]] = defaultdict(set)
        self._streams: dict[str, StreamView] = {}
        self._created: dict[str, dict[str, float]] = defaultdict(dict)
        self._gone: dict[str, set[str]] = defaultdict(set)
        self._failures: dict[str, dict[str, ChildFailure]] = defaultdict(dict)
        self._checked: set[str] = set()
        self.keys: dict[str, KeyMaterial] = {}
        """Content of the Secrets, by run UID: what live members trust, should a Secret be deleted."""
        self._keys_seen: dict[str, float] = {}
        self._keys_lost: set[str] = set()
        self.cluster: FdlClusterSpec | None = None
        self.quarantined: Mapping[str, str] = {}
        """Nodes that get no new member, each with why."""
        self.policies: dict[str, bool] = {}
        """Nodes on which the NetworkPolicy of a run was tried, each with whether it was in force."""
        self.training_budget: Callable[[], bool] = lambda: True

    # --- runs ---

    def put_run(self, record: RunRecord) -> bool:
        """Take a run in; an older version than the one known is ignored. True when something changed."""
        known = self.runs.get(record.key)
        if known is not None and known.uid == record.uid and _version(record) <= _version(known):
            return False
        if known is not None and known.uid != record.uid:
            self.drop_run(known.key, known.uid)
        self.runs[record.key] = record
        if record.uid in self._gone:
            self._gone[record.uid] &= _unnoted(record)
        self._by_uid[record.uid] = record.key
        self._changed(record.key)
        return True

    def drop_run(self, key: RunKey, uid: str) -> None:
        """Forget a run; its pods go on being watched until the garbage collector has them."""
        known = self.runs.get(key)
        if known is None or known.uid != uid:
            return
        del self.runs[key]
        self._by_uid.pop(uid, None)
        for table in (self._streams, self._created, self._gone, self._failures, self.keys, self._keys_seen):
            table.pop(uid, None)
        self._keys_lost.discard(uid)
        self._checked = {entry for entry in self._checked if not entry.startswith(uid)}
        self._changed(key)

    # --- pods, nodes, owned objects ---

    def put_pod(self, key: str, record: PodRecord) -> None:
        """Take a pod in."""
        old = self._pods.get(key)
        if old is not None:
            self._pods_on[old.node].discard(key)
        self._pods[key] = record
        self._pods_of[record.run_uid].add(key)
        if record.node:
            self._pods_on[record.node].add(key)
        self._created[record.run_uid].pop(record.name, None)
        if old != record:
            self._touch(record.run_uid)

    def drop_pod(self, key: str) -> None:
        """A pod is gone."""
        record = self._pods.pop(key, None)
        if record is None:
            return
        self._pods_of[record.run_uid].discard(key)
        self._pods_on[record.node].discard(key)
        run = self.run_of(record.run_uid)
        if run is not None and record.name in _unnoted(run):
            self._gone[run.uid].add(record.name)
        if not self._pods_of[record.run_uid]:
            del self._pods_of[record.run_uid]
        self._touch(record.run_uid)

    def put_node(self, key: str, record: NodeRecord) -> bool:
        """Take a node in; runs that it may concern are planned again. True when labels, readiness or report changed."""
        name = key.rpartition("/")[2]
        old = self.nodes.get(name)
        self.nodes[name] = record
        if old is not None and _placeable(old) == _placeable(record) and old.report == record.report:
            return False
        if old is None or _placeable(old) != _placeable(record) or (self._stale(old) and not self._stale(record)):
            self._node_changed(name)
        return True

    def _stale(self, node: NodeRecord) -> bool:
        """Whether a node's report is missing, or too old for new members."""
        return age_fault(node.report_at, self._clock(), self._report_age) is not None

    @property
    def _report_age(self) -> float:
        """Seconds after which a report is too old: FdlCluster's, where there is one."""
        return self.limits.report_age if self.cluster is None else float(self.cluster.prober.report_max_age_seconds)

    def drop_node(self, key: str) -> None:
        """A node is gone."""
        name = key.rpartition("/")[2]
        self.policies.pop(name, None)
        if self.nodes.pop(name, None) is not None:
            self._node_changed(name)

    def put_owned(self, key: str, record: OwnedRecord) -> None:
        """Take an applied object in."""
        full = f"{record.kind}/{key}"
        changed = self._owned.get(full) != record
        self._owned[full] = record
        self._owned_of[record.run_uid].add(full)
        if changed:
            self._touch(record.run_uid)

    def drop_owned(self, kind: str, key: str) -> None:
        """An applied object is gone."""
        record = self._owned.pop(f"{kind}/{key}", None)
        if record is not None:
            self._owned_of[record.run_uid].discard(f"{kind}/{key}")
            self._touch(record.run_uid)

    def put_cluster(self, spec: FdlClusterSpec | None) -> None:
        """Take FdlCluster/default in; every run that waits for a place is planned again."""
        if spec == self.cluster:
            return
        self.cluster = spec
        self._places_changed()

    def put_quarantine(self, quarantined: Mapping[str, str]) -> None:
        """Take in which nodes get no new member; every run that waits for a place is planned again."""
        if quarantined == self.quarantined:
            return
        self.quarantined = dict(quarantined)
        self._places_changed()

    # --- what no watch shows ---

    def stream(self, uid: str) -> StreamView:
        """What the coordinator of a run last said."""
        return self._streams.get(uid) or StreamView()

    def put_stream(self, uid: str, view: StreamView, *, plan: bool = True) -> None:
        """Take news from a coordinator in."""
        if uid in self._by_uid:
            self._streams[uid] = view
            if plan:
                self._touch(uid)

    def expect_pod(self, uid: str, name: str) -> None:
        """A pod was created; until the watch shows it, it counts as existing."""
        self._created[uid][name] = self._clock()

    def child_failed(self, uid: str, child: str, status: int, message: str) -> None:
        """The API server refused a child (case K7)."""
        old = self._failures[uid].get(child)
        count = old.count + 1 if old else 1
        wait = min(self.limits.create_retry * 2 ** min(count - 1, 16), self.limits.create_retry_max)
        self._failures[uid][child] = ChildFailure(child, status, message, count, self._clock() + wait)
        self._touch(uid)

    def child_worked(self, uid: str, child: str) -> None:
        """A child that was refused before exists now."""
        if self._failures[uid].pop(child, None) is not None:
            self._touch(uid)

    def keys_found(self, uid: str, keys: KeyMaterial) -> None:
        """The run's Secret is there, with these keys."""
        self.keys[uid] = keys
        self._keys_seen[uid] = self._clock()
        self._keys_lost.discard(uid)

    def keys_gone(self, uid: str) -> None:
        """The run's Secret is gone, this operator never knew its keys, and live members go on with them."""
        self._keys_lost.add(uid)
        self._touch(uid)

    def template_accepted(self, run: RunRecord) -> None:
        """The API server has accepted a dry run of the run's pods."""
        self._checked.add(f"{run.uid}/{run.generation}")
        for child in [child for child in self._failures[run.uid] if child.startswith("podTemplate/")]:
            del self._failures[run.uid][child]
        self._touch(run.uid)

    # --- reading ---

    def run_of(self, uid: str) -> RunRecord | None:
        """The run of this UID."""
        key = self._by_uid.get(uid)
        return self.runs.get(key) if key is not None else None

    def pods_of(self, uid: str) -> Iterator[PodRecord]:
        """Pods of a run."""
        return (self._pods[key] for key in self._pods_of.get(uid, ()))

    def snapshot(self, key: RunKey) -> Snapshot | None:
        """Everything that a plan for one run may look at; ``None`` when there is no such run."""
        run = self.runs.get(key)
        if run is None:
            return None
        now = self._clock()
        created = self._created.get(run.uid) or {}
        return Snapshot(
            run=run,
            pods=tuple(self.pods_of(run.uid)),
            nodes=self.nodes,
            owned={
                (record.kind, record.name): record
                for record in (self._owned[name] for name in self._owned_of.get(run.uid, ()))
            },
            stream=self.stream(run.uid),
            variants=self.variants(),
            limits=dataclasses.replace(self.limits, report_age=self._report_age),
            created=frozenset(name for name, at in created.items() if now - at < EXPECTATION_SECONDS),
            gone=frozenset(self._gone.get(run.uid) or ()),
            failures=dict(self._failures.get(run.uid) or {}),
            secret_ready=run.uid in self.keys,
            secret_lost=run.uid in self._keys_lost,
            secret_checked_at=self._keys_seen.get(run.uid, 0.0),
            template_checked=f"{run.uid}/{run.generation}" in self._checked,
            quarantined=self.quarantined,
            fabric=self.cluster.fabric.groups if self.cluster is not None else (),
            tolerations=self.defaults.tolerations,
            training_budget=self.training_budget(),
        )

    def variants(self) -> tuple[Variant, ...]:
        """Trainer images of FdlCluster/default."""
        if self.cluster is None:
            return ()
        return variants(self.cluster)

    @property
    def defaults(self) -> RunDefaults:
        """Defaults of FdlCluster/default for the pods of runs."""
        return self.cluster.defaults if self.cluster is not None else RunDefaults()

    def _touch(self, uid: str) -> None:
        key = self._by_uid.get(uid)
        if key is not None:
            self._changed(key)

    def _node_changed(self, name: str) -> None:
        for key in self._pods_on.get(name, ()):
            self._touch(self._pods[key].run_uid)
        self._places_changed()

    def _places_changed(self) -> None:
        for run in self.runs.values():
            if _waits_for_place(run):
                self._changed(run.key)


def _unnoted(run: RunRecord) -> set[str]:
    """Names of pods that the status records, but without their UIDs so far."""
    names = {member.name for member in run.status.members if not member.uid}
    coordinator = run.status.coordinator
    return names if coordinator.pod_uid else names | {coordinator.pod_name}


def _waits_for_place(run: RunRecord) -> bool:
    if run.status.phase is not None and run.status.phase.is_terminal:
        return False
    conditions = {condition.type: condition for condition in run.status.conditions}
    placeable = conditions.get(ConditionType.PLACEABLE)
    return placeable is None or placeable.status != "True"


def _version(record: RunRecord) -> int:
    return int(record.resource_version) if record.resource_version.isdecimal() else 0


def _placeable(node: NodeRecord) -> tuple[Any, ...]:
    own = tuple(sorted((key, text) for key, text in node.labels.items() if key != labels.REPORT))
    return (own, node.ready, node.unschedulable, node.taints, node.interfaces)
