"""The coordinator's TLS WebSocket server. It moves messages and decides nothing.

One asyncio loop; the engine's methods are called from it and never block. Each connection has an outbox of
its own, so that a peer that does not read delays nobody else.
"""

import asyncio
import hmac
import logging
import ssl
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

from pydantic import TypeAdapter, ValidationError
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request, Response

from fdl_api import wire
from fdl_api.reasons import Refusal
from fdl_api.telling import Teller
from fdl_api.version import WIRE_VERSION
from fdl_coordinator import gate
from fdl_coordinator.engine import Engine
from fdl_coordinator.report import reached, snapshot
from fdl_coordinator.runstate import Send

log = logging.getLogger("fdl.coordinator")

STATE_SECONDS = 1.0
"""Least time between two snapshots to the operator, unless the outcome changed."""
HELLO_SECONDS = 10.0
"""Time that a dialler has to say Hello; a silent one blocks nobody."""


@dataclass(eq=False)
class Peer:
    """One connection and what waits to be sent on it."""

    socket: ServerConnection
    outbox: asyncio.Queue[str | None] = field(default_factory=asyncio.Queue)

    def send(self, message: wire.Message) -> None:
        """Queue a message."""
        self.outbox.put_nowait(wire.encode(message))

    def close(self) -> None:
        """Close once everything queued is out."""
        self.outbox.put_nowait(None)

    async def pump(self) -> None:
        """Send the queued messages until told to close."""
        try:
            while (text := await self.outbox.get()) is not None:
                await self.socket.send(text)
            await self.socket.close()
        except ConnectionClosed:
            return


