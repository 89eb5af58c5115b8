"""How a rank's process ends: one exception that carries its last words.

It derives from BaseException, so that a script's ``except Exception`` never swallows a fencing or a stop.
"""

from dataclasses import dataclass, field

from fdl_api.exitcodes import PodExit
from fdl_api.reasons import Ended
from fdl_api.termination import Cause, Saved, Termination

MAX_MESSAGE = 1024
MAX_TRACEBACK = 2400


@dataclass
class RunEndedError(BaseException):
    """The rank has to end now, for a reason that is no fault of the line it is raised at.

    Attributes:
        code: exit code of the member's pod.
        reason: one of :class:`fdl_api.reasons.Ended` or of :class:`fdl_api.reasons.Refusal`.
        message: one sentence: what, where, what to do.
        cause: whose budget it is billed to.
        permanent: a retry cannot help until a person acts.
        saved: whether the work is in a checkpoint.
        last_window: the last committed window, if the rank knows.
    """

    code: PodExit
    reason: str
    message: str
    cause: Cause
    permanent: bool = False
    saved: Saved = Saved.NOTHING
    last_window: int | None = field(default=None)

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}"

    def termination(self) -> Termination:
        """The termination message of this end."""
        return Termination(
            cause=self.cause,
            reason=self.reason[:64],
            message=self.message[:MAX_MESSAGE],
            permanent=self.permanent,
            saved=self.saved,
            exit_code=int(self.code),
            last_window=self.last_window,
        )


def user_code(reason: Ended, message: str, *, data: bool = False) -> RunEndedError:
    """An end that a person must mend, in the script or (``data``) in the data."""
    return RunEndedError(PodExit.DATA if data else PodExit.USER_CODE, reason, message, Cause.APP, permanent=True)


def fenced(message: str) -> RunEndedError:
    """The run went on without this incarnation."""
    return RunEndedError(PodExit.FENCED, Ended.FENCED, message, Cause.FENCED, permanent=True)


def diverged(rank: str, windows: int, last: int, committed: int) -> RunEndedError:
    """The model was not finite on the rank of this place in ``windows`` windows in a row, the last being ``last``."""
    return RunEndedError(
        PodExit.DIVERGED,
        Ended.DIVERGED,
        f"The model of rank {rank} was not finite in {windows} windows in a row (the last is {last}): lower the "
        "learning rate, clip gradients (clip_norm of session.step), or look for bad samples in what this rank reads.",
        Cause.APP,
        permanent=True,
        last_window=committed,
    )


def step_not_finite(name: str) -> RunEndedError:
    """The step with the mean gradient of a window made the parameter ``name`` not finite, on all ranks alike."""
    return RunEndedError(
        PodExit.DIVERGED,
        Ended.DIVERGED,
        f"The gradients of a window were finite, and the optimizer's step made the model's parameter {name} not "
        "finite: lower the learning rate, or, where parameters are fp16, raise the optimizer's eps (1e-8 is zero "
        "there) or train in bf16. The last checkpoint is of before that step.",
        Cause.APP,
        permanent=True,
    )


def rolled_back(why: str, committed: int, checkpoint: int, *, billed: bool) -> RunEndedError:
    """The ranks' copies stay far apart: what was trained since the last checkpoint is given up.

    Args:
        why: the guard's sentence.
        committed: last committed window.
        checkpoint: newest window at which a checkpoint was decided on; 0 when none was.
        billed: whether this member's end stands for the rollback in the run's budget: of all that end, one does.
    """
    back = f"the newest checkpoint, of window {checkpoint} unless its writing failed" if checkpoint else "the beginning"
    return RunEndedError(
        PodExit.DIVERGED,
        Ended.DIVERGED,
        f"{why} The training goes back from window {committed} to {back}. If it happens again: lower the learning rate "
        "or elche.maxAnchor, or raise elche.divergenceThreshold.",
        Cause.APP if billed else Cause.PREEMPTION,
        saved=Saved.INCOMPLETE,
        last_window=committed,
    )


def coordinator_lost(message: str, last_window: int | None = None) -> RunEndedError:
    """The coordinator did not answer within the limit."""
    return RunEndedError(
        PodExit.COORDINATOR_LOST, Ended.COORDINATOR_LOST, message, Cause.INFRASTRUCTURE, last_window=last_window
    )


def left_alone(message: str) -> RunEndedError:
    """A rank that was asked to go, and that no coordinator lets go: its last window may have to be done again."""
    return RunEndedError(PodExit.LEFT, Ended.LEFT, message, Cause.PREEMPTION, saved=Saved.INCOMPLETE)


def kept(said: Saved | None, durable: int, window: int) -> Saved:
    """What became of a rank's work up to its last committed window.

    Args:
        said: the coordinator's word, if it gave one: it hears of every durable checkpoint.
        durable: newest window of which this rank itself knows a durable checkpoint; -1 for none.
        window: the rank's last committed window.
    """
    if window == 0:
        return Saved.NOTHING
    if durable >= window:
        return Saved.SAVED
    return said if said is not None else Saved.INCOMPLETE


def done(exit_code: int, reason: str, message: str, saved: Saved, last_window: int) -> RunEndedError:
    """The coordinator's ``Done``, as the rank's end."""
    try:
        code = PodExit(exit_code)
    except ValueError:
        code = PodExit.INTERNAL
    causes = {
        PodExit.DONE: Cause.COMPLETE,
        PodExit.LEFT: Cause.PREEMPTION,
        PodExit.FENCED: Cause.FENCED,
        PodExit.USER_CODE: Cause.APP,
        PodExit.DIVERGED: Cause.APP,
        PodExit.DATA: Cause.APP,
    }
    cause = causes.get(code, Cause.INFRASTRUCTURE)
    text = message or ("The run is complete." if code is PodExit.DONE else "The coordinator ended the run.")
    return RunEndedError(code, reason or Ended.COMPLETED, text, cause, saved=saved, last_window=last_window)
