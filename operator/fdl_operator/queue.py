"""The work queue: one entry a key, one worker a key at a time, retries with jitter."""

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
logger = logging.getLogger(__name__)


class WorkQueue(Generic[K]):
    """Deduplicates keys and hands each to ``work`` in at most one task at a time.

    A key that is added while it is worked on is worked on once more afterwards. A key whose work raises is tried again
    after 0.2 s, doubling up to ``retry_max``, each time with up to 50 % of jitter.
    """

    def __init__(
        self,
        work: Callable[[K], Awaitable[None]],
        *,
        workers: int,
        retry_base: float = 0.2,
        retry_max: float = 60.0,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self._work = work
        self._workers = workers
        self._retry_base = retry_base
        self._retry_max = retry_max
        self._jitter = jitter
        self._ready: deque[K] = deque()
        self._dirty: set[K] = set()
        self._active: set[K] = set()
        self._failures: dict[K, int] = {}
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._wakeup = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    def __len__(self) -> int:
        """Keys that wait now."""
        return len(self._ready)

    def add(self, key: K) -> None:
        """Have a key worked on as soon as possible."""
        if timer := self._timers.pop(key, None):
            timer.cancel()
        if key in self._dirty:
            return
        self._dirty.add(key)
        if key not in self._active:
            self._ready.append(key)
            self._wakeup.set()

    def add_after(self, key: K, seconds: float) -> None:
        """Have a key worked on in some seconds; an earlier date that is set already stays."""
        if seconds <= 0:
            self.add(key)
            return
        loop = asyncio.get_running_loop()
        at = loop.time() + seconds
        old = self._timers.get(key)
        if old is not None:
            if old.when() <= at:
                return
            old.cancel()
        self._timers[key] = loop.call_at(at, self.add, key)

    def forget(self, key: K) -> None:
        """Drop what is planned for a key (its object is gone)."""
        if timer := self._timers.pop(key, None):
            timer.cancel()
        self._failures.pop(key, None)

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nobody works; dates in the future do not count."""
        return not self._ready and not self._active

    def start(self) -> None:
        """Start the workers."""
        self._tasks = [asyncio.create_task(self._worker(), name=f"worker-{number}") for number in range(self._workers)]

    async def stop(self) -> None:
        """Stop the workers; work in progress is cancelled."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for task in self._tasks:
            task.cancel()
        for task in self._tasks:
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._tasks = []

    async def _worker(self) -> None:
        while True:
            while not self._ready:
                self._wakeup.clear()
                await self._wakeup.wait()
            key = self._ready.popleft()
            self._dirty.discard(key)
            self._active.add(key)
            try:
                await self._work(key)
            except Exception as error:
                self._retry(key, error)
            else:
                self._failures.pop(key, None)
            finally:
                self._active.discard(key)
                if key in self._dirty:
                    self._ready.append(key)
                    self._wakeup.set()

    def _retry(self, key: K, error: Exception) -> None:
        count = self._failures.get(key, 0)
        self._failures[key] = count + 1
        wait = min(self._retry_base * 2 ** min(count, 20), self._retry_max) * (1 + 0.5 * self._jitter())
        level = logging.WARNING if count < 3 else logging.ERROR
        logger.log(level, "work on %s failed, again in %.1f s: %s", key, wait, error, exc_info=count == 3)
        self.add_after(key, wait)