class Coordinator:
    """Connections of one run, and the clock."""

    def __init__(self, engine: Engine, token: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.engine = engine
        self.token = token
        self.clock = clock
        self.peers: dict[str, Peer] = {}
        self.operators: set[Peer] = set()
        self.told_state = ""
        self.told_notes: list[str] = []
        self.told_outcome = ""
        self.told_at = 0.0
        self.closed_port = 0
        self.teller = Teller()

    async def run(self, host: str, port: int, context: ssl.SSLContext | None, ready: asyncio.Event) -> None:
        """Serve until cancelled.

        Args:
            host: address to listen on.
            port: port, 0 for any free one.
            context: TLS context; ``None`` only in tests on loopback.
            ready: set when the port is open.
        """
        async with serve(
            self._serve_peer,
            host,
            port,
            ssl=context,
            process_request=self._request,
            ping_interval=None,
            max_size=wire.MAX_FRAME_BYTES,
            compression=None,
        ) as server:
            self.server: Server = server
            ready.set()
            while True:
                await asyncio.sleep(wire.CLOCK_TICK_SECONDS)
                self._deliver(self.engine.tick(self.clock()))
                self._tell_operators()
                self._say_progress()

    # --- HTTP -------------------------------------------------------------------------------------------

    def _request(self, connection: ServerConnection, request: Request) -> Response | None:
        path = request.path.split("?")[0]
        if path == wire.HEALTH_PATH:
            return connection.respond(HTTPStatus.OK, "ok\n")
        given = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            return connection.respond(
                HTTPStatus.UNAUTHORIZED, "The run token is missing or wrong: it is in the run's Secret, key token.\n"
            )
        if path == wire.STATE_PATH:
            response = connection.respond(HTTPStatus.OK, wire.encode(snapshot(self.engine)) + "\n")
            del response.headers["Content-Type"]
            response.headers["Content-Type"] = "application/json"
            return response
        if path not in (wire.AGENT_PATH, wire.RANK_PATH, wire.OPERATOR_PATH):
            return connection.respond(HTTPStatus.NOT_FOUND, f"There is nothing at {path}.\n")
        return None

    # --- connections ------------------------------------------------------------------------------------

    async def _serve_peer(self, socket: ServerConnection) -> None:
        peer = Peer(socket)
        pump = asyncio.create_task(peer.pump())
        path = socket.request.path.split("?")[0] if socket.request is not None else ""
        try:
            if path == wire.AGENT_PATH:
                await self._agent(peer)
            elif path == wire.RANK_PATH:
                await self._rank(peer)
            else:
                await self._operator(peer)
        except ConnectionClosed:
            pass
        except (ValidationError, ValueError, TimeoutError) as error:
            log.warning("closing a connection on %s: %s", path, str(error).splitlines()[0] if str(error) else error)
            peer.send(gate.refuse(Refusal.BAD_REQUEST, f"The message on {path} was not understood: {str(error)[:500]}"))
        finally:
            peer.close()
            await asyncio.wait([pump], timeout=5)
            pump.cancel()

    async def _hello(self, peer: Peer, adapter: TypeAdapter[Any], kind: type[wire.Message]) -> Any:
        text = await asyncio.wait_for(peer.socket.recv(), HELLO_SECONDS)
        message = adapter.validate_json(text)
        if not isinstance(message, kind):
            raise ValueError(f"the first message was {message.type}, expected {kind.__name__}")
        return message

    async def _agent(self, peer: Peer) -> None:
        hello: wire.AgentHello = await self._hello(peer, wire.FROM_AGENT, wire.AgentHello)
        uid = hello.member_uid
        if not self._admitted(self.engine.agent_hello(hello, self.clock()), uid, peer):
            return
        try:
            async for text in peer.socket:
                message = wire.FROM_AGENT.validate_json(text)
                now = self.clock()
                if isinstance(message, wire.RankExited):
                    self._deliver(self.engine.rank_exited(message, now))
                elif isinstance(message, wire.Leave):
                    self._deliver(self.engine.leave(uid, message, now))
        finally:
            if self.peers.get(uid) is peer:
                del self.peers[uid]
                self._deliver(self.engine.agent_lost(uid, self.clock()))

    async def _rank(self, peer: Peer) -> None:
        hello: wire.RankHello = await self._hello(peer, wire.FROM_RANK, wire.RankHello)
        uid = wire.rank_uid(hello.member_uid, hello.local_rank)
        if not self._admitted(self.engine.rank_hello(hello, self.clock()), uid, peer):
            return
        try:
            async for text in peer.socket:
                self._from_rank(uid, wire.FROM_RANK.validate_json(text))
        finally:
            if self.peers.get(uid) is peer:
                del self.peers[uid]
                self._deliver(self.engine.rank_lost(uid, self.clock()))

    def _from_rank(self, uid: str, message: Any) -> None:
        if isinstance(message, wire.EpochFailed | wire.ReduceFailed):
            log.info("%s says that epoch %d failed: %s", uid, message.epoch, message.message)
        now = self.clock()
        engine = self.engine
        handlers: dict[type[wire.Message], Callable[[], Iterable[Send]]] = {
            wire.Heartbeat: lambda: engine.heartbeat(uid, message, now),
            wire.WindowCommitted: lambda: engine.committed(uid, message, now),
            wire.ReduceFailed: lambda: engine.reduce_failed(uid, message, now),
            wire.EpochFormed: lambda: engine.formed(uid, message, now),
            wire.EpochFailed: lambda: engine.forming_failed(uid, message, now),
            wire.PairsTested: lambda: engine.pairs_tested(uid, message, now),
            wire.Leave: lambda: engine.leave(wire.member_of(uid), message, now),
            wire.CheckpointSaved: lambda: engine.saved(uid, message, now),
            wire.CheckpointFailed: lambda: engine.save_failed(uid, message, now),
            wire.Evaluated: lambda: engine.evaluated(uid, message, now),
            wire.Finished: lambda: engine.finished(uid, message, now),
            wire.StoreSet: lambda: engine.store_set(uid, message),
            wire.StoreGet: lambda: engine.store_get(uid, message, now),
        }
        self._deliver(handlers[type(message)]())

    def _admitted(self, sends: list[Send], uid: str, peer: Peer) -> bool:
        """Deliver what a Hello brought about; the dialler itself becomes reachable unless it was refused.

        A second connection of the same rank takes the place of the first, whose end then means nothing.
        """
        mine = [message for to, message in sends if to == uid]
        refused = next((message for message in mine if isinstance(message, wire.Refuse)), None)
        if refused is not None:
            self.engine.progress.stale_messages += refused.reason in (Refusal.STALE_ATTEMPT, Refusal.FENCED)
            log.info("refused %s: %s", uid, refused.message)
            peer.send(refused)
            self._deliver([send for send in sends if send[0] != uid])
            return False
        previous = self.peers.pop(uid, None)
        if previous is not None:
            previous.close()
        self.peers[uid] = peer
        self._deliver(sends)
        return True

    def _deliver(self, sends: Iterable[Send]) -> None:
        for uid, message in sends:
            peer = self.peers.get(uid)
            if isinstance(message, wire.Epoch):
                log.info("to %s: epoch %d (%s, %d members)", uid, message.epoch, message.cause, len(message.members))
            if peer is None:
                continue
            peer.send(message)
            if isinstance(message, wire.Refuse):
                peer.close()

    # --- the operator -----------------------------------------------------------------------------------

    async def _operator(self, peer: Peer) -> None:
        hello: wire.OperatorHello = await self._hello(peer, wire.FROM_OPERATOR, wire.OperatorHello)
        if hello.wire_version != WIRE_VERSION or hello.run_uid != self.engine.config.run_uid:
            peer.send(
                gate.refuse(
                    Refusal.RUN_IDENTITY_MISMATCH,
                    f"The operator asks for run {hello.run_uid} in wire version {hello.wire_version}; this is the "
                    f"coordinator of {self.engine.config.run_uid} in version {WIRE_VERSION}.",
                )
            )
            return
        peer.send(wire.Accept(generation=self.engine.generation, closed_port=self.closed_port))
        peer.send(snapshot(self.engine))
        self.operators.add(peer)
        try:
            async for text in peer.socket:
                message = wire.FROM_OPERATOR.validate_json(text)
                if isinstance(message, wire.Hint):
                    self._deliver(self.engine.hinted(message, self.clock()))
        finally:
            self.operators.discard(peer)

    def _tell_operators(self) -> None:
        now = self.clock()
        urgent = self.engine.outcome != self.told_outcome
        if not self.operators or (now - self.told_at < STATE_SECONDS and not urgent):
            return
        state = snapshot(self.engine)
        for note in state.notes:
            if note not in self.told_notes:
                log.warning("%s", note)
        self.told_notes = state.notes
        text = wire.encode(state)
        if text == self.told_state:
            return
        self.told_state, self.told_outcome, self.told_at = text, state.outcome, now
        for peer in self.operators:
            peer.send(state)

    def _say_progress(self) -> None:
        """Say in the log how far the run is, however many ranks train."""
        where = reached(self.engine)
        if where is not None and (line := self.teller.line(where, self.clock())):
            log.info("%s", line)
