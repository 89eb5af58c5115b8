"""One rank's process: runs the user's script and turns its end into last words.

``python -m fdl_trainer.rank``, started by the agent. The script runs as ``__main__`` with its arguments, its folder
first on the path, exactly as ``python script.py`` would run it.
"""

import logging
import os
import runpy
import sys
import time
import traceback
from pathlib import Path

from fdl_api.exitcodes import PodExit
from fdl_api.reasons import Ended
from fdl_api.runconfig import MemberEnv, RunConfig
from fdl_api.termination import Cause, Termination, script_missing
from fdl_trainer import early
from fdl_trainer.agent import RESULT_FILE_VARIABLE
from fdl_trainer.ending import MAX_MESSAGE, MAX_TRACEBACK, RunEndedError, user_code
from fdl_trainer.inner.place import COMPANION_SECONDS, place_here
from fdl_trainer.member import ConfigurationError, from_environment

log = logging.getLogger(__name__)

_HERE = str(Path(__file__).parent)


def run_script(script: Path, arguments: list[str]) -> Termination:
    """Run the script to its end.

    Returns:
        The last words of a rank that saw the run through.

    Raises:
        BaseException: whatever the script ended with; :func:`last_words` reads it.
    """
    try:
        source = script.read_bytes()
    except OSError as error:
        sentence = script_missing(str(script), error.strerror or type(error).__name__)
        raise user_code(Ended.SCRIPT_MISSING, sentence) from error
    compile(source, str(script), "exec")
    sys.argv = [str(script), *arguments]
    sys.path.insert(0, str(script.parent))
    early.watch()
    runpy.run_path(str(script), run_name="__main__")
    return completed_words()


def completed_words() -> Termination:
    """Last words after the script returned.

    Raises:
        RunEndedError: it returned without having seen a run through.
    """
    from fdl_trainer import launch  # noqa: PLC0415 - a script that cannot even be read must not cost torch's import

    ended, saved = launch.ended(), launch.completed()
    if ended is not None:
        raise ended  # the script caught it, and ended as if nothing were the matter
    if saved is None and launch.trained():
        raise user_code(
            Ended.SCRIPT_EXITED,
            "The script ended itself with code 0 in the middle of the training: let the loop over the session end by "
            "itself.",
        )
    if saved is None:
        raise user_code(
            Ended.SCRIPT_NEVER_TRAINED,
            "The script ended without training: it must call fdl_trainer.run(main), and main must loop over its "
            "session.",
        )
    return Termination(
        cause=Cause.COMPLETE,
        reason=Ended.COMPLETED,
        message="The run is complete.",
        saved=saved,
        exit_code=0,
        last_window=launch.last_window(),
    )


def require_sentinel(config: RunConfig) -> None:
    """Refuse to train on a node where the data volume is not the one that was meant.

    Raises:
        RunEndedError: ``data.sentinel`` is set and its file is not there. Billed to the infrastructure: the same member
            may find it on another node, or once the mount is mended.
    """
    if config.data_sentinel is None:
        return
    path = Path(config.data_dir or "/") / config.data_sentinel
    if not path.is_file():
        raise RunEndedError(
            PodExit.DATA,
            Ended.DATA_MISSING,
            f"The file {path} of spec.data.sentinel is not there on node {os.environ.get(MemberEnv.NODE, 'unknown')}: "
            "the volume of spec.data.claim is another, is empty, or is mounted stale. Check the mount on this node.",
            Cause.INFRASTRUCTURE,
        )


def last_words(error: BaseException) -> tuple[Termination, PodExit]:
    """What an exception that ended the script means."""
    ended = error if isinstance(error, RunEndedError) else _caught()
    if ended is not None:
        return ended.termination(), ended.code
    if isinstance(error, SyntaxError):
        where = f"{error.filename}, line {error.lineno}"
        return _fault(Ended.SCRIPT_SYNTAX_ERROR, f"The script does not parse: {error.msg} ({where}).", error)
    if isinstance(error, SystemExit):
        return _exited(error)
    return _raised(error)


