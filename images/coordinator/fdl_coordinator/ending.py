"""How a run stops, settles and ends."""

from fdl_api.exitcodes import PodExit
from fdl_api.reasons import Ended
from fdl_api.wire import Outcome, Settled, Stop
from fdl_coordinator.runstate import RunState, Send
from fdl_coordinator.seats import SeatState


class Ending(RunState):
    """Settled windows, leavers, stops, success and failure."""

    def _stop(self, stop: Stop, now: float) -> list[Send]:
        self.stop = stop
        if self.epochs.current is None:
            return self._stopped(now)
        self.outcome = Outcome.STOPPING
        self.reason, self.message = stop.reason, stop.message
        waiting = self.seats.in_state(SeatState.JOINING, SeatState.READY, SeatState.SUSPENDED)
        out = [send for seat in waiting for send in self._dismiss(seat, SeatState.FINISHED)]
        return out + [(uid, stop) for uid in self.epochs.uids()]

    def _stopped(self, now: float) -> list[Send]:
        """All have stopped: suspended, given up, or (when all members left) waiting for new ones."""
        stop = self.stop
        assert stop is not None
        if stop.reason == Ended.LEFT:
            out = self._dismiss_all(PodExit.LEFT, stop.reason, stop.message, SeatState.FINISHED)
            self.stop = None
            self._start_over(now)
            return out
        if self.hint is not None and self.hint.give_up:
            return self._fail(self.hint.give_up, stop.message)
        self.outcome, self.reason, self.message = Outcome.SUSPENDED, stop.reason, stop.message
        return self._dismiss_all(PodExit.LEFT, stop.reason, stop.message, SeatState.FINISHED)

    def _fail(self, reason: str, message: str) -> list[Send]:
        self.outcome, self.reason, self.message = Outcome.FAILED, reason, message
        return self._dismiss_all(PodExit.BELOW_MINIMUM, reason, message, SeatState.FINISHED)

    def _start_over(self, now: float) -> None:
        """Nobody is left; whoever comes next resumes from the newest checkpoint."""
        self.epochs.end()
        self.outcome = Outcome.RECOVERING
        self.first_dial = now
        self.settled = 0
        self.reduce_failed_at = None

    def _unsaved(self) -> str:
        """Why a result that should be saved is not; empty when it is, or where no checkpoint is asked for.

        A rank that could not even open the volume has told so when it started, and says nothing at the end.
        """
        progress = self.progress
        final = progress.checkpoint is not None and progress.checkpoint.final
        return progress.checkpoint_problem if self.config.checkpoint is not None and not final else ""

    def _settle(self, now: float) -> list[Send]:
        """Tell the ranks of windows that all of them have."""
        ranks = [rank for uid in self.epochs.uids() if (rank := self.seats.rank(uid)) is not None]
        if not ranks:
            return []
        lowest = min(rank.window for rank in ranks)
        if lowest <= self.settled:
            return []
        self.settled = lowest
        all_need_it = self.stop is not None or self._any_final()
        return [(rank.uid, Settled(window=lowest)) for rank in (ranks if all_need_it else ranks[:1])]

    def _release_leavers(self, now: float) -> list[Send]:
        """Let leavers go whose last window all remaining members have committed too."""
        out: list[Send] = []
        remaining = [rank for uid in self.epochs.uids() if (rank := self.seats.rank(uid)) is not None]
        for seat in self.seats.in_state(SeatState.LEAVING):
            last = max((rank.window for rank in seat.ranks.values()), default=0)
            if not self._in_epoch(seat) and all(rank.window >= last for rank in remaining):
                out += [(rank.uid, Settled(window=last)) for rank in seat.ranks.values()]
                out += self._dismiss(seat, SeatState.FINISHED)
        return out

    def _maybe_done(self, now: float) -> list[Send]:
        """End the run once every present member has finished."""
        ranks = [rank for uid in self.epochs.uids() if (rank := self.seats.rank(uid)) is not None]
        if not ranks or not all(rank.finished for rank in ranks):
            return []
        if self.stop is not None:
            return self._stopped(now)
        if self.reason:
            return self._fail(self.reason, self.message)
        if problem := self._unsaved():
            message = f"All samples are committed, but the result is not saved: {problem}"
            return self._fail(problem.partition(":")[0], message)
        self.outcome, self.reason, self.message = Outcome.SUCCEEDED, Ended.COMPLETED, "all samples are committed"
        return self._dismiss_all(PodExit.DONE, Ended.COMPLETED, self.message, SeatState.FINISHED)
