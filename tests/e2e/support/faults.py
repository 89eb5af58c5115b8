"""Faults that the tests inject into real processes."""

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from fdl_api.wire import Phase, State
from fdl_cli.demo.peek import Peek
from fdl_cli.local import Cluster


def kill(cluster: Cluster, namespace: str, pod: str) -> int:
    """SIGKILL every process of a pod at once; returns how many there were."""
    pids = cluster.node_pids(namespace, pod)
    assert pids, f"{pod} has no process"
    _signal(pids, signal.SIGKILL)
    return len(pids)


@contextmanager
def frozen(cluster: Cluster, namespace: str, pod: str, at_most: float | None = None) -> Iterator[None]:
    """SIGSTOP every process of a pod for a while; for no more than ``at_most`` seconds, however long the body takes."""
    pids = cluster.node_pids(namespace, pod)
    assert pids, f"{pod} has no process"
    timer = threading.Timer(at_most, _signal, (pids, signal.SIGCONT)) if at_most is not None else None
    _signal(pids, signal.SIGSTOP)
    try:
        if timer is not None:
            timer.start()
        yield
    finally:
        if timer is not None:
            timer.cancel()
        _signal(pids, signal.SIGCONT)


def kill_inside_reduce(
    cluster: Cluster, peek: Peek, coordinator: str, namespace: str, waited_for: str, victim: str
) -> None:
    """SIGKILL a member that provably waits inside a reduce.

    Another member is stopped for less than the heartbeat limit, so that the reduce of the window cannot complete;
    once the coordinator hears from the victim that it is in its reduce, the victim dies.
    """
    pids = cluster.node_pids(namespace, victim)
    assert pids, f"{victim} has no process"
    assert peek.state(coordinator) is not None, "the coordinator does not answer"
    limit = 0.8  # well below the heartbeat limit of 2 s; an answer of the coordinator may come later than that
    for _ in range(15):
        with frozen(cluster, namespace, waited_for, at_most=limit + 0.1):
            end = time.monotonic() + limit
            while time.monotonic() < end:
                waits = phase_of(peek.state(coordinator), victim) is Phase.REDUCE
                if waits and time.monotonic() < end:
                    _signal(pids, signal.SIGKILL)
                    return
                time.sleep(0.02)
        time.sleep(1.0)  # let the one that was stopped catch up
    raise AssertionError(f"{victim} was never seen inside a reduce")


def phase_of(state: State | None, member: str) -> Phase | None:
    """What a member is doing, as its last heartbeat said."""
    if state is None:
        return None
    return next((entry.phase for entry in state.members if entry.member == member), None)


def _signal(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
