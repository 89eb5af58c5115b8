"""Fluent builders of what a plan looks at. They say only what a test is about."""

import dataclasses
from collections.abc import Iterable
from typing import Any, TypeVar

from fdl_api import labels, names
from fdl_api.cluster import SocketInterface
from fdl_api.nodes import NodeRecord
from fdl_api.run import Condition, FdlRunSpec, FdlRunStatus
from fdl_api.termination import Cause, Termination
from fdl_api.wire import CheckpointState, MemberState, Outcome, State
from fdl_operator import clock
from fdl_operator.model import (
    Action,
    ApplyObject,
    ChildFailure,
    CreateCoordinator,
    CreateMember,
    DeleteObject,
    DeletePod,
    OwnedRecord,
    PodPhase,
    PodRecord,
    RunRecord,
    SendHint,
    Snapshot,
    StreamView,
    WriteStatus,
)
from fdl_operator.plan import plan
from fdl_operator.settings import Limits
from tests.unit.nodes import T0, VARIANTS, node
from tests.unit.sentences import told_twice

UID = "0f0e0d0c-1111-2222-3333-444455556666"
A = TypeVar("A")


def spec(**changes: Any) -> FdlRunSpec:
    """A run of two cpu members; ``changes`` are top-level fields in camelCase."""
    base: dict[str, Any] = {
        "trainer": {"source": {"image": {"path": "/app/train.py"}}},
        "mode": "cpu-cadence",
        "cohorts": [{"name": "a", "vendor": "cpu", "replicas": 2, "maxReplicas": 8}],
        "checkpoint": {"claim": "ckpt"},
    }
    return FdlRunSpec.model_validate(base | changes)


def said(cause: Cause, reason: str, message: str = "because", *, permanent: bool = False) -> str:
    """Last words of an agent."""
    return Termination(cause=cause, reason=reason, message=message, permanent=permanent).render()


