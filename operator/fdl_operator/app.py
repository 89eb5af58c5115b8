"""The operator as a process: stand by, lead, and leave when the Lease is lost."""

import asyncio
import logging
import signal
from collections.abc import Coroutine
from typing import Any

import kopf

from fdl_operator import observe
from fdl_operator.client import Client
from fdl_operator.election import Election, Timing
from fdl_operator.engine import Engine
from fdl_operator.health import Health
from fdl_operator.settings import Settings

logger = logging.getLogger(__name__)

STALE_LEASE_SECONDS = 30.0


class Operator:
    """One operator process: candidate first, leader once it holds the Lease."""

    def __init__(self, client: Client, settings: Settings, timing: Timing | None = None) -> None:
        self._client = client
        self._settings = settings
        self._election = Election(
            client,
            namespace=settings.namespace,
            name=settings.lease_name,
            identity=settings.identity,
            timing=timing,
        )
        self.engine: Engine | None = None
        self.leading = asyncio.Event()
        self.synced = asyncio.Event()
        """Set once everything has been seen and work has begun."""
        self._health = Health(settings.health_port, self._problem, self.leading.is_set)

    async def run(self, stop: asyncio.Event) -> int:
        """Serve until ``stop`` is set or the Lease is lost.

        Returns:
            0 after ``stop``; 1 when the Lease was lost or the work ended by itself: the process must not go on.
        """
        await self._health.start()
        try:
            acquired = asyncio.create_task(self._election.acquire())
            if not await _first(acquired, stop):
                return 0
            self.leading.set()
            return await self._lead(stop)
        finally:
            await self._health.stop()

    async def _lead(self, stop: asyncio.Event) -> int:
        hold = asyncio.create_task(self._election.hold(), name="lease")
        stopping = asyncio.create_task(stop.wait(), name="stop")
        work = asyncio.create_task(self._work(), name="work")
        done, _ = await asyncio.wait({hold, stopping, work}, return_when=asyncio.FIRST_COMPLETED)
        failed = False
        for task in (work, stopping):
            task.cancel()
        try:
            await work
        except asyncio.CancelledError:
            pass
        except Exception:
            logger.exception("the work ended")
            failed = True
        if hold in done:
            return 1
        hold.cancel()
        await self._election.release()
        # kopf takes the signals while it runs, and ends without an error upon one.
        return 1 if failed else 0

    async def _work(self) -> None:
        engine = self.engine = Engine(self._client, self._settings)
        watches = observe.Watches(self._client, engine.store, self._settings, engine.deep.pods, engine.cluster_touched)
        await engine.await_kinds()
        watches.start()
        handlers = observe.registry(engine.store, engine.cluster_changed)
        kopf.on.login(registry=handlers, id="login")(observe.login(self._client))
        namespaces = list(self._settings.watch_namespaces)
        events = kopf.operator(
            registry=handlers,
            settings=observe.kopf_settings(),
            standalone=True,
            clusterwide=not namespaces,
            namespaces=namespaces,
        )
        try:
            await _until_one_ends(events, self._begin(engine, watches), watches.broken())
        finally:
            await engine.stop()
            await watches.stop()

    async def _begin(self, engine: Engine, watches: observe.Watches) -> None:
        """Plan nothing before all pods, nodes, objects and the cluster object have been seen once."""
        await watches.synced()
        await engine.load_cluster()
        engine.queue.start()
        self.synced.set()
        await asyncio.Event().wait()

    def _problem(self) -> str:
        if self.leading.is_set() and self._election.renewed_ago > STALE_LEASE_SECONDS:
            return f"the Lease was last renewed {int(self._election.renewed_ago)} s ago"
        return ""


async def _until_one_ends(*work: Coroutine[Any, Any, None]) -> None:
    """Run all; when one ends or fails, end the others and raise what it raised."""
    tasks = [asyncio.create_task(each) for each in work]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


async def _first(task: "asyncio.Task[None]", stop: asyncio.Event) -> bool:
    """Wait for a task or for ``stop``; True when the task was first."""
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
    for each in (task, stopping):
        if not each.done():
            each.cancel()
    return task.done() and not task.cancelled() and not stop.is_set()


def stop_on_signals() -> asyncio.Event:
    """An Event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop
