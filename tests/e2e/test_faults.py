"""Deaths in the middle of a run. The others never restart, the seat gets a successor, every sample counts once."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from fdl_api import labels, names
from fdl_api.exitcodes import PodExit
from fdl_cli.demo.kube import Kube as PeekKube
from fdl_cli.demo.kube import Tools
from fdl_cli.demo.peek import Peek
from fdl_cli.local import Cluster
from tests.e2e.support import build, evidence, faults
from tests.e2e.support.kube import Kube, members, phase_of, seat, training, until

OPERATOR_NAMESPACE = "fdl-system"
OPERATOR = "fdl-operator"
EPOCHS = 60
AGAIN_EPOCHS = 110
LONGEST_NAME = "n" * (names.MAX_NAME - len(names.coordinator_pod("", names.MAX_INCARNATION)))
"""A run's name of the longest legal length; with this file's cohort the members' names are shorter."""
SLOW_ENOUGH = {"epochs": EPOCHS, "batch_size": 16, "width": 32}


def start(kube: Kube, namespace: str, name: str, **more: Any) -> dict[str, str]:
    """Start a run of three members and wait until it trains; returns pod name by seat."""
    kube.create(namespace, build.digits(name, **{**SLOW_ENOUGH, **more}))
    kube.wait_window(namespace, name, 3, seconds=180)
    pods = kube.live_pods(namespace, name)
    assert len(pods) == 3, kube.diagnose(namespace, name)
    return {seat(pod): pod.metadata.name for pod in pods}


def finish(kube: Kube, cluster: Cluster, namespace: str, name: str, epochs: int = EPOCHS) -> dict[str, Any]:
    """Wait for success and prove the accounting."""
    run = kube.wait_phase(namespace, name, "Succeeded", seconds=300)
    evidence.accounting(cluster, run, epochs)
    assert training(run)["metrics"]["accuracy"] >= 0.95
    assert training(run)["checkpoint"]["verified"]
    return run


def incarnations(run: dict[str, Any]) -> dict[str, int]:
    """Incarnation by seat."""
    return {f"{member['cohort']}-{member['ordinal']}": member["incarnation"] for member in members(run)}


def joined(kube: Kube, namespace: str, name: str, of_seat: str, incarnation: int = 2) -> dict[str, Any]:
    """Wait until a seat's successor takes part."""

    def holds(run: dict[str, Any]) -> bool:
        return any(
            f"{m['cohort']}-{m['ordinal']}" == of_seat and m["incarnation"] == incarnation and m["phase"] == "Running"
            for m in members(run)
        )

    return kube.wait(namespace, name, f"incarnation {incarnation} of {of_seat} takes part", holds, seconds=180)


@pytest.fixture
def peek(tools: Tools, cluster: Cluster, namespace: str) -> Any:
    """Opens the coordinator's state of a run in the test's namespace."""

    def open_peek(run: str) -> Peek:
        return Peek(tools, PeekKube(cluster.kubeconfig), namespace, run)

    return open_peek


def test_a_member_is_killed_inside_a_reduce_and_its_successor_too(
    kube: Kube, cluster: Cluster, namespace: str, peek: Any
) -> None:
    """SIGKILL while the member waits in an all-reduce: the window is repeated, the others go on in place.

    The seat's third holder takes part like the first (case T3, as far as a short run allows).
    """
    pods = start(kube, namespace, "killed", epochs=AGAIN_EPOCHS, elche={"anchor": 2, "maxAnchor": 4})
    coordinator = kube.run(namespace, "killed")["status"]["coordinator"]["podName"]
    with peek("killed") as view:
        faults.kill_inside_reduce(cluster, view, coordinator, namespace, waited_for=pods["cpu-0"], victim=pods["cpu-1"])
        until("the survivors commit again", lambda: bool((s := view.state(coordinator)) and s.recoveries), 90)
        state = view.state(coordinator)
    assert state is not None
    alive = {member.member for member in state.members if member.state == "active"}
    assert {pods["cpu-0"], pods["cpu-2"]} <= alive
    run = joined(kube, namespace, "killed", "cpu-1")
    faults.kill(cluster, namespace, next(m["name"] for m in members(run) if m["ordinal"] == 1))
    run = joined(kube, namespace, "killed", "cpu-1", 3)
    assert phase_of(run) in ("Running", "Recovering")
    run = finish(kube, cluster, namespace, "killed", epochs=AGAIN_EPOCHS)
    assert incarnations(run) == {"cpu-0": 1, "cpu-1": 3, "cpu-2": 1}
    assert run["status"]["attempt"] == 1
    assert run["status"]["counters"]["app"] == 0, "a SIGKILL is not the script's fault"


def test_a_member_pod_and_all_objects_of_the_run_are_deleted(kube: Kube, cluster: Cluster, namespace: str) -> None:
    """kubectl delete: a counted leave, a successor that mounts what came back, and no failure budget used."""
    name = LONGEST_NAME
    pods = start(kube, namespace, name, epochs=AGAIN_EPOCHS)
    keys = kube.core.read_namespaced_secret(f"{name}-run", namespace).data
    chosen = {"label_selector": f"{labels.RUN}={name}"}
    for delete in (
        kube.core.delete_collection_namespaced_secret,
        kube.core.delete_collection_namespaced_config_map,
        kube.core.delete_collection_namespaced_service,
        kube.network.delete_collection_namespaced_network_policy,
        kube.policy.delete_collection_namespaced_pod_disruption_budget,
    ):
        delete(namespace, **chosen)
    kube.delete_pod(namespace, pods["cpu-1"])
    joined(kube, namespace, name, "cpu-1")
    assert kube.core.read_namespaced_secret(f"{name}-run", namespace).data == keys
    assert kube.network.list_namespaced_network_policy(namespace, **chosen).items
    run = finish(kube, cluster, namespace, name, epochs=AGAIN_EPOCHS)
    assert incarnations(run) == {"cpu-0": 1, "cpu-1": 2, "cpu-2": 1}
    assert run["status"]["attempt"] == 1
    assert run["status"]["counters"]["coordinator"] == 0
    counters = run["status"]["counters"]
    assert (counters["app"], counters["infrastructure"]) == (0, 0)
    assert counters["preemption"] == 1


