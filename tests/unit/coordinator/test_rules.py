"""Pure rules beside the engine: formation, rendezvous, figures."""

from collections import deque

import pytest

from fdl_api import wire
from fdl_api.spec_policy import JoinSpec
from fdl_coordinator import formation
from fdl_coordinator.engine import Engine
from fdl_coordinator.rendezvous import Rendezvous
from fdl_coordinator.report import RATE_SECONDS, RATE_WINDOWS, Progress, rate, snapshot
from tests.unit.coordinator.cohort import Cohort, agent_hello, rank_hello, run_config

JOIN = JoinSpec(min_members=2, target_members=4, window_seconds=30, cap_seconds=60)


@pytest.mark.parametrize(
    ("ready", "elapsed", "verdict"),
    [
        (0, 0, "wait"),
        (3, 29, "wait"),  # more capacity is never refused while the window is open
        (4, 1, "form"),
        (5, 1, "form"),
        (2, 30, "form"),
        (1, 30, "wait"),
        (1, 60, "fail"),
        (0, 60, "fail"),
    ],
)
def test_formation(ready: int, elapsed: float, verdict: str) -> None:
    assert formation.decide(ready, 4, elapsed, JOIN) == verdict


@pytest.mark.parametrize(
    ("window", "elapsed", "starting", "verdict"),
    [
        (30, 30, 1, "wait"),
        (30, 49.9, 2, "wait"),
        (30, 50, 2, "form"),  # for a moment, not for ever
        (30, 30, 0, "form"),  # for nobody who is only wanted
        (5, 9.9, 1, "wait"),
        (5, 10, 1, "form"),  # as long again at most
        (0, 0, 1, "form"),  # who wants no wait has none
        (50, 60, 1, "form"),  # nor is the cap exceeded
    ],
)
def test_members_that_are_starting_are_waited_for_a_moment_longer(
    window: int, elapsed: float, starting: int, verdict: str
) -> None:
    join = JoinSpec(min_members=1, window_seconds=window, cap_seconds=60)
    assert formation.decide(1, 3, elapsed, join, starting=starting) == verdict
    assert formation.decide(3, 3, elapsed, join, starting=starting) == "form", "with all there is nothing to wait for"
    assert formation.decide(1, 1, 0, join, starting=starting) == "form", "nor with the one that is wanted"


def test_who_is_loading_or_on_a_node_is_starting_and_who_has_no_node_is_not() -> None:
    cohort = Cohort(run_config(join=JoinSpec(min_members=1)))
    placed = ["m0.1", "m2.1"]
    expected = [*placed, "m1.1", "m3.1"]
    cohort.deliver(cohort.engine.hinted(wire.Hint(wanted_members=4, expected=expected, placed=placed), cohort.now))
    cohort.dial(0)
    loading = agent_hello(1)
    cohort.deliver(cohort.engine.agent_hello(loading, cohort.now))
    assert cohort.engine._starting() == 2
    cohort.pass_time(31)
    assert cohort.engine.epochs.current is None
    cohort.deliver(cohort.engine.rank_hello(rank_hello(loading), cohort.now))
    assert cohort.engine._starting() == 1
    cohort.dial(2)
    current = cohort.engine.epochs.current
    assert current is not None and len(current.members) == 3, "and not for the one without a node"


def test_a_target_below_the_minimum_does_not_start_without_a_quorum() -> None:
    assert formation.decide(1, 1, 0, JOIN) == "wait"


def get(number: int, *keys: str, epoch: int = 1) -> wire.StoreGet:
    return wire.StoreGet(id=number, epoch=epoch, keys=list(keys), timeout_seconds=10)


def put(number: int, key: str, value: str = "dmFsdWU=", epoch: int = 1) -> wire.StoreSet:
    return wire.StoreSet(id=number, epoch=epoch, key=key, value=value)


def test_a_waiter_is_answered_when_its_last_key_comes() -> None:
    store = Rendezvous()
    store.open(1)
    assert store.get("a", get(7, "x", "y"), now=0) == []
    assert [uid for uid, _ in store.set("b", put(1, "x"))] == ["b"]
    answers = store.set("b", put(2, "y", "eQ=="))
    assert [(uid, reply.id, reply.values) for uid, reply in answers] == [("b", 2, []), ("a", 7, ["dmFsdWU=", "eQ=="])]


def test_stores_of_epochs_do_not_see_each_other() -> None:
    store = Rendezvous()
    store.open(1)
    store.open(2)
    store.set("a", put(1, "x", epoch=1))
    assert store.get("a", get(2, "x", epoch=2), now=0) == []


def test_whoever_waits_in_a_closed_epoch_is_told_at_once() -> None:
    store = Rendezvous()
    store.open(1)
    store.get("a", get(7, "x"), now=0)
    ((uid, reply),) = store.close_below(2)
    assert uid == "a" and "over or was cancelled" in reply.error
    ((_, late),) = store.get("a", get(8, "x"), now=0)
    assert late.error


def test_waiting_has_an_end_that_names_the_key() -> None:
    store = Rendezvous()
    store.open(1)
    store.get("a", get(7, "rank2"), now=0)
    assert store.expire(9.9) == []
    ((_, reply),) = store.expire(10.1)
    assert "rank2" in reply.error


