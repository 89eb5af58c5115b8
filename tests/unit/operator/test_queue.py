"""The work queue: one entry a key, one worker a key, retries."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from fdl_operator.queue import WorkQueue


@asynccontextmanager
async def working(work: Callable[[str], Awaitable[None]], **more: float) -> AsyncIterator[WorkQueue[str]]:
    queue: WorkQueue[str] = WorkQueue(work, workers=4, retry_base=0.001, jitter=lambda: 0.0, **more)
    queue.start()
    try:
        yield queue
    finally:
        await queue.stop()


async def until(truth: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not truth():  # noqa: ASYNC110 - polls from outside
            await asyncio.sleep(0.001)


async def test_a_key_added_many_times_is_worked_on_once() -> None:
    done: list[str] = []

    async def work(key: str) -> None:
        done.append(key)

    queue: WorkQueue[str] = WorkQueue(work, workers=2)
    for _ in range(10):
        queue.add("a")
    assert len(queue) == 1
    queue.start()
    await until(lambda: queue.idle)
    await queue.stop()
    assert done == ["a"]


async def test_a_key_is_never_in_two_workers_and_news_meanwhile_bring_one_more_pass() -> None:
    active, most, passes = 0, 0, 0
    gate = asyncio.Event()

    async def work(key: str) -> None:
        nonlocal active, most, passes
        active += 1
        most = max(most, active)
        passes += 1
        await gate.wait()
        active -= 1

    async with working(work) as queue:
        queue.add("a")
        await until(lambda: active == 1)
        for _ in range(5):
            queue.add("a")
        await asyncio.sleep(0.01)
        gate.set()
        await until(lambda: queue.idle)
    assert (most, passes) == (1, 2)


async def test_different_keys_run_side_by_side() -> None:
    active, most = 0, 0
    gate = asyncio.Event()

    async def work(key: str) -> None:
        nonlocal active, most
        active += 1
        most = max(most, active)
        await gate.wait()
        active -= 1

    async with working(work) as queue:
        for key in "abcdef":
            queue.add(key)
        await until(lambda: active == 4)
        gate.set()
        await until(lambda: queue.idle)
    assert most == 4


async def test_work_that_fails_is_tried_again_until_it_works() -> None:
    tries: list[str] = []

    async def work(key: str) -> None:
        tries.append(key)
        if len(tries) < 4:
            raise RuntimeError("not yet")

    async with working(work) as queue:
        queue.add("a")
        await until(lambda: len(tries) == 4)
        await asyncio.sleep(0.05)
    assert len(tries) == 4


async def test_one_keys_trouble_does_not_hold_up_another() -> None:
    done: list[str] = []

    async def work(key: str) -> None:
        if key == "bad":
            raise RuntimeError("never")
        done.append(key)

    async with working(work) as queue:
        queue.add("bad")
        queue.add("good")
        await until(lambda: done == ["good"])


async def test_of_two_dates_the_earlier_one_counts() -> None:
    done: list[float] = []
    loop = asyncio.get_running_loop()

    async def work(key: str) -> None:
        done.append(loop.time())

    async with working(work) as queue:
        start = loop.time()
        queue.add_after("a", 0.02)
        queue.add_after("a", 60)
        await until(lambda: len(done) == 1)
        assert done[0] >= start + 0.02
        queue.add_after("a", 60)
        queue.add("a")
        await until(lambda: len(done) == 2)
        await asyncio.sleep(0.01)
    assert len(done) == 2
