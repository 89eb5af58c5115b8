"""The rank's line to the coordinator: one thread that beats, listens, and dials again.

The main thread never waits for it in the hot path; it reads :class:`Channel`'s fields at boundaries and between slices
of a collective. Losing the coordinator stops nothing: the thread dials with back-off, says Hello with an echo of the
running training, and repeats what may have been lost. Only after ``limit_seconds`` is the rank told to give up.
"""

import base64
import contextlib
import itertools
import logging
import socket as sockets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from websockets.exceptions import InvalidHandshake, WebSocketException
from websockets.sync.client import ClientConnection, connect

from fdl_api import wire
from fdl_api.exitcodes import PodExit
from fdl_api.reasons import Refusal
from fdl_api.termination import Cause
from fdl_trainer.ending import RunEndedError, coordinator_lost, fenced, left_alone
from fdl_trainer.epochs import EpochBook
from fdl_trainer.member import Endpoint
from fdl_trainer.store import StoreClosedError

log = logging.getLogger(__name__)

LOST_LIMIT_SECONDS = 600.0
"""How long a rank goes on without a coordinator before it gives up."""
FIRST_RETRY_SECONDS = 0.1
LAST_RETRY_SECONDS = 1.0
"""Short: a restarted coordinator waits only RECONNECT_GRACE_SECONDS for those who train."""
OPEN_TIMEOUT_SECONDS = 5.0
STORE_SLACK_SECONDS = 10.0
LEAVE_LIMIT_SECONDS = 10.0
"""Time for which a rank that was asked to go waits for a coordinator: when a run is deleted, none comes back."""
PING_TIMEOUT_SECONDS = 60.0
"""Silence after which a half-open connection is given up. Long: to the coordinator, a closed socket is a death."""
UNACKNOWLEDGED_SECONDS = 15.0
"""Time after which a line whose other end acknowledges nothing is given up: its node is gone, or cut off. A coordinator
that is only slow or stopped still acknowledges, by its kernel."""

_NETWORK_ERRORS = (OSError, WebSocketException, InvalidHandshake, TimeoutError)


@dataclass
class Pulse:
    """What a heartbeat carries; the main thread assigns, the control thread reads."""

    phase: wire.Phase = wire.Phase.LOAD
    epoch: int = 0
    window: int = 0
    progress: int = 0
    batches: int = 0

    def message(self) -> wire.Heartbeat:
        """The heartbeat of this moment."""
        return wire.Heartbeat(
            phase=self.phase, epoch=self.epoch, window=self.window, progress=self.progress, batches=self.batches
        )


@dataclass
class _Pending:
    epoch: int
    done: threading.Event = field(default_factory=threading.Event)
    reply: wire.StoreReply | None = None
    error: str = ""


