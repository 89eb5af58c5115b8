"""The working copy of a run's status that the policies change, one after the other, during one plan."""

from dataclasses import dataclass, field

from fdl_api import labels, names
from fdl_api.placement import Placement
from fdl_api.reasons import ConditionType
from fdl_api.run import (
    Condition,
    CoordinatorStatus,
    FdlRunSpec,
    FdlRunStatus,
    MemberPhase,
    MemberStatus,
    RunPhase,
    SeatCounters,
    TrainingStatus,
)
from fdl_api.wire import State
from fdl_operator import clock
from fdl_operator.model import Action, EventNote, PodRecord, Snapshot
from fdl_operator.plan.deaths import Death

Seat = tuple[str, int]
"""Cohort and ordinal."""

DEAD = (MemberPhase.FAILED, MemberPhase.LOST, MemberPhase.SUCCEEDED)
MAX_MESSAGE = 2000


@dataclass(slots=True)
class Draft:
    """Status in the making, the actions that follow from it, and what the policies tell each other."""

    snapshot: Snapshot
    spec: FdlRunSpec
    now: float
    phase: RunPhase | None
    attempt: int
    attempt_start: float | None
    active_seconds: int
    conditions: dict[str, Condition]
    members: dict[Seat, MemberStatus]
    counters: dict[Seat, SeatCounters]
    next_incarnations: dict[str, int]
    coordinator: CoordinatorStatus
    coordinator_restarts: int
    training: TrainingStatus | None
    start_time: str | None
    template_hash: str
    template_version: str
    completion_time: str | None = None

    pods: dict[str, PodRecord] = field(default_factory=dict)
    """Pods of the present attempt, by name."""
    stale_pods: list[PodRecord] = field(default_factory=list)
    """Pods of earlier attempts."""
    wanted: dict[str, int] = field(default_factory=dict)
    """Members per cohort."""
    deaths: dict[Seat, Death] = field(default_factory=dict)
    """Deaths of the newest incarnations that have not been replaced, as far as their pods still tell."""
    waits: dict[Seat, float] = field(default_factory=dict)
    """Seats that are filled only later: when, in seconds since 1970."""
    options: dict[str, tuple[Placement, ...]] = field(default_factory=dict)
    """Per cohort, where it was asked for and something fits: the ways to place its new members, best first."""
    unplaced: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Per cohort where nothing fits: reason and sentence."""
    parked: set[Seat] = field(default_factory=set)
    """Seats that are given up because the coordinator refuses each incarnation."""
    give_up: str = ""
    forbidden: str = ""
    """Why the run's environment lets no pod start, as sentences; empty when nothing is in the way."""
    applies: list[Action] = field(default_factory=list)
    creates: list[Action] = field(default_factory=list)
    deletes: list[Action] = field(default_factory=list)
    events: list[EventNote] = field(default_factory=list)
    wakes: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, snapshot: Snapshot, spec: FdlRunSpec | None, now: float) -> "Draft":
        """Start from the status as it was last written. Without a spec only conditions may be set."""
        status = snapshot.run.status
        draft = cls(
            snapshot=snapshot,
            spec=spec,  # type: ignore[arg-type]
            now=now,
            phase=status.phase,
            attempt=status.attempt,
            attempt_start=clock.parse(status.attempt_start_time),
            active_seconds=status.active_seconds,
            conditions={condition.type: condition for condition in status.conditions},
            members={(member.cohort, member.ordinal): member for member in status.members},
            counters={seat: entry for entry in status.seat_counters if (seat := seat_of(entry.seat)) is not None},
            next_incarnations=dict(status.next_incarnations),
            coordinator=status.coordinator,
            coordinator_restarts=status.counters.coordinator,
            training=status.training,
            start_time=status.start_time,
            template_hash=status.template_hash,
            template_version=status.template_version,
            completion_time=status.completion_time,
        )
        for pod in snapshot.pods:
            if pod.attempt == status.attempt:
                draft.pods[pod.name] = pod
            else:
                draft.stale_pods.append(pod)
        return draft

    @property
    def state(self) -> State | None:
        """What the coordinator last said about this attempt; ``None`` when that was about another one."""
        state = self.snapshot.stream.state
        if state is None or state.run_uid != self.snapshot.run.uid or state.attempt != self.attempt:
            return None
        return state

    @property
    def live_state(self) -> State | None:
        """The same, but only from the newest coordinator."""
        state = self.state
        return state if state is not None and state.generation == self.coordinator.incarnation else None

    @property
    def status(self) -> FdlRunStatus:
        """The status as it was last written."""
        return self.snapshot.run.status

    @property
    def wanted_total(self) -> int:
        """Members of all cohorts together."""
        return sum(self.wanted.values())

    @property
    def has_progress(self) -> bool:
        """Whether any window was ever committed, in this attempt or an earlier one."""
        state = self.state
        if state is not None and (state.window > 0 or state.checkpoint is not None):
            return True
        training = self.training
        return training is not None and (training.window > 0 or self.durable_step > 0)

    @property
    def durable_step(self) -> int:
        """Window of the newest durable checkpoint; 0 when there is none."""
        state = self.state
        if state is not None and state.checkpoint is not None:
            return state.checkpoint.window
        if self.training is not None and self.training.checkpoint is not None:
            return self.training.checkpoint.last_durable_step
        return 0

    @property
    def must_resume(self) -> bool:
        """Whether members must not start from random weights (case D10): also when no checkpoint was ever written."""
        return self.has_progress and not self.spec.run_policy.allow_fresh_start

    def is_true(self, kind: ConditionType) -> bool:
        """Whether a condition holds."""
        condition = self.conditions.get(kind)
        return condition is not None and condition.status == "True"

    def since(self, kind: ConditionType) -> float:
        """When a condition last changed its status; now when it was never set."""
        condition = self.conditions.get(kind)
        at = clock.parse(condition.last_transition_time) if condition is not None else None
        return self.now if at is None else at

    def condition(self, kind: ConditionType, status: bool | None, reason: str, message: str = "") -> None:
        """Set a condition; ``None`` is Unknown. The transition time moves only with the status."""
        text = {True: "True", False: "False", None: "Unknown"}[status]
        old = self.conditions.get(kind)
        at = old.last_transition_time if old is not None and old.status == text else clock.render(self.now)
        self.conditions[kind] = Condition.model_validate(
            {
                "type": str(kind),
                "status": text,
                "observedGeneration": self.snapshot.run.generation,
                "lastTransitionTime": at,
                "reason": str(reason) or "Unknown",
                "message": message[:MAX_MESSAGE],
            }
        )

    def event(self, reason: str, message: str, *, warning: bool = False) -> None:
        """Note a transition for people; written only after the status."""
        self.events.append(EventNote(str(reason), message[:1000], warning))

    def pod_of(self, seat: Seat) -> PodRecord | None:
        """The pod of a seat's newest incarnation, if it exists."""
        member = self.members.get(seat)
        return None if member is None else self.pods.get(member.name)

    def member_pods(self) -> list[PodRecord]:
        """All member pods of this attempt, also of earlier incarnations."""
        return [pod for pod in self.pods.values() if pod.role == labels.ROLE_MEMBER]

    def coordinator_pod(self) -> PodRecord | None:
        """The pod of the newest coordinator, if it exists."""
        return self.pods.get(self.coordinator.pod_name) if self.coordinator.pod_name else None


def seat_of(text: str) -> Seat | None:
    """Seat from its name '<cohort>-<ordinal>'; ``None`` for what is no such name: another release may have others."""
    cohort, _, ordinal = text.rpartition("-")
    return (cohort, int(ordinal)) if cohort and ordinal.isdecimal() else None


def seat_name(seat: Seat) -> str:
    """Name of a seat, as in status.nextIncarnations."""
    return names.seat(*seat)