def _caught() -> RunEndedError | None:
    """What had ended the training before, if the script caught it and then ended in a way of its own."""
    launch = sys.modules.get("fdl_trainer.launch")
    return launch.ended() if launch is not None else None


def _raised(error: BaseException) -> tuple[Termination, PodExit]:
    name, text = type(error).__name__, str(error).strip().splitlines()
    first = text[0][:700] if text else "no message"
    if isinstance(error, ConfigurationError) or _raised_by_us(error):
        message = first if isinstance(error, ConfigurationError) else f"fdl itself failed: {name}: {first}."
        words = Termination(cause=Cause.INFRASTRUCTURE, reason=Ended.INTERNAL, message=message, traceback=_tail(error))
        return words, PodExit.INTERNAL
    if isinstance(error, MemoryError) or name == "OutOfMemoryError":
        message = (
            f"The script ran out of memory: {first}. Make the batch smaller, train it by session.step (in "
            "parts that fit), or give the members more memory."
        )
        return _fault(Ended.OUT_OF_MEMORY, message, error)
    return _fault(Ended.SCRIPT_RAISED, f"The script raised {name}: {first} ({_where(error)}).", error)


def _exited(error: SystemExit) -> tuple[Termination, PodExit]:
    if error.code in (None, 0):
        try:
            return completed_words(), PodExit.DONE
        except RunEndedError as never:
            return never.termination(), never.code
    if words := _of_arguments(error):
        message = f"The script does not take its arguments: {words}. Correct spec.trainer.args."
        return _fault(Ended.SCRIPT_EXITED, message, error)
    code = error.code if isinstance(error.code, int) else 1
    said = "" if isinstance(error.code, int) else f" It said: {str(error.code)[:500]}"
    message = f"The script ended itself with code {code} before the run was complete.{said}"
    return _fault(Ended.SCRIPT_EXITED, message, error)


def _of_arguments(error: SystemExit) -> str:
    """What argparse found wrong, if that ended the script: its words are in the log alone, above a traceback."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__") == "argparse" and frame.f_code.co_name == "error":
            return str(frame.f_locals.get("message", ""))[:500]
    return ""


def _fault(reason: Ended, message: str, error: BaseException) -> tuple[Termination, PodExit]:
    words = Termination(
        cause=Cause.APP, reason=reason, message=message[:MAX_MESSAGE], permanent=True, traceback=_tail(error)
    )
    return words, PodExit.USER_CODE


def _raised_by_us(error: BaseException) -> bool:
    """Whether the fault is fdl's: raised in its code, and not about the arguments that a script gave it."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = bool(frames) and Path(frames[-1].filename).is_relative_to(_HERE)
    return ours and not isinstance(error, ValueError | TypeError)


def _where(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "runpy" not in frame.filename]
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else "unknown place"


def _tail(error: BaseException) -> str:
    return "".join(traceback.format_exception(error))[-MAX_TRACEBACK:]


def main() -> None:
    """Entry point. Leaves by ``os._exit``: threads inside native code must not hold up the end."""
    logging.basicConfig(
        level=os.environ.get("FDL_LOG_LEVEL", "INFO"), format="%(asctime)s rank %(levelname)s %(message)s"
    )
    code = PodExit.DONE
    try:
        config = from_environment().config
        require_sentinel(config)
        words = run_script(Path(config.script.path), list(config.script.args))
    except BaseException as error:
        words, code = last_words(error)
        if code not in (PodExit.DONE, PodExit.LEFT):
            sys.stderr.write(words.traceback or f"fdl: {words.message}\n")
    target = os.environ.get(RESULT_FILE_VARIABLE)
    if target:
        Path(target).write_text(words.render())
    sys.stdout.flush()
    sys.stderr.flush()
    if code not in (PodExit.DONE, PodExit.LEFT) and place_here() is not None:
        time.sleep(COMPANION_SECONDS)
    os._exit(int(code))


if __name__ == "__main__":
    main()
