"""The port that a run's NetworkPolicy closes."""

import asyncio
import socket

from fdl_coordinator import closed

HERE = "127.0.0.1"


def test_whoever_gets_through_is_hung_up_on() -> None:
    async def check() -> bytes:
        port = await closed.listen(HERE, 0)
        reader, writer = await asyncio.open_connection(HERE, port)
        said = await asyncio.wait_for(reader.read(), 10)
        writer.close()
        return said

    assert asyncio.run(check()) == b""


def test_a_port_that_is_taken_only_leaves_the_policy_untried() -> None:
    with socket.socket() as taken:
        taken.bind((HERE, 0))
        taken.listen()
        assert asyncio.run(closed.listen(HERE, taken.getsockname()[1])) == 0
