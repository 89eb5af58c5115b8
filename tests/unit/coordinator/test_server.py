"""The server over real sockets on loopback: who gets in, and that messages arrive."""

import asyncio
import json
import logging
import ssl
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus

from fdl_api import wire
from fdl_api.spec_policy import JoinSpec
from fdl_api.telling import TELL_SECONDS
from fdl_api.version import WIRE_VERSION
from fdl_coordinator.engine import Engine
from fdl_coordinator.report import snapshot
from fdl_coordinator.server import Coordinator

from .cohort import Cohort, agent_hello, rank_hello, run_config

TOKEN = "0123456789abcdef"


def certificate(folder: Path) -> tuple[Path, Path]:
    """A self-signed P-256 certificate for localhost."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(minutes=1)).not_valid_after(now + timedelta(hours=1))
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    signed = builder.sign(key, hashes.SHA256())
    cert_file, key_file = folder / "tls.crt", folder / "tls.key"
    cert_file.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return cert_file, key_file


class Served:
    """A running coordinator and a way to dial it."""

    def __init__(self, coordinator: Coordinator, port: int, ca: Path) -> None:
        self.coordinator = coordinator
        self.port = port
        self.context = ssl.create_default_context(cafile=str(ca))

    def dial(self, path: str, token: str = TOKEN) -> connect:
        return connect(
            f"wss://localhost:{self.port}{path}",
            ssl=self.context,
            additional_headers={"Authorization": f"Bearer {token}"},
        )


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Served]:
    cert_file, key_file = certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert_file, key_file)
    coordinator = Coordinator(Engine(run_config(), generation=1), TOKEN)
    ready = asyncio.Event()
    task = asyncio.create_task(coordinator.run("127.0.0.1", 0, context, ready))
    await asyncio.wait_for(ready.wait(), 10)
    port = coordinator.server.sockets[0].getsockname()[1]
    yield Served(coordinator, port, cert_file)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def receive(socket: ClientConnection, kind: type[wire.Message]) -> wire.Message:
    """The next message of a kind."""
    while True:
        message = wire.TO_MEMBER.validate_json(await asyncio.wait_for(socket.recv(), 10))
        if isinstance(message, kind):
            return message


async def test_a_wrong_token_is_refused_before_anything_is_read(served: Served) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with served.dial(wire.AGENT_PATH, token="guess"):
            pass
    assert refused.value.response.status_code == 401
    assert "run token" in refused.value.response.body.decode()


async def test_three_members_meet_over_tls_and_share_a_store(served: Served) -> None:
    async with asyncio.timeout(20):
        agents, ranks = [], []
        for ordinal in range(3):
            agent = await served.dial(wire.AGENT_PATH)
            await agent.send(wire.encode(agent_hello(ordinal)))
            await receive(agent, wire.Accept)
            rank = await served.dial(wire.RANK_PATH)
            await rank.send(wire.encode(rank_hello(agent_hello(ordinal))))
            agents.append(agent)
            ranks.append(rank)
        epochs = [await receive(rank, wire.Epoch) for rank in ranks]
        assert {epoch.epoch for epoch in epochs if isinstance(epoch, wire.Epoch)} == {1}
        await ranks[0].send(wire.encode(wire.StoreGet(id=1, epoch=1, keys=["k"], timeout_seconds=5)))
        await ranks[1].send(wire.encode(wire.StoreSet(id=1, epoch=1, key="k", value="dg==")))
        reply = await receive(ranks[0], wire.StoreReply)
        assert isinstance(reply, wire.StoreReply) and reply.values == ["dg=="]
        await ranks[2].close()
        death = await receive(ranks[0], wire.Epoch)
        assert isinstance(death, wire.Epoch) and death.cause is wire.EpochCause.DEATH
        for socket in [*agents, *ranks]:
            await socket.close()


async def test_a_second_connection_of_a_rank_replaces_the_first_without_a_death(served: Served) -> None:
    async with asyncio.timeout(20):
        agent = await served.dial(wire.AGENT_PATH)
        await agent.send(wire.encode(agent_hello(0)))
        await receive(agent, wire.Accept)
        first = await served.dial(wire.RANK_PATH)
        await first.send(wire.encode(rank_hello(agent_hello(0))))
        await receive(first, wire.Accept)
        second = await served.dial(wire.RANK_PATH)
        await second.send(wire.encode(rank_hello(agent_hello(0))))
        await receive(second, wire.Accept)
        await first.wait_closed()
        rank = served.coordinator.engine.seats.rank("m0.1/0")
        assert rank is not None and rank.connected
        await second.close()
        await agent.close()


async def test_nonsense_is_answered_with_a_sentence_and_hurts_nobody(served: Served) -> None:
    async with asyncio.timeout(20):
        socket = await served.dial(wire.RANK_PATH)
        await socket.send("{]")
        refusal = await receive(socket, wire.Refuse)
        assert isinstance(refusal, wire.Refuse) and "was not understood" in refusal.message
        agent = await served.dial(wire.AGENT_PATH)
        await agent.send(wire.encode(agent_hello(0)))
        await receive(agent, wire.Accept)
        await agent.close()


async def test_the_operator_hears_the_state_and_its_hints_are_heard(served: Served) -> None:
    async with asyncio.timeout(20):
        operator = await served.dial(wire.OPERATOR_PATH)
        await operator.send(wire.encode(wire.OperatorHello(wire_version=WIRE_VERSION, run_uid="run-1")))
        accept = wire.TO_OPERATOR.validate_json(await operator.recv())
        state = wire.TO_OPERATOR.validate_json(await operator.recv())
        assert isinstance(accept, wire.Accept) and isinstance(state, wire.State)
        assert state.outcome is wire.Outcome.WAITING
        await operator.send(wire.encode(wire.Hint(wanted_members=3, suspend=True)))
        while state.outcome is not wire.Outcome.SUSPENDED:
            state = wire.TO_OPERATOR.validate_json(await operator.recv())
        await operator.close()


async def test_an_operator_of_a_newer_release_is_heard(served: Served) -> None:
    async with asyncio.timeout(20):
        operator = await served.dial(wire.OPERATOR_PATH)
        await operator.send(wire.encode(wire.OperatorHello(wire_version=WIRE_VERSION, run_uid="run-1")))
        hint = json.loads(wire.encode(wire.Hint(wanted_members=3, suspend=True))) | {"fieldOfTomorrow": {"a": 1}}
        await operator.send(json.dumps(hint))
        outcome = None
        while outcome is not wire.Outcome.SUSPENDED:
            told = wire.TO_OPERATOR.validate_json(await operator.recv())
            assert not isinstance(told, wire.Refuse), told.message
            outcome = getattr(told, "outcome", None)
        await operator.close()


async def test_health_needs_no_token_and_the_state_does(served: Served) -> None:
    async def fetch(path: str, header: str) -> str:
        reader, writer = await asyncio.open_connection("localhost", served.port, ssl=served.context)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{header}Connection: close\r\n\r\n".encode())
        text = (await asyncio.wait_for(reader.read(), 10)).decode()
        writer.close()
        return text

    assert " 200 " in (await fetch(wire.HEALTH_PATH, "")).splitlines()[0]
    assert " 401 " in (await fetch(wire.STATE_PATH, "")).splitlines()[0]
    text = await fetch(wire.STATE_PATH, f"Authorization: Bearer {TOKEN}\r\n")
    assert json.loads(text.split("\r\n\r\n", 1)[1])["runUid"] == "run-1"


@pytest.mark.parametrize("members", [1, 3])
def test_the_log_says_how_far_a_run_of_any_number_of_members_is(members: int, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="fdl.coordinator")
    join = JoinSpec(min_members=1, target_members=members)
    cohort = Cohort(run_config(join=join))
    server = Coordinator(cohort.engine, TOKEN, clock=lambda: cohort.now)
    server._say_progress()
    for ordinal in range(members):
        cohort.dial(ordinal)
    for _ in range(3):
        cohort.window()
        server._say_progress()
        cohort.pass_time(TELL_SECONDS)
        server._say_progress()
    told = [record.getMessage() for record in caplog.records if " samples trained (" in record.getMessage()]
    assert [line.split(":")[0] for line in told] == ["window 1", "window 2", "window 3"]
    assert f", {members} rank" in told[-1] and " samples/s" in told[-1]
    assert snapshot(cohort.engine).samples > 0
