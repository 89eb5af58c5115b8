"""Whether a NetworkPolicy is in force: real ports on loopback, one that answers and one that should not."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator

import pytest

from fdl_operator.policies import AGAIN_SECONDS, SETTLE_SECONDS, SETTLE_TRIES, Door, Policies, enforced, is_open

HERE = "127.0.0.1"


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[int]:
    """A port that takes connections and hangs up."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), HERE, 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def refused() -> int:
    """A port on which nobody listens, as a firewall that rejects looks."""
    with socket.socket() as taken:
        taken.bind((HERE, 0))
        return int(taken.getsockname()[1])


@contextlib.contextmanager
def dropping() -> Iterator[int]:
    """A port whose queue is full, so that the kernel drops what comes, as a firewall that drops looks."""
    with contextlib.ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind((HERE, 0))
        full.listen(0)
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                waiting.connect(full.getsockname())
        yield full.getsockname()[1]


def door(closed: int, answering: int, node: str = "n1") -> Door:
    return Door("uid", node, HERE, closed, answering)


def test_ports_that_answer_refuse_and_drop() -> None:
    async def check() -> tuple[bool, bool, bool]:
        async with listening() as port:
            with dropping() as full:
                return await is_open(HERE, port), await is_open(HERE, refused()), await is_open(HERE, full, 0.5)

    assert asyncio.run(check()) == (True, False, False)


def test_only_a_pod_that_answers_on_the_other_port_proves_something() -> None:
    async def check() -> tuple[bool | None, bool | None, bool | None]:
        async with listening() as answering, listening() as through:
            return (
                await enforced(door(refused(), answering)),
                await enforced(door(through, answering)),
                await enforced(door(refused(), refused())),
            )

    assert asyncio.run(check()) == (True, False, None)


class Waits:
    """Time that passes at once: what was slept, and the end of the test after so many sleeps."""

    def __init__(self, most: int) -> None:
        self.slept: list[float] = []
        self._most = most
        self.done = asyncio.Event()

    async def __call__(self, seconds: float) -> None:
        self.slept.append(seconds)
        if len(self.slept) >= self._most:
            self.done.set()
            await asyncio.Event().wait()


async def tried(door_: Door, sleeps: int) -> tuple[list[tuple[str, bool]], list[float]]:
    told: list[tuple[str, bool]] = []
    waits = Waits(sleeps)
    policies = Policies(lambda node, closed: told.append((node, closed)), waits)
    policies.ensure(door_)
    policies.ensure(door_)
    await asyncio.wait_for(waits.done.wait(), 30)
    await policies.stop()
    return told, waits.slept


def test_a_closed_port_is_told_at_once_and_tried_again_much_later() -> None:
    async def check() -> tuple[list[tuple[str, bool]], list[float]]:
        async with listening() as answering:
            return await tried(door(refused(), answering), 2)

    assert asyncio.run(check()) == ([("n1", True)] * 2, [AGAIN_SECONDS] * 2)


def test_an_open_port_is_believed_only_after_the_plugin_has_had_its_time() -> None:
    async def check() -> tuple[list[tuple[str, bool]], list[float]]:
        async with listening() as answering, listening() as through:
            return await tried(door(through, answering), SETTLE_TRIES + 1)

    assert asyncio.run(check()) == ([("n1", False)], [SETTLE_SECONDS] * SETTLE_TRIES + [AGAIN_SECONDS])


def test_a_pod_that_does_not_answer_at_all_tells_nothing() -> None:
    async def check() -> tuple[list[tuple[str, bool]], list[float]]:
        return await tried(door(refused(), refused()), 3)

    assert asyncio.run(check()) == ([], [SETTLE_SECONDS] * 3)


@pytest.mark.parametrize("again", [True, False])
def test_a_run_that_ends_is_not_tried_any_more(again: bool) -> None:
    async def check() -> int:
        policies = Policies(lambda _, __: None, Waits(1))
        policies.ensure(door(refused(), refused()))
        policies.close("uid")
        if again:
            policies.ensure(door(refused(), refused(), "n2"))
        await asyncio.sleep(0)
        left = len([task for task in asyncio.all_tasks() if task.get_name() == "policy-uid"])
        await policies.stop()
        return left

    assert asyncio.run(check()) == int(again)
