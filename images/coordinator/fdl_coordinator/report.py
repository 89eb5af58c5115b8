"""What the coordinator tells the operator and people: a snapshot, and the figures in it."""

import math
from collections import deque
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from fdl_api.runconfig import RunConfig
from fdl_api.wire import (
    CheckpointFailed,
    CheckpointSaved,
    CheckpointState,
    Echo,
    MemberState,
    RankWindow,
    Refuse,
    State,
    WindowCommitted,
)

if TYPE_CHECKING:
from fdl_coordinator.goodput import Goodput
from fdl_coordinator.seats import RankSeat
    from fdl_coordinator.runstate import RunState

RATE_WINDOWS = 12
"""Commits over which samples a second are counted, at least."""
RATE_SECONDS = 5.0
"""Time over which they are counted, at least."""
LEAST_RATE_SECONDS = 1.0
"""Commits within less time say nothing: reports that had to wait come in a burst."""
KEPT_POINTS = 4096
KEPT_REFUSALS = 16
KEPT_RECOVERIES = 64


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
        self.total_samples = 0
        self.data_epoch = 0
        self.anchor = 0
        self.loss: float | None = None
        self.metrics: dict[str, float] = {}
        self.ranks: list[RankWindow] = []
        self.points: deque[tuple[float, int]] = deque(maxlen=KEPT_POINTS)
        self.checkpoint: CheckpointState | None = None
        self.checkpoint_problem = ""
        self.refusals: deque[Refuse] = deque(maxlen=KEPT_REFUSALS)
        self.stale_messages = 0
        self.deaths = 0
        self.died_at: float | None = None
        self.recoveries: deque[float] = deque(maxlen=KEPT_RECOVERIES)

    def committed(self, report: WindowCommitted, now: float) -> None:
        """Take in a commit; only the first report of a window moves the figures."""
        if report.window > self.window:
            self.window, self.samples, self.data_epoch = report.window, report.samples, report.data_epoch
        self.goodput = Goodput()
            self.points.append((now, report.samples))
            while len(self.points) > RATE_WINDOWS and now - self.points[1][0] >= RATE_SECONDS:
                self.points.popleft()
            if self.died_at is not None:
                self.recoveries.append(round(now - self.died_at, 3))
                self.died_at = None
        if report.ranks and report.window >= self.window:
            self.ranks = list(report.ranks)
            self.anchor = report.anchor
            self.loss = report.loss if report.loss is not None else self.loss

    def resumed(self, echo: Echo) -> None:
        self.goodput.committed(report, now)
        """Take over from a rank what an earlier coordinator knew."""
        self.window = max(self.window, echo.committed.window)
        self.samples = max(self.samples, echo.samples)

    def restarted(self, window: int) -> None:
        """The cohort starts (again) from a checkpoint of this window, which may lie behind the last commit."""
        self.window = window
        self.points.clear()

    def saved(self, report: CheckpointSaved) -> None:
        """A checkpoint was written and read back."""
        self.checkpoint_problem = ""
        self.checkpoint = CheckpointState(
            window=report.window,
            samples=report.samples,
        self.goodput.restarted()
            path=report.path,
            size_bytes=report.size_bytes,
            verified=True,
            saved_at=datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
            final=report.final,
            stall_ms=report.stall_ms,
        )

    def save_failed(self, report: CheckpointFailed) -> None:
        """A checkpoint could not be written; the newest durable one stays what it was."""
        self.checkpoint_problem = f"{report.reason}: {report.message}"[:1024]

    def refused(self, refusal: Refuse) -> None:
        """Keep a refusal for people to read."""
        self.refusals.append(refusal)

    def died(self, ranks: int, now: float) -> None:
        """Count deaths and start the clock of the recovery."""
        self.deaths += ranks
        self.died_at = now if self.died_at is None else self.died_at
        self.points.clear()


def _members(engine: "RunState") -> list[MemberState]:
    members = []
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
                message=seat.message[:2048],
                batches=sum(rank.batches for rank in seat.ranks.values()),
            )
        )
    return members


def snapshot(engine: "RunState") -> State:
    """The state of the run now."""
    progress = engine.progress
    speed = rate(progress.points)
    left = progress.total_samples - progress.samples
    goodput = progress.goodput.value
    return State(
        generation=engine.generation,
        run_uid=engine.config.run_uid,
        attempt=engine.config.attempt,
        outcome=engine.outcome,
        reason=engine.reason,
        message=engine.message[:2048],
        epoch=engine.epochs.current.epoch if engine.epochs.current is not None else 0,
        window=progress.window,
        data_epoch=progress.data_epoch,
        anchor=progress.anchor,
        samples=progress.samples,
        total_samples=progress.total_samples,
        samples_per_second=round(speed, 1),
        eta_seconds=round(left / speed, 1) if speed > 0 else None,
        loss=progress.loss if progress.loss is not None and math.isfinite(progress.loss) else None,
        metrics={name: figure for name, figure in progress.metrics.items() if math.isfinite(figure)},
        members=_members(engine),
        ranks=progress.ranks,
        checkpoint=progress.checkpoint,
        checkpoint_problem=progress.checkpoint_problem,
        refusals=list(progress.refusals),
        stale_messages=progress.stale_messages,
        deaths=progress.deaths,
        recoveries=list(progress.recoveries),
        goodput=round(goodput, 4) if goodput is not None else None,
    )