class World:
    """A run and everything around it; each pass feeds the plan's status back, as the API server would."""

    def __init__(self, **changes: Any) -> None:
        self.run = RunRecord(
            namespace="ns",
            name="run",
            uid=UID,
            generation=1,
            resource_version="1",
            created_at=T0,
            deleting=False,
            spec=spec(**changes),
            status=FdlRunStatus(),
        )
        self.now = T0
        self.pods: dict[str, PodRecord] = {}
        self.nodes: dict[str, NodeRecord] = {"n1": node("n1"), "n2": node("n2")}
        self.owned: dict[tuple[str, str], OwnedRecord] = {}
        self.vanished: set[str] = set()
        self.unprobed: set[str] = set()
        self.stream = StreamView()
        self.variants = VARIANTS
        self.quarantined: dict[str, str] = {}
        self.fabric: tuple[SocketInterface, ...] = ()
        self.failures: dict[str, ChildFailure] = {}
        self.secret = True
        self.secret_lost = False
        self.secret_age: float = 0.0
        self.template_checked = False
        self.budget = True
        self.limits = Limits(secret_check=0)  # looks at the Secret have tests of their own
        self.events: list[str] = []
        self.created: list[str] = []
        self._uids = 0

    # --- the world ---

    def snapshot(self) -> Snapshot:
        return Snapshot(
            run=self.run,
            pods=tuple(self.pods.values()),
            nodes=self.nodes,
            owned=self.owned,
            stream=self.stream,
            variants=self.variants,
            quarantined=self.quarantined,
            fabric=self.fabric,
            limits=self.limits,
            gone=frozenset(self.vanished),
            failures=self.failures,
            secret_ready=self.secret,
            secret_lost=self.secret_lost,
            secret_checked_at=self.now - self.secret_age,
            template_checked=self.template_checked,
            training_budget=self.budget,
        )

    def plan(self) -> list[Action]:
        return plan(self.snapshot(), self.now)

    def step(self, seconds: float = 0.0) -> list[Action]:
        """Time passes, then one pass is planned and its actions happen (pods appear, pending and without a node).

        Probers go on reporting, except on nodes in ``unprobed``.
        """
        self.now += seconds
        for name, each in self.nodes.items():
            if each.report_at is not None and name not in self.unprobed:
                self.nodes[name] = dataclasses.replace(each, report_at=each.report_at + seconds)
        actions = self.plan()
        for action in actions:
            self._happen(action)
        return actions

    def settle(self, limit: int = 10) -> list[Action]:
        """Passes until one changes nothing; all their actions."""
        done: list[Action] = []
        for _ in range(limit):
            actions = [action for action in self.step() if not is_wake(action)]
            if not actions:
                return done
            done += actions
        raise AssertionError(f"no rest after {limit} passes: {actions}")

    def _happen(self, action: Action) -> None:
        if isinstance(action, WriteStatus):
            version = str(int(self.run.resource_version) + 1)
            status = FdlRunStatus.model_validate(action.status.to_dict())
            self.run = dataclasses.replace(self.run, status=status, resource_version=version)
            self.events += [note.reason for note in action.events]
            conditions, members = action.status.conditions, action.status.members
            told = [*(each.message for each in (*conditions, *members)), *(note.message for note in action.events)]
            for message in told:
                assert not told_twice(message), f"{told_twice(message)!r} is said twice in: {message}"
        elif isinstance(action, SendHint):
            self.stream = dataclasses.replace(self.stream, sent=action.hint)
        elif isinstance(action, ApplyObject):
            from fdl_operator.plan.objects import object_name

            name = object_name(action.kind, "run")
            self.owned[action.kind, name] = OwnedRecord(action.kind, "ns", name, f"u-{name}", UID, action.spec_hash)
        elif isinstance(action, DeleteObject):
            del self.owned[action.kind, action.name]
        elif isinstance(action, CreateMember):
            if action.dry_run:
                self.template_checked = True
                return
            self.created.append(action.name)
            self._pod(
                action.name,
                labels.ROLE_MEMBER,
                cohort=action.cohort,
                ordinal=action.ordinal,
                incarnation=action.incarnation,
                attempt=action.attempt,
                placement=action.placement.digest,
                variant=action.placement.variant,
            )
        elif isinstance(action, CreateCoordinator):
            self.created.append(action.name)
            self._pod(action.name, labels.ROLE_COORDINATOR, incarnation=action.incarnation, attempt=action.attempt)
        elif isinstance(action, DeletePod):
            pod = self.pods[action.name]
            if pod.ended:
                del self.pods[action.name]
            else:
                self.pods[action.name] = dataclasses.replace(pod, deleted_at=self.now + 60)

    def _pod(self, name: str, role: str, **fields: Any) -> None:
        self._uids += 1
        self.pods[name] = PodRecord(
            namespace="ns",
            name=name,
            uid=f"pod-{self._uids}",
            run="run",
            run_uid=UID,
            role=role,
            created_at=self.now,
            image="reg/trainer-cpu:1",
            **fields,
        )

    # --- what happens to pods ---

    def change(self, name: str, **fields: Any) -> "World":
        self.pods[name] = dataclasses.replace(self.pods[name], **fields)
        return self

    def running(self, name: str, on: str = "n1") -> "World":
        ip = f"10.0.0.{len(self.pods)}"
        return self.change(name, phase=PodPhase.RUNNING, node=on, ip=ip, ready=True)

    def ended(self, name: str, code: int, words: str = "", **fields: Any) -> "World":
        phase = PodPhase.SUCCEEDED if code == 0 else PodPhase.FAILED
        return self.change(
            name, phase=phase, exit_code=code, termination=words, finished_at=self.now, ready=False, **fields
        )

    def gone(self, name: str) -> "World":
        del self.pods[name]
        self.vanished.add(name)
        return self

    def deleting(self, name: str, grace: float = 60) -> "World":
        return self.change(name, deleted_at=self.now + grace)

    def member(self, ordinal: int = 0, cohort: str = "a") -> PodRecord:
        """The pod of a seat's newest incarnation."""
        row = next(row for row in self.run.status.members if (row.cohort, row.ordinal) == (cohort, ordinal))
        return self.pods[row.name]

    # --- what the coordinator says ---

    def says(self, outcome: Outcome = Outcome.TRAINING, *, connected: bool = True, **fields: Any) -> "World":
        """A state; members are those that run, active unless ``states`` says otherwise by name."""
        states: dict[str, str] = fields.pop("states", {})
        checkpoint_at = fields.pop("checkpoint", 0)
        checkpoint = None
        if checkpoint_at:
            checkpoint = CheckpointState(
                window=checkpoint_at, samples=10, path="p", size_bytes=1, verified=True, saved_at=clock.render(self.now)
            )
        members = [
            MemberState(
                uid=pod.uid,
                member=pod.name,
                cohort=pod.cohort,
                ordinal=pod.ordinal,
                incarnation=pod.incarnation,
                state=states.get(pod.name, "active"),  # type: ignore[arg-type]
                committed=states.get(pod.name, "active") == "active",
                reason="Stalled" if states.get(pod.name) == "suspended" else "",
                message="it was alive" if states.get(pod.name) == "suspended" else "",
            )
            for pod in self.pods.values()
            if pod.role == labels.ROLE_MEMBER and (pod.phase is PodPhase.RUNNING or pod.name in states)
        ]
        base: dict[str, Any] = {
            "generation": self.run.status.coordinator.incarnation,
            "run_uid": UID,
            "attempt": self.run.status.attempt,
            "outcome": outcome,
            "epoch": 1,
            "window": 1,
            "samples": 10,
            "total_samples": 100,
            "members": members,
            "checkpoint": checkpoint,
        }
        state = State(**(base | fields))
        dead = {member.uid for member in members if member.state == "dead"}
        since = {uid: self.stream.dead_since.get(uid, self.now) for uid in dead}
        self.stream = dataclasses.replace(
            self.stream, connected=connected, changed_at=self.now, state=state, heard_at=self.now, dead_since=since
        )
        return self

    def silent(self) -> "World":
        """The stream breaks now."""
        self.stream = dataclasses.replace(self.stream, connected=False, changed_at=self.now, error="refused")
        return self

    # --- the run ---

    def edit(self, **changes: Any) -> "World":
        """The user edits the spec; keys are paths with ``__``, in snake_case."""
        assert self.run.spec is not None
        changed = self.run.spec.model_dump(by_alias=False)
        for path, value in changes.items():
            target = changed
            *parents, last = path.split("__")
            for parent in parents:
                target = target[int(parent)] if isinstance(target, (list, tuple)) else target[parent]
            target[last] = value
        self.run = dataclasses.replace(
            self.run, spec=FdlRunSpec.model_validate(changed), generation=self.run.generation + 1
        )
        return self

    @property
    def status(self) -> FdlRunStatus:
        return self.run.status

    def condition(self, kind: str) -> Condition:
        return next(condition for condition in self.run.status.conditions if condition.type == kind)

    def started(self) -> "World":
        """All pods run, and nobody has trained yet."""
        self.settle()
        for name in list(self.pods):
            self.running(name, on="n1" if self.pods[name].ordinal % 2 == 0 else "n2")
        return self

    def training(self) -> "World":
        """The run trains."""
        self.started().says().settle()
        assert self.status.phase == "Running", self.status
        return self


def is_wake(action: Action) -> bool:
    return type(action).__name__ == "Wake"


def only(actions: Iterable[Action], kind: type[A]) -> list[A]:
    return [action for action in actions if isinstance(action, kind)]


def member_name(ordinal: int, incarnation: int, cohort: str = "a") -> str:
    return names.member_pod("run", cohort, ordinal, incarnation)