def test_a_node_is_cut_off_and_comes_back(kube: Kube, cluster: Cluster, namespace: str) -> None:
    """The survivors go on without it; the zombie that comes back is fenced, and only its successor has the seat."""
    start(kube, namespace, "cut", epochs=100, cohorts=[build.cpu_cohort("cut", 3, one_a_node=True)])
    (coordinator,) = kube.live_pods(namespace, "cut", labels.ROLE_COORDINATOR)
    victim = next(pod for pod in kube.live_pods(namespace, "cut") if pod.spec.node_name != coordinator.spec.node_name)
    node = victim.spec.node_name
    run = kube.run(namespace, "cut")
    cluster.node_cut(node)
    try:
        time.sleep(3)  # longer than the heartbeat limit: the fault itself, not a wait for something
        before = evidence.commits(cluster, run)
        until("the survivors go on", lambda: evidence.commits(cluster, run) > before + 10, 60)
    finally:
        cluster.node_heal(node)

    def fenced() -> bool:
        pod = kube.pod(namespace, victim.metadata.name)
        ended = pod is not None and pod.status.container_statuses[0].state.terminated
        return bool(ended) and ended.exit_code == PodExit.FENCED

    until("the zombie is fenced", fenced, 90)
    joined(kube, namespace, "cut", seat(victim))
    run = finish(kube, cluster, namespace, "cut", epochs=100)
    others = {key: value for key, value in incarnations(run).items() if key != seat(victim)}
    assert set(others.values()) == {1}, f"others than the cut one were restarted: {others}"
    assert run["status"]["counters"]["app"] == 0


def test_the_operator_is_killed_while_it_has_two_runs(
    kube: Kube, cluster: Cluster, namespace: str, make_namespace: Callable[[str], str]
) -> None:
    """Two runs of one name in two namespaces share nothing; no trainer notices that the next operator takes over."""
    places = (namespace, make_namespace("second"))
    for place in places:
        kube.create(place, build.digits("twin", members=2, epochs=EPOCHS))
    before = {}
    for place in places:
        kube.wait_window(place, "twin", 3, seconds=180)
        before[place] = {pod.metadata.uid for pod in kube.live_pods(place, "twin")}
    for pod in operators(kube):
        kube.delete_pod(OPERATOR_NAMESPACE, pod.metadata.name, grace=0)
    for place in places:
        run = finish(kube, cluster, place, "twin")
        assert {member["uid"] for member in members(run)} == before[place]
        assert set(incarnations(run).values()) == {1}
        assert training(run)["staleMessages"] == 0
    until("an operator is available again", lambda: available(kube), 60)
    kube.delete_all(places[1])


def test_the_coordinator_is_killed_and_a_member_dies_meanwhile(kube: Kube, cluster: Cluster, namespace: str) -> None:
    """Without a coordinator training goes on; a death stalls it until the next one is there, and no longer."""
    pods = start(kube, namespace, "orphan")
    run = kube.run(namespace, "orphan")
    coordinator = kube.live_pods(namespace, "orphan", labels.ROLE_COORDINATOR)[0].metadata.name
    with without_operator(kube):
        faults.kill(cluster, namespace, coordinator)
        before = evidence.commits(cluster, run)
        until("training goes on without a coordinator", lambda: evidence.commits(cluster, run) > before + 15, 60)
        faults.kill(cluster, namespace, pods["cpu-2"])
        time.sleep(1)  # what was in flight ends
        stalled = evidence.commits(cluster, run)
        time.sleep(3)  # the time over which nothing may be committed: a fact about this interval
        assert evidence.commits(cluster, run) == stalled, "a window was committed with a dead member and no coordinator"
    until("training goes on with the next coordinator", lambda: evidence.commits(cluster, run) > stalled + 3, 120)
    run = finish(kube, cluster, namespace, "orphan")
    assert incarnations(run)["cpu-0"] == incarnations(run)["cpu-1"] == 1
    assert run["status"]["coordinator"]["incarnation"] == 2
    assert run["status"]["attempt"] == 1


def operators(kube: Kube) -> list[Any]:
    """The operator's pods."""
    selector = "app.kubernetes.io/component=operator"
    return list(kube.core.list_namespaced_pod(OPERATOR_NAMESPACE, label_selector=selector).items)


def available(kube: Kube) -> bool:
    """Whether the operator's Deployment has its pod."""
    status = kube.apps.read_namespaced_deployment(OPERATOR, OPERATOR_NAMESPACE).status
    return bool(status.available_replicas)


class without_operator:  # noqa: N801 - reads as a statement
    """No operator while the block runs."""

    def __init__(self, kube: Kube) -> None:
        self._kube = kube

    def __enter__(self) -> None:
        self._scale(0)
        for pod in operators(self._kube):
            self._kube.delete_pod(OPERATOR_NAMESPACE, pod.metadata.name, grace=0)
        until("the operator is gone", lambda: not operators(self._kube), 60)

    def __exit__(self, *_: object) -> None:
        self._scale(1)

    def _scale(self, replicas: int) -> None:
        self._kube.apps.patch_namespaced_deployment_scale(
            OPERATOR, OPERATOR_NAMESPACE, {"spec": {"replicas": replicas}}
        )
