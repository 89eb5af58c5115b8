"""What the coordinator tells the operator and people: a snapshot, and the figures in it."""

import math
from collections import deque
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from fdl_api.batches import too_large
from fdl_api.runconfig import RunConfig
from fdl_api.telling import Reached
from fdl_api.wire import (
    CheckpointFailed,
    CheckpointSaved,
    CheckpointState,
    Echo,
    GuardReport,
    MemberState,
    Phase,
    RankWindow,
    Refuse,
    State,
    WindowCommitted,
    member_of,
    rank_uid,
)
from fdl_coordinator import forming, pairs
from fdl_coordinator.goodput import Goodput
from fdl_coordinator.pace import too_slow
from fdl_coordinator.seats import RankSeat, Seat

if TYPE_CHECKING:
    from fdl_coordinator.runstate import RunState

RATE_WINDOWS = 12
"""Commits over which samples a second are counted, at least."""
RATE_SECONDS = 5.0
"""Time over which they are counted, at least."""
LEAST_RATE_SECONDS = 1.0
"""Commits within less time say nothing: reports that had to wait come in a burst."""
STUCK_SECONDS = 60.0
"""Time without a finished batch after which a rank is named; whole minutes, so that the report changes rarely."""
KEPT_POINTS = 4096
KEPT_REFUSALS = 16
KEPT_RECOVERIES = 64
KEPT_SKIPPED = 4


def rate(points: "deque[tuple[float, int]]") -> float:
    """Samples a second over the kept commits; 0 when they are too few to tell.

    Args:
        points: (time in seconds, samples committed since the start of the run), oldest first.
    """
    if len(points) < 2:
        return 0.0
    (start, before), (end, after) = points[0], points[-1]
    return (after - before) / (end - start) if end - start >= LEAST_RATE_SECONDS else 0.0


class Progress:
    """Figures of the training as the ranks report them."""

    def __init__(self, config: RunConfig, generation: int) -> None:
        self.config = config
        self.generation = generation
        self.window = 0
        self.samples = 0
        self.skipped = 0
        self.total_samples = 0
        self.data_epoch = 0
        self.anchor = 0
        self.loss: float | None = None
        self.metrics: dict[str, float] = {}
        self.ranks: list[RankWindow] = []
        self.guard: GuardReport | None = None
        self.points: deque[tuple[float, int]] = deque(maxlen=KEPT_POINTS)
        self.checkpoint: CheckpointState | None = None
        self.durable = 0
        self.checkpoint_problem = ""
        self.checkpoints_skipped: deque[str] = deque(maxlen=KEPT_SKIPPED)
        self.unheard_since = ""
        self.refusals: deque[Refuse] = deque(maxlen=KEPT_REFUSALS)
        self.stale_messages = 0
        self.deaths = 0
        self.suspensions = 0
        self.died_at: float | None = None
        self.goodput = Goodput()
        self.recoveries: deque[float] = deque(maxlen=KEPT_RECOVERIES)

    def committed(self, report: WindowCommitted, now: float) -> None:
        """Take in a commit; only the first report of a window moves the figures."""
        if report.window > self.window:
            self.window, self.samples, self.data_epoch = report.window, report.samples, report.data_epoch
            self.skipped = report.skipped
            self.points.append((now, report.samples))
            while len(self.points) > RATE_WINDOWS and now - self.points[1][0] >= RATE_SECONDS:
                self.points.popleft()
            if self.died_at is not None:
                self.recoveries.append(round(now - self.died_at, 3))
                self.died_at = None
        self.goodput.committed(report, now)
        if report.ranks and report.window >= self.window:
            self.ranks = list(report.ranks)
            self.guard = report.guard if report.guard is not None else self.guard
            self.anchor = report.anchor
            self.loss = report.loss if report.loss is not None else self.loss

    def resumed(self, echo: Echo) -> None:
        """Take over from a rank what an earlier coordinator knew."""
        self.window = max(self.window, echo.committed.window)
        self.samples = max(self.samples, echo.samples)
        self.skipped = max(self.skipped, echo.skipped)
        self.data_epoch = max(self.data_epoch, echo.data_epoch)

    def restarted(self, window: int) -> None:
        """The cohort starts (again) from a checkpoint of this window, which may lie behind the last commit."""
        self.durable = window
        self.fell_back(window)

    def fell_back(self, window: int) -> None:
        """Those who held later windows are gone: training goes on behind this one."""
        self.window = window
        self.points.clear()
        self.goodput.restarted()

    def saved(self, report: CheckpointSaved) -> None:
        """A checkpoint was written and read back."""
        self.checkpoint_problem = ""
        self.checkpoints_skipped.clear()
        self.durable = report.window
        self.checkpoint = CheckpointState(
            window=report.window,
            samples=report.samples,
            path=report.path,
            size_bytes=report.size_bytes,
            verified=True,
            saved_at=_ago(0.0),
            final=report.final,
            stall_ms=report.stall_ms,
        )

    def save_failed(self, report: CheckpointFailed) -> None:
        """A checkpoint could not be written; the newest durable one stays what it was."""
        self.checkpoint_problem = f"{report.reason}: {report.message}"[:1024]

    def passed_over(self, why: str) -> None:
        """Somebody passed a checkpoint over, or found none that can be read; ranks with one volume say the same."""
        if why and why not in self.checkpoints_skipped:
            self.checkpoints_skipped.append(why)

    def heard(self, silent_seconds: float | None) -> None:
        """Note for how long nobody who trains has been heard; ``None`` while somebody is. The time is fixed once."""
        if silent_seconds is None:
            self.unheard_since = ""
        elif not self.unheard_since:
            self.unheard_since = _ago(silent_seconds)

    def refused(self, refusal: Refuse) -> None:
        """Keep a refusal for people to read."""
        self.refusals.append(refusal)

    def died(self, ranks: int, now: float) -> None:
        """Count deaths and start the clock of the recovery."""
        self.deaths += ranks
        self.died_at = now if self.died_at is None else self.died_at
        self.points.clear()


