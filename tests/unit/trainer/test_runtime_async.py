"""Training that goes on while averages are made, in real processes on loopback."""

import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from fdl_api.exitcodes import PodExit
from fdl_api.run import Mode
from tests.unit.trainer.cluster import Zygote, loopback_run
from tests.unit.trainer.test_runtime_processes import BLOBS, assert_complete, trained, trained_past


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """One torch for all tests here."""
    started = Zygote(tmp_path_factory.mktemp("zygote"))
    yield started
    started.close()


def test_three_ranks_learn_and_end_with_the_same_bits_and_every_sample_once(tmp_path: Path, zygote: Zygote) -> None:
    with loopback_run(tmp_path, BLOBS, 3, ["--epochs", "4"], zygote=zygote, mode=Mode.CPU_ASYNC) as run:
        members = [run.start_member(ordinal) for ordinal in range(3)]
        assert [member.wait() for member in members] == [0, 0, 0], run.logs()
        state = assert_complete(run, 4096, 4, ranks=3)
        assert state["metrics"]["accuracy"] > 0.85


def test_a_kill_inside_an_overlapped_reduce_a_join_and_a_leave(tmp_path: Path, zygote: Zygote) -> None:
    """One rank is held, so that the others run ahead of the average as far as they may; one is killed there."""
    arguments = ["--epochs", "50", "--work", "4"]
    with loopback_run(tmp_path, BLOBS, 3, arguments, zygote=zygote, mode=Mode.CPU_ASYNC) as run:
        members = [run.start_member(ordinal) for ordinal in range(3)]
        run.wait_state("training goes on", lambda state: trained(state, 5))
        held, victim = members[2], members[1]
        held.signal_ranks(signal.SIGSTOP)
        run.wait_state(
            "the others wait for the average",
            lambda state: [item["phase"] for item in state["members"]].count("reduce") >= 2,
            seconds=1.5,  # the held rank must not be silent for longer than a heartbeat's limit
        )
        victim.kill()
        held.signal_ranks(signal.SIGCONT)
        state = run.wait_state("two go on", lambda state: len(state["ranks"]) == 2 and state["deaths"] == 1)
        run.wait_state("windows commit", partial(trained_past, state["window"] + 2))
        successor = run.start_member(1, incarnation=2)
        run.wait_state("three train", lambda state: len(state["ranks"]) == 3)
        held.terminate()
        assert held.wait() == PodExit.LEFT, run.logs()
        assert [members[0].wait(), successor.wait()] == [0, 0], run.logs()
        assert assert_complete(run, 4096, 50, ranks=2)["deaths"] == 1


def test_what_is_in_flight_when_all_leave_is_kept_and_resumed_from(tmp_path: Path, zygote: Zygote) -> None:
    arguments = ["--epochs", "20", "--work", "4"]
    with loopback_run(tmp_path, BLOBS, 2, arguments, zygote=zygote, mode=Mode.CPU_ASYNC) as run:
        members = [run.start_member(ordinal) for ordinal in range(2)]
        run.wait_state("training goes on", lambda state: trained(state, 8))
        for member in members:
            member.terminate()
        assert [member.wait() for member in members] == [PodExit.LEFT] * 2, run.logs()
        run.new_attempt()
        again = [run.start_member(ordinal, incarnation=2) for ordinal in range(2)]
        assert [member.wait() for member in again] == [0, 0], run.logs()
        assert_complete(run, 4096, 20, ranks=2)
        assert run.proof(4096, 20).uncommitted == 0, "the work of those who left is counted to the last batch"
