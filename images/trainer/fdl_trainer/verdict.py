"""What the end of a rank's process means for its member. Pure."""

import signal
from collections.abc import Sequence
from dataclasses import dataclass

from fdl_api.exitcodes import PodExit
from fdl_api.reasons import Ended
from fdl_api.termination import Cause, Saved, Termination
from fdl_api.wire import Done


@dataclass(frozen=True)
class RankEnd:
    """How one rank's process ended.

    Attributes:
        local_rank: which rank.
        status: exit code, or the negative number of the signal.
        result: its own last words, if it could write them.
        out_of_memory: the kernel killed a process of this container for memory while the rank ran.
        forced: this agent killed it because its time to leave was over.
        collateral: this agent killed it because the member was over: another of its ranks had ended, or ``given_up``.
        given_up: why the coordinator gave this member up, if the agent killed the rank for that.
        done: the coordinator's Done that the member had already heard, if any.
        inner: number of the process in a rank that spans several devices; 0 leads.
    """

    local_rank: int
    status: int
    result: Termination | None = None
    out_of_memory: bool = False
    forced: bool = False
    collateral: bool = False
    given_up: str = ""
    done: Done | None = None
    inner: int = 0

    @property
    def who(self) -> str:
        """Subject of a sentence."""
        whole = f"Rank {self.local_rank}"
        return f"{whole}, in its process {self.inner}," if self.inner else whole


def member_end(ends: Sequence[RankEnd]) -> tuple[Termination, PodExit]:
    """The member's end: that of the first rank that ended of itself, in the order in which they ended.

    A rank that failed outweighs those that ended well before it.
    """
    own = [end for end in ends if not end.collateral] or list(ends)
    judged = [rank_end(end) for end in own]
    for termination, code in judged:
        if code is not PodExit.DONE:
            return termination, code
    return judged[0]


def rank_end(end: RankEnd) -> tuple[Termination, PodExit]:
    """Judge one rank's end."""
    if end.done is not None and end.forced:
        return _after_done(
            end,
            end.done,
            "did not end by itself afterwards and was killed: it was still starting, or the script does something "
            "long, or for ever",
        )
    if end.done is not None and end.result is not None and end.result.cause is Cause.FENCED:
        return _after_done(end, end.done, "came too late to take part")
    if end.result is not None and end.status in PodExit.__members__.values():
        return end.result.model_copy(update={"rank": end.local_rank}), PodExit(end.status)
    if end.status < 0:
        return _signalled(end)
    return (
        _words(
            end,
            Cause.APP,
            Ended.SCRIPT_EXITED,
            f"{end.who} ended with code {end.status} without a word, before the run was complete: "
            "something in the script ends the process directly (os._exit, or a library); let fdl_trainer.run return.",
            permanent=True,
        ),
        PodExit.USER_CODE,
    )


def _signalled(end: RankEnd) -> tuple[Termination, PodExit]:
    number = -end.status
    name = signal.Signals(number).name if number in signal.Signals.__members__.values() else f"signal {number}"
    if end.forced:
        text = (
            f"{end.who} had not left when its time was over and was killed; its unfinished window is "
            "trained again by the others. Give the members a longer terminationGracePeriodSeconds."
        )
        return _words(end, Cause.PREEMPTION, Ended.LEFT, text, saved=Saved.INCOMPLETE), PodExit.TERMINATED
    if end.collateral and number == signal.SIGKILL:
        return _by_agent(end)
    if end.out_of_memory:
        text = (
            f"{end.who} was killed by the kernel for memory: raise the cohort's memory limit or make the batch smaller."
        )
        return _words(end, Cause.APP, Ended.OUT_OF_MEMORY, text), PodExit.KILLED
    if number == signal.SIGKILL:
        text = f"{end.who} was killed by SIGKILL from outside; a successor takes the member's place."
        return _words(end, Cause.INFRASTRUCTURE, Ended.KILLED, text), PodExit.KILLED
    if number == signal.SIGTERM:
        text = f"{end.who} was ended by SIGTERM before it could leave in order."
        return _words(end, Cause.PREEMPTION, Ended.LEFT, text, saved=Saved.INCOMPLETE), PodExit.TERMINATED
    text = (
        f"{end.who} was ended by {name}: native code of torch, of a driver or of a library of the script "
        "failed; see the pod's log."
    )
    return _words(end, Cause.INFRASTRUCTURE, Ended.KILLED, text), PodExit.INTERNAL


def _by_agent(end: RankEnd) -> tuple[Termination, PodExit]:
    """A rank that this agent killed, and why."""
    killed = f"{end.who} was killed by this member's own agent"
    if end.given_up:
        return _words(end, Cause.FENCED, Ended.FENCED, f"{killed}: {end.given_up}"[:1024]), PodExit.FENCED
    text = f"{killed}: another rank of the member had ended, and a member lives or dies as a whole."
    return _words(end, Cause.INFRASTRUCTURE, Ended.KILLED, text), PodExit.KILLED


def _after_done(end: RankEnd, done: Done, how: str) -> tuple[Termination, PodExit]:
    code = PodExit(done.exit_code) if done.exit_code in PodExit.__members__.values() else PodExit.INTERNAL
    cause = Cause.COMPLETE if code is PodExit.DONE else Cause.PREEMPTION
    text = f"{done.message or 'The run ended'}. {end.who} {how}."
    return _words(end, cause, done.reason or Ended.COMPLETED, text), code


def _words(
    end: RankEnd, cause: Cause, reason: str, message: str, *, permanent: bool = False, saved: Saved = Saved.NOTHING
) -> Termination:
    return Termination(
        cause=cause,
        reason=reason,
        message=message,
        permanent=permanent,
        saved=saved,
        rank=end.local_rank,
        exit_code=end.status,
    )
