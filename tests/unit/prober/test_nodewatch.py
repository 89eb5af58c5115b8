"""The watch of the own node: what asks for a look, and what does not."""

from pathlib import Path
from typing import Any

import pytest

from fdl_prober.access import Access
from fdl_prober.nodewatch import RETRY_LAST_SECONDS, NodeWatch, ask, retry_seconds


def event(kind: str = "MODIFIED", now: str = "", **resources: str) -> dict[str, Any]:
    notes = {"fdl.dev/probe-now": now} if now else {}
    offered = {"cpu": "8", "memory": "1Gi"} | {name.replace("_", "/"): amount for name, amount in resources.items()}
    return {"type": kind, "object": {"metadata": {"annotations": notes}, "status": {"allocatable": offered}}}


@pytest.fixture
def calls() -> list[int]:
    return []


@pytest.fixture
def watch(calls: list[int]) -> NodeWatch:
    return NodeWatch(
        Access("https://127.0.0.1:1", Path("ca"), Path("token")),
        "n1",
        lambda _, asked: calls.append(1) if asked else None,
    )


def test_the_first_event_only_says_how_things_are(watch: NodeWatch, calls: list[int]) -> None:
    watch.take(event("ADDED", now="yesterday", gpu_x="8"))
    assert calls == []


@pytest.mark.parametrize(
    ("changed", "asked"),
    [
        (event(now="today", gpu_x="8"), 1),
        (event(now="yesterday", gpu_x="7"), 1),
        (event(now="yesterday"), 1),
        (event(now="yesterday", gpu_x="8"), 0),
        ({"type": "BOOKMARK", "object": {}}, 0),
        ({"type": "DELETED", "object": {}}, 0),
    ],
    ids=["asked", "fewer devices", "no devices", "heartbeat", "bookmark", "deleted"],
)
def test_what_asks_for_a_look(watch: NodeWatch, calls: list[int], changed: dict[str, Any], asked: int) -> None:
    watch.take(event("ADDED", now="yesterday", gpu_x="8"))
    watch.take(changed)
    watch.take(event("ADDED", now="yesterday", gpu_x="8") if not asked else changed)
    assert len(calls) == asked


def test_what_was_missed_between_two_streams_asks_too(watch: NodeWatch, calls: list[int]) -> None:
    watch.take(event("ADDED"))
    watch.take(event("ADDED", now="meanwhile"))
    assert len(calls) == 1


def test_an_error_of_the_server_ends_the_stream(watch: NodeWatch) -> None:
    with pytest.raises(ValueError, match="too old"):
        watch.take({"type": "ERROR", "object": {"message": "too old resource version"}})


def test_processor_and_memory_are_no_devices() -> None:
    assert ask(event()["object"]) == ("", ())
    assert ask({"metadata": {}}) == ("", ())


def test_streams_that_fail_are_opened_ever_later() -> None:
    assert [retry_seconds(failures) for failures in (0, 1, 2, 3)] == [1, 5, 10, 20]
    assert retry_seconds(1000) == RETRY_LAST_SECONDS