def _ago(seconds: float) -> str:
    """RFC 3339 time of so many seconds ago."""
    return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat(timespec="seconds").replace("+00:00", "Z")


def stuck(rank: RankSeat | None, now: float | None) -> str:
    """A sentence about a rank that is alive and finishes no batch; empty for one that does, or has none to do.

    It is told and not judged: late is not dead. What it does between two batches may be long, and may be for ever.
    """
    if rank is None or now is None or not rank.connected or rank.phase is not Phase.TRAIN:
        return ""
    minutes = int((now - rank.progressed_at) / STUCK_SECONDS)
    if minutes < 1:
        return ""
    return (
        f"Its rank {rank.hello.local_rank} is alive and has finished no batch for more than {minutes} min; the others "
        "wait for it. If its script hangs, delete its pod: a successor takes its place."
    )


def problem(engine: "RunState") -> str:
    """What keeps ranks from each other, as a sentence; empty while nothing does."""
    mode, failures = engine.config.mode, engine.group_failures
    if failures.telling:
        return _failed(engine, failures, [])
    current, minutes = engine.epochs.current, engine.slow_minutes()
    if current is not None and (stuck := engine.stuck_pairs()):
        return forming.stuck(current.epoch, *_pairs(engine, stuck))
    if current is not None and minutes and (missing := engine.unformed()):
        return forming.slow(current.epoch, minutes, [_who(engine, uid) for uid in missing], mode)
    seats = [seat for seat in engine.seats.living() if seat.failures.telling]
    if not seats:
        return ""
    last = max((seat.failures for seat in seats), key=lambda known: known.epoch)
    return _failed(engine, last, [seat for seat in seats if seat.failures.epoch == last.epoch])


def _failed(engine: "RunState", failures: forming.Failures, movers: list[Seat]) -> str:
    """A sentence about failures of the whole group, or of those who come and go."""
    joins = ", ".join(seat.hello.member for seat in movers)[:400]
    meant = {seat.uid for seat in movers}
    found = pairs.of(engine.tests(failures.epoch))
    if movers:
        found = [pair for pair in found if meant & {member_of(pair.source), member_of(pair.target)}]
    broken, remedies = _pairs(engine, found)
    who, mode = _who(engine, failures.rank), engine.config.mode
    return forming.failed(failures, who, joins, mode, pairs=broken, remedies=remedies)


def _pairs(engine: "RunState", broken: list[pairs.Pair]) -> tuple[str, str]:
    """Which pairs are broken, and what to do; empty where none is."""
    if not broken:
        return "", ""
    return pairs.sentences(broken, lambda uid: _place(engine, uid)), pairs.remedies(broken)


def _place(engine: "RunState", uid: str) -> pairs.Place:
    seat, rank = engine.seats.get(member_of(uid)), engine.seats.rank(uid)
    reach = rank.hello.reach if rank is not None else None
    at = f"{reach.address} port {reach.port}" if reach is not None else ""
    return pairs.Place(_who(engine, uid), seat.hello.host if seat is not None else "unknown", at)


def notes(engine: "RunState") -> list[str]:
    """What is worth knowing of the run, as sentences."""
    return [
        *_batches(engine),
        *_ratios(engine),
        *_one_way(engine),
        *too_slow(engine.progress.ranks, lambda uid: _who(engine, uid)),
    ]


def _one_way(engine: "RunState") -> list[str]:
    """Ways that are broken in a group that stands nevertheless."""
    uids = set(engine.epochs.uids())
    if not uids or engine.unformed():
        return []
    tests = {uid: report for uid, report in engine.tests().items() if uid in uids}
    broken, remedies = _pairs(engine, [pair for pair in pairs.of(tests) if pair.target in uids])
    if not broken:
        return []
    return [f"{broken} The group stands all the same; the next one may not, as it depends on who connects. {remedies}"]


