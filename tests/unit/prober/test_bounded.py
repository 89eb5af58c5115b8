"""Looks with a time limit: one that hangs costs itself."""

import threading

import pytest

from fdl_prober.bounded import Bounded, StuckError


async def test_an_answer_comes_back() -> None:
    assert await Bounded().run("x", 10, lambda a, b: a + b, 2, 3) == 5


async def test_an_error_of_the_look_comes_back() -> None:
    def fails() -> None:
        raise OSError(5, "no")

    with pytest.raises(OSError, match="no"):
        await Bounded().run("x", 10, fails)
    with pytest.raises(TimeoutError, match="its own"):
        await Bounded().run("x", 10, lambda: (_ for _ in ()).throw(TimeoutError("its own")))


async def test_a_look_that_hangs_is_given_up_and_not_started_again() -> None:
    looks, go_on, started = Bounded(), threading.Event(), []

    def hangs() -> str:
        started.append(1)
        go_on.wait(60)
        return "late"

    try:
        with pytest.raises(StuckError, match="did not end within"):
            await looks.run("hangs", 0.05, hangs)
        with pytest.raises(StuckError, match="earlier look"):
            await looks.run("hangs", 10, hangs)
        assert await looks.run("another", 10, lambda: "fine") == "fine"
        assert len(started) == 1
    finally:
        go_on.set()
    left = looks._running.get("hangs")
    if left is not None:
        left.join(10)
    assert await looks.run("hangs", 10, lambda: "again") == "again"


async def test_the_next_look_may_follow_at_once() -> None:
    looks = Bounded()
    for number in range(300):
        assert await looks.run("x", 10, lambda n: n, number) == number


async def test_a_look_that_gets_no_thread_is_told_and_may_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = Bounded()

    def refuses(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refuses)
        for _ in range(2):
            with pytest.raises(StuckError, match="could not begin: can't start new thread"):
                await looks.run("x", 10, lambda: 1)
    assert await looks.run("x", 10, lambda: 2) == 2