class Channel:
    """Connection of one rank to the coordinator, over any number of dials.

    Args:
        endpoint: where the coordinator listens.
        hello: makes the Hello of a dial; called in the control thread, so it must only read.
        book: the epochs heard of; guarded by :attr:`lock`.
        on_epoch: called in the control thread, without the lock, for each new epoch.
        limit_seconds: time without a coordinator after which :attr:`ended` is set.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        hello: Callable[[], wire.RankHello],
        book: EpochBook,
        on_epoch: Callable[[wire.Epoch], None],
        limit_seconds: float = LOST_LIMIT_SECONDS,
    ) -> None:
        self.lock = threading.Condition()
        self.book = book
        self.pulse = Pulse()
        self.generation = 0
        self.settled = 0
        self.stop: wire.Stop | None = None
        self.save_wanted = False
        self.done: wire.Done | None = None
        self.ended: RunEndedError | None = None
        self.connected = False
        self._endpoint = endpoint
        self._hello = hello
        self._on_epoch = on_epoch
        self._limit = limit_seconds
        self._socket: ClientConnection | None = None
        self._sticky: dict[str, wire.Message] = {}
        self._pending: dict[int, _Pending] = {}
        self._ids = itertools.count(1)
        self._closing = threading.Event()
        self._heard_at = 0.0
        self._last_problem = ""
        self._thread = threading.Thread(target=self._run, name="fdl-control", daemon=True)

    # --- main thread ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start dialling."""
        self._heard_at = time.monotonic()
        self._thread.start()

    def close(self) -> None:
        """Say goodbye and end the thread; waits for what was sent to be on its way."""
        self._closing.set()
        socket = self._socket
        if socket is not None:
            with contextlib.suppress(*_NETWORK_ERRORS):
                socket.close()
        if self._thread.is_alive() and threading.current_thread() is not self._thread:
            self._thread.join(timeout=OPEN_TIMEOUT_SECONDS)

    def send(self, message: wire.Message, sticky: str = "") -> None:
        """Send a message, or drop it while there is no coordinator.

        Args:
            message: what to say.
            sticky: key under which the newest such message is repeated on every dial, until :meth:`forget`.
        """
        if sticky:
            with self.lock:
                self._sticky[sticky] = message
        self._transmit(message)

    def forget(self, sticky: str) -> None:
        """Stop repeating a message."""
        with self.lock:
            self._sticky.pop(sticky, None)

    def wait(self, seconds: float) -> None:
        """Wait for news of any kind, at most ``seconds``."""
        with self.lock:
            self.lock.wait(seconds)

    def poke(self) -> None:
        """Wake whoever waits for news (a group was formed)."""
        with self.lock:
            self.lock.notify_all()

    def check(self) -> None:
        """Raise the end of this rank, if the control thread has learnt of it."""
        if self.ended is not None:
            raise self.ended

    # --- rendezvous store (see store.py), from the threads that form groups -----------------------------

    def store_set(self, epoch: int, key: str, value: bytes) -> None:
        """Set a key of an epoch and wait for the answer."""
        encoded = base64.b64encode(value).decode()
        self._ask(epoch, 60.0, lambda number: wire.StoreSet(id=number, epoch=epoch, key=key, value=encoded))

    def store_get(self, epoch: int, keys: list[str], timeout_seconds: float) -> list[bytes]:
        """Wait until all keys of an epoch are set."""
        reply = self._ask(
            epoch,
            timeout_seconds,
            lambda number: wire.StoreGet(id=number, epoch=epoch, keys=keys, timeout_seconds=timeout_seconds),
        )
        return [base64.b64decode(value) for value in reply.values]

    def _ask(self, epoch: int, timeout: float, request: Callable[[int], wire.Message]) -> wire.StoreReply:
        number = next(self._ids)
        pending = _Pending(epoch)
        with self.lock:
            self._pending[number] = pending
            wanted = self.book.wanted(epoch)
            self._sticky[f"store {number}"] = message = request(number)
        try:
            if not wanted:
                raise StoreClosedError(f"Epoch {epoch} is over: its group is not formed any more.")
            self._transmit(message)
            if not pending.done.wait(timeout + STORE_SLACK_SECONDS):
                raise StoreClosedError(
                    f"The coordinator did not answer for the rendezvous of epoch {epoch} in {timeout:.0f} s."
                )
        finally:
            with self.lock:
                self._pending.pop(number, None)
                self._sticky.pop(f"store {number}", None)
        if pending.reply is None or pending.reply.error:
            raise StoreClosedError(pending.error or (pending.reply.error if pending.reply else "No answer."))
        return pending.reply

    # --- control thread ---------------------------------------------------------------------------------

    def _run(self) -> None:
        delay = FIRST_RETRY_SECONDS
        while not self._closing.is_set() and self.ended is None:
            accepted = False
            try:
                accepted = self._dial()
            except _NETWORK_ERRORS as error:
                self._last_problem = f"{type(error).__name__}: {error}"
            except ValueError as error:
                self._last_problem = f"the coordinator said something unknown: {error}"
                log.error("control channel: %s", self._last_problem)
            self._set_connected(False)
            if accepted:
                self._heard_at = time.monotonic()
            delay = FIRST_RETRY_SECONDS if accepted else min(LAST_RETRY_SECONDS, delay * 1.6)
            self._give_up_late(time.monotonic() - self._heard_at)
            self._closing.wait(delay)

    def _give_up_late(self, silent: float) -> None:
        """End the rank when the coordinator has been silent, for that many seconds, longer than it is waited for."""
        where = f"The coordinator at {self._endpoint.host}:{self._endpoint.port} was silent for {silent:.0f} s"
        if "leave" in self._sticky and silent > min(self._limit, LEAVE_LIMIT_SECONDS):
            self._end(
                left_alone(
                    f"{where} after this member was asked to go: it goes without its word ({self._last_problem})."
                )
            )
        elif silent > self._limit:
            self._end(
                coordinator_lost(
                    f"{where} ({self._last_problem}): this member gives up; the operator starts the run again from its "
                    "newest checkpoint."
                )
            )

    def _dial(self) -> bool:
        with connect(
            self._endpoint.url(wire.RANK_PATH),
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
            _limit_unacknowledged(socket.socket)
            self._socket = socket
            try:
                socket.send(wire.encode(self._hello()))
                return self._converse(socket)
            finally:
                self._socket = None

    def _converse(self, socket: ClientConnection) -> bool:
        accepted = False
        next_beat = time.monotonic() + wire.HEARTBEAT_SECONDS
        while not self._closing.is_set() and self.ended is None:
            try:
                text = socket.recv(timeout=max(0.0, next_beat - time.monotonic()))
            except TimeoutError:
                text = None
            except _NETWORK_ERRORS as error:
                self._last_problem = f"{type(error).__name__}: {error}"
                return accepted
            if text is not None:
                message = wire.TO_MEMBER.validate_json(text)
                if isinstance(message, wire.Accept):
                    if message.generation < self.generation:
                        self._last_problem = f"a coordinator of the old generation {message.generation} answered"
                        return accepted
                    accepted = True
                    self._accepted(socket, message.generation)
                elif isinstance(message, wire.Refuse):
                    self._refused(message)
                    return accepted
                else:
                    self._receive(message)
            if time.monotonic() >= next_beat:
                next_beat = time.monotonic() + wire.HEARTBEAT_SECONDS
                socket.send(wire.encode(self.pulse.message()))
        return accepted

    def _accepted(self, socket: ClientConnection, generation: int) -> None:
        with self.lock:
            self.generation = generation
            self.connected = True
            repeated = list(self._sticky.values())
            self.lock.notify_all()
        for message in repeated:
            socket.send(wire.encode(message))

    def _refused(self, message: wire.Refuse) -> None:
        self._last_problem = f"refused: {message.message}"
        if message.reason is Refusal.FENCED:
            self._end(fenced(message.message))
        elif message.permanent:
            cause = Cause.APP if message.reason in _USER_REFUSALS else Cause.INFRASTRUCTURE
            self._end(RunEndedError(PodExit.REFUSED, message.reason, message.message, cause, permanent=True))
        else:
            log.warning("the coordinator refused this rank for now: %s", message.message)

    def _receive(self, message: wire.Message) -> None:
        news: wire.Epoch | None = None
        with self.lock:
            if isinstance(message, wire.StoreReply):
                pending = self._pending.get(message.id)
                if pending is not None:
                    pending.reply = message
                    pending.done.set()
                return
            if isinstance(message, wire.Epoch):
                if message.generation < self.generation:
                    return
                self.generation = message.generation
                if self.book.hear(message):
                    news = message
            elif isinstance(message, wire.EpochCancelled):
                self.book.cancel(message.epoch)
            elif isinstance(message, wire.Settled):
                self.settled = max(self.settled, message.window)
            elif isinstance(message, wire.Stop):
                self.stop = message
            elif isinstance(message, wire.Save):
                self.save_wanted = True
            elif isinstance(message, wire.Done):
                self.done = message
            self._fail_stale_requests()
            self.lock.notify_all()
        if news is not None:
            self._on_epoch(news)

    def _fail_stale_requests(self) -> None:
        for pending in self._pending.values():
            if not self.book.wanted(pending.epoch):
                pending.error = f"Epoch {pending.epoch} was cancelled or superseded while its group was formed."
                pending.done.set()

    def _transmit(self, message: wire.Message) -> None:
        socket = self._socket
        if socket is None or not self.connected:
            return
        # A message lost here is repeated on the next dial if it is sticky; all others are only for people.
        with contextlib.suppress(*_NETWORK_ERRORS):
            socket.send(wire.encode(message))

    def _set_connected(self, connected: bool) -> None:
        with self.lock:
            self.connected = connected
            self.lock.notify_all()

    def _end(self, error: RunEndedError) -> None:
        with self.lock:
            if self.ended is None:
                self.ended = error
            self.lock.notify_all()


_USER_REFUSALS = frozenset({Refusal.MODEL_MISMATCH, Refusal.DATASET_MISMATCH, Refusal.NO_CHECKPOINT})


def _limit_unacknowledged(line: sockets.socket) -> None:
    """Let the kernel end a connection that leads nowhere, where it can (Linux)."""
    option = getattr(sockets, "TCP_USER_TIMEOUT", None)
    if option is not None:
        line.setsockopt(sockets.IPPROTO_TCP, option, int(UNACKNOWLEDGED_SECONDS * 1000))
