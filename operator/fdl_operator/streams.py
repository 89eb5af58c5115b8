"""One authenticated stream to each coordinator: hints out, the state of the training in."""

import asyncio
import contextlib
import logging
import random
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import WebSocketException

from fdl_api import names
from fdl_api.version import WIRE_VERSION
from fdl_api.wire import MAX_FRAME_BYTES, OPERATOR_PATH, TO_OPERATOR, Accept, Hint, OperatorHello, Refuse, State, encode
from fdl_operator.model import StreamView

logger = logging.getLogger(__name__)

OPEN_SECONDS = 5.0
PING_SECONDS = 5.0
RETRY_BASE, RETRY_MAX = 0.2, 5.0


@dataclass(frozen=True, slots=True)
class Target:
    """Whom to dial.

    Attributes:
        run_uid: the run.
        address: IP address of the coordinator's pod; its certificate must still name ``host``.
        host: name in the certificate.
        token: the run token.
        ca: PEM of the run's own CA.
        generation: incarnation of the coordinator's pod.
        port: TCP port.
    """

    run_uid: str
    address: str
    host: str
    token: str
    ca: str
    generation: int
    port: int = names.COORDINATOR_PORT


class Streams:
    """The streams of all runs. ``get`` and ``put`` read and write the view of a run."""

    def __init__(
        self,
        get: Callable[[str], StreamView],
        put: Callable[[str, StreamView, bool], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._get = get
        self._put = put
        self._clock = clock
        self._tasks: dict[str, tuple[Target, asyncio.Task[None]]] = {}
        self._hints: dict[str, Hint] = {}
        self._fresh: dict[str, asyncio.Event] = {}

    def ensure(self, target: Target) -> None:
        """Keep a stream to this coordinator, and end the one to an earlier one."""
        present = self._tasks.get(target.run_uid)
        if present is not None and present[0] == target and not present[1].done():
            return
        self._cancel(target.run_uid)
        self._fresh.setdefault(target.run_uid, asyncio.Event())
        view = self._get(target.run_uid)
        if view.changed_at <= 0 or view.connected:
            self._put(target.run_uid, replace(view, connected=False, changed_at=self._clock()), False)
        task = asyncio.create_task(self._keep(target), name=f"stream-{target.host}")
        self._tasks[target.run_uid] = (target, task)

    def hint(self, run_uid: str, hint: Hint) -> None:
        """Have the coordinator told this, now or as soon as it answers."""
        self._hints[run_uid] = hint
        self._fresh.setdefault(run_uid, asyncio.Event()).set()
        self._put(run_uid, replace(self._get(run_uid), sent=hint), False)

    def close(self, run_uid: str) -> None:
        """End the stream of a run that needs none any more."""
        self._cancel(run_uid)
        self._hints.pop(run_uid, None)
        self._fresh.pop(run_uid, None)

    async def stop(self) -> None:
        """End all streams."""
        tasks = [task for _, task in self._tasks.values()]
        for run_uid in list(self._tasks):
            self.close(run_uid)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _cancel(self, run_uid: str) -> None:
        present = self._tasks.pop(run_uid, None)
        if present is not None:
            present[1].cancel()

    async def _keep(self, target: Target) -> None:
        """Dial again and again until cancelled."""
        context = ssl.create_default_context(cadata=target.ca)
        failures = 0
        while True:
            error = "the coordinator closed the stream"
            started = self._clock()
            try:
                await self._once(target, context)
            except (OSError, WebSocketException, TimeoutError, ValueError) as trouble:
                error = str(trouble) or type(trouble).__name__
            failures = 0 if self._clock() - started > 10 else failures + 1
            self._disconnected(target.run_uid, error)
            wait = min(RETRY_BASE * 2 ** min(failures, 10), RETRY_MAX)
            await asyncio.sleep(wait * (0.5 + random.random()))  # noqa: S311 - jitter

    async def _once(self, target: Target, context: ssl.SSLContext) -> None:
        async with connect(
            f"wss://{target.host}:{target.port}{OPERATOR_PATH}",
            host=target.address,
            port=target.port,
            ssl=context,
            server_hostname=target.host,
            additional_headers={"Authorization": f"Bearer {target.token}"},
            proxy=None,
            open_timeout=OPEN_SECONDS,
            close_timeout=1,
            ping_interval=PING_SECONDS,
            ping_timeout=2 * PING_SECONDS,
            max_size=MAX_FRAME_BYTES,
        ) as socket:
            await socket.send(encode(OperatorHello(wire_version=WIRE_VERSION, run_uid=target.run_uid)))
            sender = asyncio.create_task(self._send_hints(target.run_uid, socket))
            try:
                async for text in socket:
                    self._receive(target, text)
            finally:
                sender.cancel()
                with contextlib.suppress(asyncio.CancelledError, WebSocketException):
                    await sender

    async def _send_hints(self, run_uid: str, socket: ClientConnection) -> None:
        fresh = self._fresh[run_uid]
        last: Hint | None = None
        while True:
            fresh.clear()
            hint = self._hints.get(run_uid)
            if hint is not None and hint != last:
                await socket.send(encode(hint))
                last = hint
            await fresh.wait()

    def _receive(self, target: Target, text: str | bytes) -> None:
        message = TO_OPERATOR.validate_json(text)
        view = self._get(target.run_uid)
        now = self._clock()
        if isinstance(message, Accept):
            fresh = replace(view, connected=True, changed_at=now, error="", closed_port=message.closed_port)
            self._put(target.run_uid, fresh, True)
        elif isinstance(message, Refuse):
            raise ValueError(f"refused ({message.reason}): {message.message}")
        elif isinstance(message, State):
            dead = {member.uid for member in message.members if member.state == "dead"}
            since = {uid: view.dead_since.get(uid, now) for uid in dead}
            self._put(target.run_uid, replace(view, state=message, heard_at=now, dead_since=since), True)

    def _disconnected(self, run_uid: str, error: str) -> None:
        view = self._get(run_uid)
        if view.connected:
            logger.info("stream of run %s: %s", run_uid, error)
            self._put(run_uid, replace(view, connected=False, changed_at=self._clock(), error=error), True)
        elif view.error != error:
            self._put(run_uid, replace(view, error=error), False)
