"""Waiting for signals, as the agent does that is PID 1 of its pod."""

import signal
from collections.abc import Collection


def wait(numbers: Collection[signal.Signals], seconds: float) -> signal.Signals | None:
    """The next of some blocked signals, or None when none has come in time.

    A process that is stopped inside of the wait and continued after its end (SIGSTOP, a debugger, a frozen node) gets
    from Python what lay in memory, in place of a signal. Its number is none of those that were waited for, or that of
    one which had come before.
    """
    info = signal.sigtimedwait(numbers, seconds)
    return signal.Signals(info.si_signo) if info is not None and info.si_signo in numbers else None
