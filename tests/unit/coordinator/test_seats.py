"""Seats: which share of the work a rank has by the user's word, whenever it arrived; and what epochs say of devices."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fdl_api import wire
from fdl_api.run import ElcheSpec
from fdl_api.runconfig import CohortConfig
from fdl_coordinator.report import snapshot
from fdl_coordinator.seats import seat_number
from tests.unit.coordinator.cohort import Cohort, agent_hello, rank_hello, run_config


def cohort_config(name: str, replicas: int | None, devices: int) -> CohortConfig:
    return CohortConfig(
        name=name, vendor="cpu", min_replicas=1, max_replicas=8, devices_per_replica=devices, replicas=replicas
    )


TWO = [cohort_config("zebra", 2, 2), cohort_config("ant", None, 3)]
"""In the order of the spec, which is not that of the alphabet."""


@pytest.mark.parametrize(
    ("place", "local_rank", "number"),
    [
        (("zebra", 0), 0, 0),
        (("zebra", 0), 1, 1),
        (("zebra", 1), 1, 3),
        (("ant", 0), 0, 4),
        (("ant", 0), 2, 6),
        (("ant", 1), 0, -1),  # minReplicas where nobody says how many
        (("zebra", 2), 0, -1),
        (("zebra", 0), 2, -1),
        (("bee", 0), 0, -1),
    ],
)
def test_a_seat_has_its_number_by_the_order_of_the_spec(place: tuple[str, int], local_rank: int, number: int) -> None:
    assert seat_number(TWO, place, local_rank) == number


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4)), min_size=1, max_size=4))
def test_seats_are_numbered_without_gaps(shapes: list[tuple[int, int]]) -> None:
    cohorts = [cohort_config(f"c{i}", replicas, devices) for i, (replicas, devices) in enumerate(shapes)]
    numbers = [
        seat_number(cohorts, (cohort.name, ordinal), local)
        for cohort in cohorts
        for ordinal in range(cohort.replicas or 0)
        for local in range(cohort.devices_per_replica)
    ]
    assert numbers == list(range(sum(cohort.wanted_ranks for cohort in cohorts)))


def three(replicas: int = 3, ratios: tuple[float, ...] | None = (0.2, 0.3, 0.5)) -> Cohort:
    cohort = Cohort(run_config(cohorts=[cohort_config("cpu", replicas, 1)], elche=ElcheSpec(partition_ratios=ratios)))
    for ordinal in range(3):
        cohort.dial(ordinal)
    return cohort


def seats(cohort: Cohort) -> dict[str, int]:
    assert cohort.engine.epochs.current is not None
    return {member.uid: member.seat for member in cohort.engine.epochs.current.members}


def test_a_successor_sits_where_its_predecessor_sat_though_it_comes_last() -> None:
    cohort = three()
    assert seats(cohort) == {"m0.1/0": 0, "m1.1/0": 1, "m2.1/0": 2}
    cohort.window()
    cohort.kill(cohort.ranks["m0.1/0"])
    cohort.dial(0, incarnation=2)
    cohort.window()
    cohort.window()
    assert list(seats(cohort).items()) == [("m1.1/0", 1), ("m2.1/0", 2), ("m0.2/0", 0)]
    assert cohort.epochs[-1].seats == 3 and snapshot(cohort.engine).notes == []


def test_epochs_say_what_ranks_train_on_as_their_agents_said() -> None:
    device = wire.Device(index=0, vendor="cpu", arch="x86_64", memory_bytes=7, cpu_millicores=500)
    cohort = Cohort(run_config())
    for ordinal in range(3):
        hello = agent_hello(ordinal, devices=[device])
        cohort.deliver(cohort.engine.agent_hello(hello, cohort.now))
        cohort.deliver(cohort.engine.rank_hello(rank_hello(hello), cohort.now))
    assert cohort.engine.epochs.current is not None
    assert [member.device for member in cohort.engine.epochs.current.members] == [device] * 3


@pytest.mark.parametrize("ratios", [(0.5, 0.5), (0.25, 0.25, 0.25, 0.25)])
def test_ratios_of_another_number_are_told_and_stand_in_nobodys_way(ratios: tuple[float, ...]) -> None:
    (note,) = snapshot(three(ratios=ratios).engine).notes
    assert f"spec.elche.partitionRatios has {len(ratios)} shares and the cohorts want 3 ranks: it is not used" in note


def test_a_rank_beyond_what_the_spec_wanted_is_named_while_it_takes_part() -> None:
    cohort = three(replicas=2, ratios=(0.5, 0.5))
    (note,) = snapshot(cohort.engine).notes
    assert "not used while rank 0 of digits-cpu-2-1 on node node2 takes part" in note
    cohort.window()
    cohort.kill(cohort.ranks["m2.1/0"])
    assert snapshot(cohort.engine).notes == []


def test_without_ratios_there_is_nothing_to_tell() -> None:
    assert snapshot(three(ratios=None).engine).notes == []
