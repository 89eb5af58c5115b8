"""The loop: what it takes from the cluster's word, and what it bears."""

import asyncio
from datetime import datetime, timedelta
from typing import Any

import pytest

from fdl_api.cluster_nodes import FabricSpec, ProbedSpec, SocketInterface
from fdl_api.report import of_node
from fdl_prober.loop import Prober, socket_interface
from fdl_prober.settings import Settings

from .stories import NOW, seen

FABRIC = FabricSpec(
    groups=(
        SocketInterface(name="fast", node_selector={"zone": "a", "net": "ib"}, socket_interface="ib0"),
        SocketInterface(name="rest", socket_interface="eth0"),
    )
)


@pytest.mark.parametrize(
    ("labels", "name"),
    [({"zone": "a", "net": "ib", "x": "y"}, "ib0"), ({"zone": "a"}, "eth0"), ({}, "eth0")],
)
def test_the_first_group_whose_labels_a_node_has(labels: dict[str, str], name: str) -> None:
    assert socket_interface(FABRIC, labels) == name


def test_no_group_names_no_interface() -> None:
    assert socket_interface(None, {}) == ""
    assert socket_interface(FabricSpec(groups=FABRIC.groups[:1]), {"zone": "a"}) == ""


class Answers:
    """An API server that counts what it is asked."""

    clock_offset_seconds = 0.0

    def __init__(self, *nodes: Any) -> None:
        self.nodes = list(nodes)
        self.asked = 0
        self.applied: list[Any] = []

    async def node(self) -> Any:
        return self.nodes.pop(0)

    async def apply(self, body: Any) -> Any:
        self.applied.append(body)
        return body

    async def cluster_version(self) -> str:
        self.asked += 1
        return "uid/1"

    async def cluster(self) -> tuple[ProbedSpec, str]:
        return ProbedSpec(), "mark"

    async def deep_pods(self) -> list[Any]:
        return []


async def test_what_nobody_thought_of_costs_one_look_and_not_the_prober() -> None:
    server, stop = Answers({"no": "metadata"}, {"metadata": {"name": "n"}}), asyncio.Event()
    prober = Prober(Settings(node="n", period_seconds=1), server)  # type: ignore[arg-type]

    async def end() -> None:
        while not server.applied:
            await asyncio.sleep(0.01)
            prober.look_soon()
        stop.set()

    await asyncio.wait_for(asyncio.gather(prober.run(stop), end()), 60)
    assert [body["metadata"]["name"] for body in server.applied] == ["n"]


@pytest.mark.parametrize(
    ("later", "times"), [(timedelta(seconds=5), 1), (timedelta(seconds=61), 2), (timedelta(days=-400), 2)]
)
async def test_a_clock_that_was_set_back_does_not_keep_the_cluster_from_being_asked(
    later: timedelta, times: int
) -> None:
    clock: list[datetime] = [NOW]
    server = Answers()
    prober = Prober(Settings(node="n"), server, lambda: clock[0])  # type: ignore[arg-type]
    await prober._learn_cluster()
    clock[0] += later
    await prober._learn_cluster()
    assert server.asked == times


@pytest.mark.parametrize(
    ("taken", "later", "writes"),
    [({}, 31, 1), ({"labels"}, 31, 2), ({"annotations"}, 31, 2), ({"labels"}, 1, 1)],
    ids=["nothing", "a label", "the report", "again at once"],
)
async def test_what_somebody_took_away_is_written_again_once_a_period(taken: set[str], later: int, writes: int) -> None:
    clock: list[datetime] = [NOW]
    server = Answers()
    prober = Prober(Settings(node="n"), server, lambda: clock[0])  # type: ignore[arg-type]
    assert await prober._publish(seen())
    metadata = {key: {} if key in taken else value for key, value in server.applied[0]["metadata"].items()}
    prober.saw({"metadata": metadata | {"name": "n"}}, asked=False)
    assert prober._asked.is_set() is bool(taken)
    clock[0] += timedelta(seconds=later)
    await prober._publish(seen())
    assert len(server.applied) == writes


async def test_a_report_tells_by_which_spec_it_was_made() -> None:
    server = Answers()
    prober = Prober(Settings(node="n"), server)  # type: ignore[arg-type]
    for mark in ("", "mark"):
        await prober._publish(seen())
        report = of_node(server.applied[-1]["metadata"]["annotations"])
        assert report is not None and report.judged_by == mark
        await prober._learn_cluster()
    assert len(server.applied) == 2, "another spec is a change that is written"


async def test_a_node_that_becomes_a_simulated_one_is_looked_at_again() -> None:
    prober = Prober(Settings(node="n"), Answers())  # type: ignore[arg-type]
    prober.saw({"metadata": {"labels": {"fdl.dev/simulated": "true"}}}, asked=False)
    assert prober.state.simulated and prober._asked.is_set()
