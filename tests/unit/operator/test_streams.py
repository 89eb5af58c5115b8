"""The stream to a coordinator, against a real TLS WebSocket server with a run's own keys."""

import asyncio
import datetime
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from fdl_api.reasons import Refusal
from fdl_api.wire import FROM_OPERATOR, Accept, Hint, OperatorHello, Outcome, Refuse, State, encode
from fdl_operator.build.pki import KeyMaterial, new_keys
from fdl_operator.model import StreamView
from fdl_operator.streams import Streams, Target

RUN = "run-uid"
HOST = "run-coordinator.ns.svc"


class Coordinator:
    """What a coordinator does on the operator's path."""

    def __init__(self) -> None:
        self.hellos: list[tuple[OperatorHello, str]] = []
        self.hints: list[Hint] = []
        self.peers: list[ServerConnection] = []
        self.refuse = False

    async def handle(self, peer: ServerConnection) -> None:
        assert peer.request is not None and peer.request.path == "/v1/operator"
        hello = FROM_OPERATOR.validate_json(await peer.recv())
        self.hellos.append((hello, peer.request.headers["Authorization"]))
        if self.refuse:
            await peer.send(encode(Refuse(reason=Refusal.RUN_IDENTITY_MISMATCH, message="another run", permanent=True)))
            return
        self.peers.append(peer)
        await peer.send(encode(Accept(generation=1)))
        async for text in peer:
            self.hints.append(FROM_OPERATOR.validate_json(text))

    async def say(self, **fields: Any) -> None:
        base = {"generation": 1, "run_uid": RUN, "attempt": 1, "outcome": Outcome.TRAINING, "epoch": 1, "window": 1}
        await self.peers[-1].send(encode(State(**(base | fields))))


class Memory:
    def __init__(self) -> None:
        self.view = StreamView()
        self.wakes = 0

    def get(self, uid: str) -> StreamView:
        assert uid == RUN
        return self.view

    def put(self, uid: str, view: StreamView, wake: bool) -> None:
        self.view = view
        self.wakes += wake


@pytest.fixture(scope="module")
def keys() -> KeyMaterial:
    return new_keys("run", "ns", datetime.datetime.now(datetime.UTC))


@asynccontextmanager
async def serving(coordinator: Coordinator, keys: KeyMaterial, folder: Path, port: int = 0) -> AsyncIterator[int]:
    (folder / "crt").write_text(keys.certificate)
    (folder / "key").write_text(keys.key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "crt", folder / "key")
    async with serve(coordinator.handle, "127.0.0.1", port, ssl=context) as server:
        yield next(iter(server.sockets)).getsockname()[1]


def target(keys: KeyMaterial, port: int, **more: Any) -> Target:
    base = {"run_uid": RUN, "address": "127.0.0.1", "host": HOST, "token": keys.token, "ca": keys.ca, "generation": 1}
    return Target(**(base | {"port": port} | more))


async def until(truth: Any, why: str) -> None:
    async with asyncio.timeout(10):
        while not truth():  # noqa: ASYNC110 - polls from outside
            await asyncio.sleep(0.005)


HINT = Hint(wanted_members=2, expected=["a"])


async def test_it_says_who_it_is_and_hears_the_state(keys: KeyMaterial, tmp_path: Path) -> None:
    coordinator, memory = Coordinator(), Memory()
    streams = Streams(memory.get, memory.put)
    async with serving(coordinator, keys, tmp_path) as port:
        streams.ensure(target(keys, port))
        await until(lambda: memory.view.connected, "no Accept")
        await coordinator.say(window=7)
        await until(lambda: memory.view.state is not None, "no State")
        await streams.stop()
    assert coordinator.hellos[0][0].run_uid == RUN and coordinator.hellos[0][1] == f"Bearer {keys.token}"
    assert memory.view.state is not None and memory.view.state.window == 7 and memory.wakes == 2


