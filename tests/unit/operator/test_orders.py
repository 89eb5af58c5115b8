"""Whatever the order in which events arrive: the same deaths are billed, each once, and the run comes to rest."""

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from fdl_api.termination import Cause
from fdl_api.wire import Outcome

from .builders import World, member_name, said

THREE = [{"name": "a", "vendor": "cpu", "replicas": 3, "maxReplicas": 6}]

EVENTS = {
    "killed": lambda world: world.ended(member_name(0, 1), 137),
    "drained": lambda world: world.ended(member_name(1, 1), 75, said(Cause.PREEMPTION, "LeftOnRequest")),
    "deleted": lambda world: world.gone(member_name(2, 1)),
    "coordinator": lambda world: world.silent().gone("run-coordinator-1"),
}


def test_every_order_of_faults_is_billed_the_same() -> None:
    for order in itertools.permutations(EVENTS):
        for pause in itertools.product((False, True), repeat=len(order)):
            world = World(cohorts=THREE).training()
            for name, settle in zip(order, pause, strict=True):
                EVENTS[name](world)
                if settle:
                    world.settle()
            world.settle()
            counters = world.status.counters
            assert (counters.app, counters.infrastructure, counters.preemption, counters.coordinator) == (0, 1, 2, 1)
            names = {name for name, pod in world.pods.items() if not pod.ended}
            assert names == {"run-coordinator-2", *(member_name(ordinal, 2) for ordinal in range(3))}, order


def _run_all(world: World) -> None:
    for name, pod in list(world.pods.items()):
        if not pod.ended and not pod.node:
            world.running(name)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["kill", "leave", "vanish", "terminate", "dead", "run", "scale", "suspend", "resume", "coordinator"]
        ),
        st.integers(0, 5),
        st.sampled_from([0.0, 0.5, 15.0, 100.0]),
        st.booleans(),
    ),
    max_size=14,
)


def _apply(world: World, what: str, number: int) -> None:
    live = sorted(name for name, pod in world.pods.items() if pod.role == "member" and not pod.ended)
    name = live[number % len(live)] if live else ""
    if what == "kill" and name:
        world.ended(name, 137)
    elif what == "leave" and name:
        world.ended(name, 75)
    elif what == "vanish" and name:
        world.gone(name)
    elif what == "terminate" and name:
        world.deleting(name, grace=1)
    elif what == "dead" and name and world.status.attempt:
        world.says(states={name: "dead"})
    elif what == "run":
        _run_all(world)
        if world.status.coordinator.pod_name:
            world.says()
    elif what == "scale":
        world.edit(replicas=number)
    elif what == "suspend":
        world.edit(run_policy__suspend=True)
    elif what == "resume":
        world.edit(run_policy__suspend=False)
    elif what == "coordinator" and world.status.coordinator.pod_name in world.pods:
        world.silent().gone(world.status.coordinator.pod_name)


@settings(max_examples=150, deadline=None)
@given(STEPS)
def test_any_history_keeps_the_promises(history: list[tuple[str, int, float, bool]]) -> None:
    world = World(cohorts=THREE)
    world.settle()
    for what, number, seconds, settle in history:
        _apply(world, what, number)
        world.step(seconds)
        if settle:
            world.settle()
        assert len(set(world.created)) == len(world.created), "a name was used twice"
        live = [pod for pod in world.pods.values() if not pod.ended and pod.deleted_at is None]
        seats = [(pod.cohort, pod.ordinal) for pod in live if pod.role == "member"]
        assert len(set(seats)) == len(seats), "two members hold one seat"
        assert sum(pod.role == "coordinator" for pod in live) <= 1, "two coordinators"
        totals = world.status.counters
        assert totals.app == 0
    world.settle()
    assert not [action for action in world.step() if type(action).__name__ != "Wake"]


def test_success_in_any_order_of_news() -> None:
    done = said(Cause.COMPLETE, "Completed", "done")
    news = {
        "state": lambda world: world.says(Outcome.SUCCEEDED),
        "first": lambda world: world.ended(member_name(0, 1), 0, done),
        "second": lambda world: world.ended(member_name(1, 1), 0, done),
        "coordinator": lambda world: world.silent().gone("run-coordinator-1"),
    }
    for order in itertools.permutations(news):
        world = World().training()
        for name in order:
            news[name](world)
            world.step()
        world.settle()
        assert world.status.phase == "Succeeded", order
