"""One reduce under way."""

import threading
import time

from fdl_trainer.averaging import Wire
from fdl_trainer.groups import Group, Interrupt


class Flight:
    """The reduce of a packed wire buffer: in the caller's thread, or in one of its own while training goes on.

    At most one is under way in a rank, so that a group has one operation at a time.

    Args:
        packed: what is reduced; its owner until :meth:`landed`.
        group: the epoch's group.
        interrupt: see :mod:`fdl_trainer.groups`; asked in the flight's thread.

    Attributes:
        packed: the buffer.
        milliseconds: how long the operation took, waiting for late ranks included.
    """

    def __init__(self, packed: Wire, group: Group, interrupt: Interrupt) -> None:
        self.packed = packed
        self.milliseconds = 0.0
        self._group = group
        self._interrupt = interrupt
        self._error: BaseException | None = None
        self._landed = threading.Event()

    def start(self, *, aside: bool) -> None:
        """Begin; returns at once with ``aside``, else when it has landed."""
        if aside:
            threading.Thread(target=self._run, name="fdl-reduce", daemon=True).start()
        else:
            self._run()

    def wait(self, seconds: float) -> bool:
        """Wait for the end at most so long; returns whether it has landed."""
        return self._landed.wait(seconds)

    def landed(self) -> bool:
        """Whether it has ended, well or not."""
        return self._landed.is_set()

    def result(self) -> None:
        """Nothing, if the buffer holds the sum.

        Raises:
            CollectiveFailedError: the operation failed.
            InterruptedCollectiveError: it was abandoned, and still owns the buffer.
        """
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        started = time.perf_counter()
        try:
            self.packed.reduce(lambda part: self._group.all_reduce(part, self._interrupt))
        except BaseException as error:
            self._error = error
        self.milliseconds = (time.perf_counter() - started) * 1000.0
        self._landed.set()