async def test_a_hint_goes_out_at_once_and_again_after_a_reconnect(keys: KeyMaterial, tmp_path: Path) -> None:
    coordinator, memory = Coordinator(), Memory()
    streams = Streams(memory.get, memory.put)
    async with serving(coordinator, keys, tmp_path) as port:
        streams.ensure(target(keys, port))
        streams.hint(RUN, HINT)
        await until(lambda: coordinator.hints == [HINT], "no hint")
        later = HINT.model_copy(update={"gone": ["a"]})
        streams.hint(RUN, later)
        await until(lambda: coordinator.hints == [HINT, later], "no second hint")
        await coordinator.peers[-1].close()
        await until(lambda: coordinator.hints == [HINT, later, later], "not told again")
        await streams.stop()
    assert memory.view.sent == later


async def test_a_broken_stream_is_noticed_and_dialled_again(keys: KeyMaterial, tmp_path: Path) -> None:
    coordinator, memory = Coordinator(), Memory()
    streams = Streams(memory.get, memory.put)
    async with serving(coordinator, keys, tmp_path) as port:
        streams.ensure(target(keys, port))
        await until(lambda: memory.view.connected, "no Accept")
    await until(lambda: not memory.view.connected, "the end was not noticed")
    async with serving(coordinator, keys, tmp_path, port):
        await until(lambda: memory.view.connected, "not dialled again")
        await streams.stop()


async def test_a_new_coordinator_is_dialled_in_place_of_the_old(keys: KeyMaterial, tmp_path: Path) -> None:
    old, new, memory = Coordinator(), Coordinator(), Memory()
    streams = Streams(memory.get, memory.put)
    async with serving(old, keys, tmp_path) as first, serving(new, keys, tmp_path) as second:
        streams.ensure(target(keys, first))
        await until(lambda: old.hellos, "the old one was not dialled")
        streams.ensure(target(keys, second, generation=2))
        streams.ensure(target(keys, second, generation=2))
        await until(lambda: new.hellos and memory.view.connected, "the new one was not dialled")
        await streams.stop()
    assert len(new.hellos) == 1


@pytest.mark.parametrize("trouble", ["other CA", "other name"])
async def test_a_server_that_is_not_this_runs_coordinator_hears_nothing(
    keys: KeyMaterial, tmp_path: Path, trouble: str
) -> None:
    coordinator, memory = Coordinator(), Memory()
    streams = Streams(memory.get, memory.put)
    wrong: dict[str, Any] = {"host": "other-coordinator.ns.svc"}
    if trouble == "other CA":
        wrong = {"ca": new_keys("run", "ns", datetime.datetime.now(datetime.UTC)).ca}
    async with serving(coordinator, keys, tmp_path) as port:
        streams.ensure(target(keys, port, **wrong))
        await until(lambda: memory.view.error, "no error")
        await streams.stop()
    assert not coordinator.hellos and not memory.view.connected and "certificate" in memory.view.error.lower()


async def test_a_refusal_is_kept_as_the_error(keys: KeyMaterial, tmp_path: Path) -> None:
    coordinator, memory = Coordinator(), Memory()
    coordinator.refuse = True
    streams = Streams(memory.get, memory.put)
    async with serving(coordinator, keys, tmp_path) as port:
        streams.ensure(target(keys, port))
        await until(lambda: "another run" in memory.view.error, "no error")
        await streams.stop()
    assert not memory.view.connected


async def test_when_a_member_was_first_called_dead_is_remembered(keys: KeyMaterial, tmp_path: Path) -> None:
    coordinator, memory = Coordinator(), Memory()
    now = [100.0]
    streams = Streams(memory.get, memory.put, lambda: now[0])
    dead = {"uid": "u", "member": "m", "cohort": "a", "ordinal": 0, "incarnation": 1, "state": "dead"}
    async with serving(coordinator, keys, tmp_path) as port:
        streams.ensure(target(keys, port))
        await until(lambda: memory.view.connected, "no Accept")
        await coordinator.say(members=[dead])
        await until(lambda: memory.view.dead_since, "not heard")
        now[0] = 200.0
        await coordinator.say(members=[dead], window=2)
        await until(lambda: memory.view.state is not None and memory.view.state.window == 2, "not heard")
        await streams.stop()
    assert memory.view.dead_since == {"u": 100.0}
