"""The agent's connection to the coordinator: admission, and words about its ranks' ends."""

import contextlib
import logging
import threading
import time
from dataclasses import dataclass

from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.sync.client import ClientConnection, connect

from fdl_api import wire
from fdl_api.reasons import Refusal
from fdl_trainer.member import Endpoint

log = logging.getLogger(__name__)

FIRST_RETRY_SECONDS = 0.2
LAST_RETRY_SECONDS = 1.0
"""Short: a restarted coordinator waits only RECONNECT_GRACE_SECONDS for those who train."""
OPEN_TIMEOUT_SECONDS = 5.0
POLL_SECONDS = 0.2
PING_TIMEOUT_SECONDS = 60.0

_NETWORK_ERRORS = (OSError, WebSocketException, TimeoutError)


@dataclass
class LinkState:
    """What the link has learnt; assigned by its thread, read by the agent."""

    accepted: bool = False
    connected: bool = False
    refused: wire.Refuse | None = None
    done: wire.Done | None = None
    silent_since: float = 0.0
    problem: str = "not dialled yet"


class AgentLink:
    """Dials again, with back-off, until closed or refused for good."""

    def __init__(self, endpoint: Endpoint, hello: wire.AgentHello) -> None:
        self.state = LinkState(silent_since=time.monotonic())
        self._endpoint = endpoint
        self._hello = hello
        self._queue: list[wire.Message] = []
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._socket: ClientConnection | None = None
        self._thread = threading.Thread(target=self._run, name="fdl-agent-link", daemon=True)

    def start(self) -> None:
        """Start dialling."""
        self._thread.start()

    def send(self, message: wire.Message) -> None:
        """Send now, or on the next dial."""
        with self._lock:
            self._queue.append(message)
        self._wake.set()

    def close(self, seconds: float) -> None:
        """Send what waits, say goodbye and end; at most ``seconds`` for all of it."""
        limit = time.monotonic() + seconds
        while self._queue and self.state.connected and time.monotonic() < limit:
            time.sleep(0.01)
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout=max(0.0, limit - time.monotonic()))

    def silent_seconds(self) -> float:
        """Time since the coordinator was last connected; 0 while it is."""
        return 0.0 if self.state.connected else time.monotonic() - self.state.silent_since

    def _run(self) -> None:
        delay = FIRST_RETRY_SECONDS
        while not self._closing.is_set():
            was_accepted = False
            try:
                was_accepted = self._dial()
            except _NETWORK_ERRORS as error:
                self.state.problem = f"{type(error).__name__}: {error}"
            except ValueError as error:
                self.state.problem = f"the coordinator said something unknown: {error}"
            if was_accepted:
                self.state.silent_since = time.monotonic()
            self.state.connected = False
            if self.state.refused is not None:
                return
            delay = FIRST_RETRY_SECONDS if was_accepted else min(LAST_RETRY_SECONDS, delay * 1.6)
            self._closing.wait(delay)

    def _dial(self) -> bool:
        with connect(
            self._endpoint.url(wire.AGENT_PATH),
            ssl=self._endpoint.tls(),
            server_hostname=self._endpoint.server_name,
            additional_headers=self._endpoint.headers(),
            compression=None,
            proxy=None,
            open_timeout=OPEN_TIMEOUT_SECONDS,
            close_timeout=1.0,
            ping_interval=5.0,
            ping_timeout=PING_TIMEOUT_SECONDS,
            max_size=wire.MAX_FRAME_BYTES,
        ) as socket:
            socket.send(wire.encode(self._hello))
            return self._converse(socket)

    def _converse(self, socket: ClientConnection) -> bool:
        accepted = False
        while True:
            if accepted:
                self._flush(socket)
            if self._closing.is_set():
                return accepted
            self._wake.clear()
            try:
                text = socket.recv(timeout=POLL_SECONDS if not self._queue else 0.0)
            except TimeoutError:
                continue
            except ConnectionClosed as error:
                self.state.problem = f"the connection closed: {error}"
                return accepted
            message = wire.TO_MEMBER.validate_json(text)
            if isinstance(message, wire.Accept):
                accepted = self.state.accepted = self.state.connected = True
                log.info("admitted by the coordinator, generation %d", message.generation)
            elif isinstance(message, wire.Done):
                self.state.done = message
            elif isinstance(message, wire.Refuse):
                self.state.problem = f"refused ({message.reason}): {message.message}"
                log.warning("%s", self.state.problem)
                if message.permanent or message.reason is Refusal.FENCED:
                    self.state.refused = message
                return accepted

    def _flush(self, socket: ClientConnection) -> None:
        while self._queue:
            with contextlib.suppress(IndexError):
                socket.send(wire.encode(self._queue[0]))
                with self._lock:
                    self._queue.pop(0)
