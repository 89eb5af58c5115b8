"""What ranks that take part report: that they live, what they formed, committed and saved, and what failed."""

from fdl_api.wire import (
    CheckpointFailed,
    CheckpointSaved,
    EpochFailed,
    EpochFormed,
    Evaluated,
    Finished,
    Heartbeat,
    Outcome,
    PairsTested,
    ReduceFailed,
    WindowCommitted,
    member_of,
)
from fdl_coordinator import pairs
from fdl_coordinator.opening import Opening
from fdl_coordinator.runstate import Send
from fdl_coordinator.seats import SeatState


class Hearing(Opening):
    """The events of ranks in epochs."""

    def heartbeat(self, rank_uid: str, beat: Heartbeat, now: float) -> list[Send]:
        """A rank is alive."""
        rank = self.seats.rank(rank_uid)
        if rank is None:
            return []
        if beat.progress != rank.progress or beat.phase != rank.phase:
            rank.progressed_at = now
        rank.last_heard, rank.phase, rank.progress, rank.batches = now, beat.phase, beat.progress, beat.batches
        if beat.epoch == rank.epoch:
            return []
        rank.epoch = beat.epoch
        return self._maybe_switched(now)

    def formed(self, rank_uid: str, report: EpochFormed, now: float) -> list[Send]:
        """A rank's group of an epoch stands."""
        rank = self.seats.rank(rank_uid)
        if rank is None:
            return []
        rank.formed = max(rank.formed, report.epoch)
        if self.group_failures.of_group and self.stands():
            self.group_failures.clear()
        planned = self.epochs.planned
        if planned is None or planned.confirmed or report.epoch != planned.epoch.epoch:
            return self._advance(now)
        if not all(self._formed(member.uid) >= planned.epoch.epoch for member in planned.epoch.members):
            return []
        confirmed = self.epochs.confirm()
        return [(uid, confirmed) for uid in [*(member.uid for member in confirmed.members), *planned.leavers]]

    def forming_failed(self, rank_uid: str, report: EpochFailed, now: float) -> list[Send]:
        """A rank could not form a group. Nobody is blamed: a planned epoch is dropped, a present one made anew.

        What it says is kept for people (:mod:`fdl_coordinator.forming`).
        """
        planned = self.epochs.planned
        if planned is not None and planned.epoch.epoch == report.epoch:
            if planned.confirmed:
                return []
            self._plan_failed(rank_uid, report.message, now)
            return self._cancel(planned)
        if self.epochs.current is not None and self.epochs.current.epoch == report.epoch:
            self.reduce_failed_at = self.reduce_failed_at or now
            self.group_failures.report(tuple(self.epochs.uids()), report.epoch, rank_uid, report.message, now)
        return []

    def pairs_tested(self, rank_uid: str, report: PairsTested, now: float) -> list[Send]:
        """A rank has tested its ways to others (:mod:`fdl_coordinator.pairs`).

        Two ranks of which neither reaches the other cannot be in one group: nobody needs to wait until the backends'
        own attempts run out. One that is reached one way only may still be, as it depends on who connects to whom.
        """
        rank = self.seats.rank(rank_uid)
        if rank is None:
            return []
        rank.tested = report
        if not report.broken or rank.formed >= report.epoch:
            return []
        self.broken_epoch = max(self.broken_epoch, report.epoch)
        if not pairs.apart(self.tests(report.epoch), rank_uid):
            return []
        return self.forming_failed(rank_uid, EpochFailed(epoch=report.epoch, message=""), now)

    def committed(self, rank_uid: str, report: WindowCommitted, now: float) -> list[Send]:
        """A rank committed a window."""
        rank = self.seats.rank(rank_uid)
        if rank is None or self._is_void(rank_uid, report):
            return []
        rank.seasoned = rank.seasoned or rank.batches > 0
        rank.window = max(rank.window, report.window)
        rank.final = rank.final or report.final
        rank.epoch = max(rank.epoch, report.epoch)
        self.window_times.committed(report.window, now)
        self.progress.committed(report, now)
        if self.epochs.current is not None and report.epoch >= self.epochs.current.epoch:
            self.reduce_failed_at = None
            self.group_failures.clear()
            if self.outcome is Outcome.RECOVERING:
                self.outcome = Outcome.TRAINING
        out = self._maybe_switched(now)
        return out + self._settle(now) + self._release_leavers(now)

    def reduce_failed(self, rank_uid: str, report: ReduceFailed, now: float) -> list[Send]:
        """A reduce failed at a rank; it names nobody."""
        current = self.epochs.current
        if current is not None and report.epoch == current.epoch:
            self.reduce_failed_at = now if self.reduce_failed_at is None else self.reduce_failed_at
            uids = tuple(self.epochs.uids())
            self.group_failures.report(uids, report.epoch, rank_uid, report.message, now, of_group=False)
        return []

    def saved(self, rank_uid: str, report: CheckpointSaved, now: float) -> list[Send]:
        """A checkpoint is durable. The last one may be written by a successor of the writer that could not."""
        self.progress.saved(report)
        if report.final and self.unsaved:
            self.unsaved, self.reason, self.message = False, "", ""
        return []

    def save_failed(self, rank_uid: str, report: CheckpointFailed, now: float) -> list[Send]:
        """A checkpoint could not be written."""
        self.progress.save_failed(report)
        if report.final and self.outcome not in (Outcome.FAILED, Outcome.SUSPENDED):
            self.unsaved, self.reason, self.message = True, report.reason, report.message
        return []

    def evaluated(self, rank_uid: str, report: Evaluated, now: float) -> list[Send]:
        """The final model was evaluated."""
        self.progress.metrics = dict(report.metrics)
        return []

    def finished(self, rank_uid: str, report: Finished, now: float) -> list[Send]:
        """A rank has nothing left to do."""
        rank = self.seats.rank(rank_uid)
        current = self.epochs.current
        if rank is None or (current is not None and report.epoch < current.epoch):
            return []  # said before a death that may have made this rank the writer: it will say it again
        rank.finished = True
        return self._maybe_done(now)

    def _is_void(self, rank_uid: str, report: WindowCommitted) -> bool:
        """Whether a commit was made apart from the run: by a rank that was suspended and had not heard of it yet."""
        seat, current = self.seats.get(member_of(rank_uid)), self.epochs.current
        outside = seat is not None and seat.state in (SeatState.SUSPENDED, SeatState.READY)
        return outside and current is not None and report.epoch < current.epoch
