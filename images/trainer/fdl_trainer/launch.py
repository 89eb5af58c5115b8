"""``fdl_trainer.run``: the one call of a script, in a run and on a laptop."""

import logging
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import torch

from fdl_api.exitcodes import PodExit
from fdl_api.reasons import Ended
from fdl_api.termination import Cause, Saved
from fdl_trainer import early, progress
from fdl_trainer import member as members
from fdl_trainer.ending import RunEndedError, user_code
from fdl_trainer.heap import keep_freed
from fdl_trainer.inner.place import place_here
from fdl_trainer.session import Session
from fdl_trainer.threads import threads_here

log = logging.getLogger(__name__)

SOLO_DIRECTORY_VARIABLE = "FDL_SOLO_DIRECTORY"
"""Where a solo run keeps and finds its checkpoints; without it, it keeps none."""


class _Completed:
    """This process's only session and how it ended; read by :mod:`fdl_trainer.rank`."""

    session: Session | None = None
    ended: RunEndedError | None = None


def run(main: Callable[[Session], object]) -> None:
    """Train: call ``main(session)`` and see the run through to its end.

    In a run's member it trains as one rank; elsewhere alone, on this machine. Returns once the run is complete.

    Args:
        main: the script's function. It must call ``session.setup`` and loop over the session.

    Raises:
        RunEndedError: in a run, this rank has to end before the run is complete (a BaseException).
    """
    if _Completed.session is not None:
        raise user_code(Ended.SCRIPT_RAISED, "fdl_trainer.run was called twice; a script trains once.")
    inside = members.is_member()
    _refuse_used_cuda()
    session = _Completed.session = _session(inside)
    _handle_signals(session)
    try:
        _see_through(main, session)
    except RunEndedError as ended:
        _Completed.ended = ended
        if ended.last_window is None:
            ended.last_window = session.last_window
        if inside:
            raise
        sys.exit(_solo_end(ended))
    finally:
        session.close()


def completed() -> Saved | None:
    """What became of the work of a run that :func:`run` saw through in this process; None if it did not."""
    return _Completed.session.saved if _Completed.session is not None else None


def ended() -> RunEndedError | None:
    """What ended this process's part in a run before the run was complete, whatever the script made of it."""
    return _Completed.ended


def trained() -> bool:
    """Whether the script has entered its loop."""
    return _Completed.session is not None and _Completed.session.trained


def last_window() -> int | None:
    """Last window that this process committed."""
    return _Completed.session.last_window if _Completed.session is not None else None


def _see_through(main: Callable[[Session], object], session: Session) -> None:
    """Call the script's function and finish, also when it ends itself with ``sys.exit(0)`` after its loop."""
    left: SystemExit | None = None
    try:
        main(session)
    except SystemExit as error:
        if error.code not in (None, 0) or not session.complete:
            raise
        left = error
    session.finish()
    for name, value in session.metrics.items():
        print(f"{name}: {value:.4f}", flush=True)
    if left is not None:
        raise left


def _session(inside: bool) -> Session:
    if not inside:
        _show_progress()
        directory = os.environ.get(SOLO_DIRECTORY_VARIABLE)
        return Session(None, Path(directory) if directory else None)
    place = place_here()
    if place is None:
        torch.set_num_threads(threads_here())
        session = Session(members.from_environment())
    else:
        from fdl_trainer.inner.sessions import session_of  # noqa: PLC0415 - FSDP2 takes a second to import

        torch.set_num_threads(threads_here(ranks=place.size))
        session = session_of(members.from_environment(), place)
    keep_freed(session.device)
    return session


def _show_progress() -> None:
    """Show a person who trains alone how far it is, unless the script has set up logging itself."""
    told = logging.getLogger(progress.__name__)
    if told.hasHandlers():
        return
    told.addHandler(logging.StreamHandler())
    told.setLevel(logging.INFO)
    told.propagate = False  # else a script that sets logging up later has each line twice


def _handle_signals(session: Session) -> None:
    def leave(number: int, frame: FrameType | None) -> None:
        if not session.ask_to_leave():
            raise RunEndedError(
                PodExit.LEFT, Ended.LEFT, "The rank was asked to leave before it took part.", Cause.PREEMPTION
            )

    signal.signal(signal.SIGTERM, leave)


def _refuse_used_cuda() -> None:
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):  # type: ignore[no-untyped-call]
        return
    where = early.first_touch()
    line = f" at {where}" if where else ""
    raise user_code(
        Ended.SCRIPT_RAISED,
        f"The script touched CUDA before fdl_trainer.run{line}: move that line into the function that run calls, and "
        "put tensors on session.device there.",
    )


def _solo_end(ended: RunEndedError) -> int:
    print(f"fdl: {ended.message}", file=sys.stderr)
    return 0 if ended.code is PodExit.LEFT else int(ended.code)