def test_rate_is_over_the_kept_commits() -> None:
    assert rate(deque([(0.0, 0), (1.0, 100), (4.0, 400)])) == 100.0
    assert rate(deque([(0.0, 0)])) == 0.0


def test_a_burst_of_late_reports_is_no_rate() -> None:
    assert rate(deque([(10.0, 100), (10.01, 2000)])) == 0.0


def test_the_rate_is_over_seconds_when_windows_are_short_and_over_windows_when_they_are_long() -> None:
    short, long = Progress(run_config(), 1), Progress(run_config(), 1)
    for window in range(1, 1001):
        report = wire.WindowCommitted(epoch=1, window=window, samples=window * 10, data_epoch=0)
        short.committed(report, window * 0.01)
        long.committed(report, window * 60.0)
    assert short.points[-1][0] - short.points[0][0] == pytest.approx(RATE_SECONDS, abs=0.02)
    assert rate(short.points) == pytest.approx(1000)
    assert len(long.points) == RATE_WINDOWS
    assert rate(long.points) == pytest.approx(10 / 60)


def test_what_the_guards_did_is_in_the_state_and_a_report_without_figures_does_not_wipe_it() -> None:
    engine = Engine(run_config(), 1)
    guard = wire.GuardReport(divergence=0.02, counts={"loosen": 1})
    rank = wire.RankWindow(
        uid="m0.1/0", quota=2, batches=2, samples=20, compute_ms=9, data_wait_ms=0, ms_per_batch=4.5, share=1.0
    )
    full = wire.WindowCommitted(epoch=1, window=1, samples=20, data_epoch=0, ranks=[rank], guard=guard)
    engine.progress.committed(full, 1.0)
    engine.progress.committed(wire.WindowCommitted(epoch=1, window=2, samples=40, data_epoch=0), 2.0)
    assert snapshot(engine).guard == guard


@pytest.mark.parametrize(("batch_size", "told"), [(0, False), (333, False), (334, True), (1001, True)])
def test_a_batch_larger_than_the_data_or_a_ranks_share_is_noted_and_trained(batch_size: int, told: bool) -> None:
    cohort = Cohort()
    for ordinal in range(3):
        cohort.dial(ordinal, batch_size=batch_size)
    cohort.window()
    state = snapshot(cohort.engine)
    assert state.window == 1
    sentence = (
        f"rank 0 of digits-cpu-0-1 on node node0: batch_size of session.setup is {batch_size} and the dataset has "
    )
    assert [note.startswith(sentence) and "lower batch_size to at most 333" in note for note in state.notes] == (
        [True] if told else []
    )


@pytest.mark.parametrize(("slow_ms", "told"), [(0.0, False), (20.0, False), (1280.0, False), (2000.0, True)])
def test_a_rank_a_hundred_times_slower_is_named_once_with_what_to_do(slow_ms: float, told: bool) -> None:
    cohort = Cohort()
    for ordinal in range(3):
        cohort.dial(ordinal)
    row = {"quota": 2, "batches": 2, "samples": 20, "compute_ms": 9, "data_wait_ms": 0, "share": 1}
    speeds = {"m0.1/0": 20.0, "m1.1/0": slow_ms, "m2.1/0": 21.0}
    said = []
    for window in (1, 2):
        ranks = [wire.RankWindow(uid=uid, ms_per_batch=ms * (1 + window / 99), **row) for uid, ms in speeds.items()]
        full = wire.WindowCommitted(epoch=1, window=window, samples=20, data_epoch=0, ranks=ranks)
        cohort.engine.progress.committed(full, 1.0)
        said.append(snapshot(cohort.engine).notes)
    assert said[0] == said[1], "no figure in it moves"
    assert [note.startswith("rank 0 of digits-cpu-1-1 on node node1 takes more than 64 times") for note in said[0]] == (
        [True] if told else []
    )
    assert not told or "fewer replicas in its entry of spec.cohorts" in said[0][0]


def test_how_each_rank_keeps_its_data_is_in_the_state_with_its_figures() -> None:
    cohort = Cohort()
    for ordinal in range(3):
        cohort.dial(ordinal, data=f"streamed: {ordinal} shards")
    row = {"quota": 2, "batches": 2, "samples": 20, "compute_ms": 9, "data_wait_ms": 0, "ms_per_batch": 4.5, "share": 1}
    ranks = [wire.RankWindow(uid=uid, **row) for uid in ("m2.1/0", "gone/0")]
    full = wire.WindowCommitted(epoch=1, window=1, samples=20, data_epoch=0, ranks=ranks)
    cohort.engine.progress.committed(full, 1.0)
    assert [told.data for told in snapshot(cohort.engine).ranks] == ["streamed: 2 shards", ""]


def test_figures_that_are_not_finite_can_be_said_and_are_left_out_of_the_state() -> None:
    said = wire.Evaluated(metrics={"accuracy": 0.5, "perplexity": float("inf"), "f1": float("nan")})
    heard = wire.FROM_RANK.validate_json(wire.encode(said))
    assert isinstance(heard, wire.Evaluated)
    assert set(heard.metrics) == {"accuracy", "perplexity", "f1"}
    engine = Engine(run_config(), 1)
    engine.evaluated("m0.1/0", heard, 0.0)
    assert snapshot(engine).metrics == {"accuracy": 0.5}
