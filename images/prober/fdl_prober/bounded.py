"""Looks with a time limit, in threads.

Files of the kernel are read within the process: that is cheap, and cannot crash it. But a driver may hold the reader
for ever, and nothing ends such a thread. It costs one thread, and the same look is not started again before it has
ended.
"""

import asyncio
import threading
from collections.abc import Callable
from typing import Any, TypeVar

Result = TypeVar("Result")


class StuckError(RuntimeError):
    """A look could not begin, did not end within its limit, or the one before it has not ended yet; the text says
    which.
    """


class Bounded:
    """Runs looks by name, each in a thread of its own."""

    def __init__(self) -> None:
        self._running: dict[str, threading.Thread] = {}

    async def run(self, name: str, limit_seconds: float, look: Callable[..., Result], *arguments: Any) -> Result:
        """Do one look.

        Args:
            name: of the look; of one name only one runs at a time.
            limit_seconds: time that it may take.
            look: the function, with its arguments.

        Raises:
            StuckError: it did not end within its limit, the one before it is still running, or the system gives no
                thread for it.
        """
        if name in self._running:
            raise StuckError("an earlier look has not ended yet")
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Result] = loop.create_future()

        def tell(setter: Callable[[Any], None], value: Any) -> None:
            try:
                loop.call_soon_threadsafe(lambda: None if answer.done() else setter(value))
            except RuntimeError:
                return  # the loop has ended meanwhile: nobody waits any more

        def work() -> None:
            try:
                told: tuple[Callable[[Any], None], Any] = answer.set_result, look(*arguments)
            except Exception as error:  # handed to whoever asked
                told = answer.set_exception, error
            # Before the answer: whoever has it may ask again at once, while this thread still is about to end.
            del self._running[name]
            tell(*told)

        thread = threading.Thread(target=work, name=f"look-{name}", daemon=True)
        self._running[name] = thread
        try:
            thread.start()
        except RuntimeError as error:  # a limit on processes: the next look may have one again
            del self._running[name]
            raise StuckError(f"it could not begin: {error}") from error
        try:
            return await asyncio.wait_for(answer, limit_seconds)
        except TimeoutError as error:
            if answer.done() and not answer.cancelled():
                raise  # the look's own
            raise StuckError(f"it did not end within {limit_seconds:g} s") from error