def _batches(engine: "RunState") -> list[str]:
    told = engine.expected
    if told is None or not told.batch_size:
        return []
    who = _who(engine, rank_uid(told.member_uid, told.local_rank))
    ranks = max(engine.epochs.seats, len(engine.epochs.uids()))
    note = too_large(who, told.batch_size, told.dataset_samples, ranks)
    return [note] if note else []


def _ratios(engine: "RunState") -> list[str]:
    ratios, epochs = engine.config.elche.partition_ratios, engine.epochs
    if not ratios or epochs.current is None:
        return []
    ways = "share i belongs to seat i: the cohorts in their order, their members by ordinal, the members' devices"
    if len(ratios) != epochs.seats:
        return [
            f"spec.elche.partitionRatios has {len(ratios)} shares and the cohorts want {epochs.seats} ranks: it is not "
            f"used ({ways}). Give as many shares as ranks in a new run, or leave it out: speeds are measured."
        ]
    beyond = [member.uid for member in epochs.members() if member.seat < 0]
    if not beyond:
        return []
    return [
        f"spec.elche.partitionRatios is not used while {_who(engine, beyond[0])} takes part, for which it has no share "
        f"({ways})."
    ]


def _who(engine: "RunState", uid: str) -> str:
    """A rank in words."""
    seat = engine.seats.get(member_of(uid))
    local = uid.rpartition("/")[2]
    return f"rank {local} of {seat.hello.member} on node {seat.hello.host}" if seat is not None else f"rank {uid}"


def _members(engine: "RunState") -> list[MemberState]:
    members = []
    now = engine.ticked_at
    for seat in engine.seats.by_uid.values():
        first = seat.ranks[min(seat.ranks)] if seat.ranks else None
        members.append(
            MemberState(
                uid=seat.uid,
                member=seat.hello.member,
                cohort=seat.hello.cohort,
                ordinal=seat.hello.ordinal,
                incarnation=seat.hello.incarnation,
                state=seat.state.value,
                phase=first.phase if first is not None else None,
                reason=seat.reason,
                message=(seat.message or next(filter(None, (stuck(rank, now) for rank in seat.ranks.values())), ""))[
                    :2048
                ],
                batches=sum(rank.batches for rank in seat.ranks.values()),
                committed=any(rank.seasoned for rank in seat.ranks.values()),
            )
        )
    return members


def _ranks(engine: "RunState") -> list[RankWindow]:
    """The ranks of the last window, with what they said of their data when they dialled."""
    told = ((row, engine.seats.rank(row.uid)) for row in engine.progress.ranks)
    return [row if rank is None else row.model_copy(update={"data": rank.hello.data}) for row, rank in told]


def reached(engine: "RunState") -> Reached | None:
    """Where the run is, for the log; ``None`` before the first commit that this coordinator has heard of."""
    progress = engine.progress
    if not progress.points:
        return None
    behind = progress.samples + progress.skipped
    return Reached(
        window=progress.window,
        samples=behind,
        total=progress.total_samples,
        ranks=len(engine.epochs.uids()),
        loss=progress.loss,
        final=0 < progress.total_samples <= behind,
    )


def snapshot(engine: "RunState") -> State:
    """The state of the run now."""
    progress = engine.progress
    speed = rate(progress.points) if not progress.unheard_since else 0.0
    left = progress.total_samples - progress.samples - progress.skipped
    goodput = progress.goodput.value
    return State(
        generation=engine.generation,
        run_uid=engine.config.run_uid,
        attempt=engine.config.attempt,
        outcome=engine.outcome,
        reason=engine.reason,
        message=engine.message[:2048],
        problem=problem(engine)[:2048],
        notes=notes(engine),
        epoch=engine.epochs.current.epoch if engine.epochs.current is not None else 0,
        window=progress.window,
        data_epoch=progress.data_epoch,
        anchor=progress.anchor,
        samples=progress.samples,
        skipped=progress.skipped,
        total_samples=progress.total_samples,
        samples_per_second=round(speed, 1),
        eta_seconds=round(left / speed, 1) if speed > 0 else None,
        loss=progress.loss if progress.loss is not None and math.isfinite(progress.loss) else None,
        metrics={name: figure for name, figure in progress.metrics.items() if math.isfinite(figure)},
        members=_members(engine),
        ranks=_ranks(engine),
        guard=progress.guard,
        checkpoint=progress.checkpoint,
        checkpoint_problem=progress.checkpoint_problem,
        checkpoints_skipped=list(progress.checkpoints_skipped),
        unheard_since=progress.unheard_since,
        refusals=list(progress.refusals),
        stale_messages=progress.stale_messages,
        deaths=progress.deaths,
        suspensions=progress.suspensions,
        recoveries=list(progress.recoveries),
        goodput=round(goodput, 4) if goodput is not None else None,
    )
