"""The line to a coordinator that is not there. What it does with one that is: test_runtime_processes.py."""

import threading
import time
from pathlib import Path

import pytest

from fdl_api import wire
from fdl_api.exitcodes import PodExit
from fdl_api.termination import Cause, Saved
from fdl_trainer.control import Channel
from fdl_trainer.ending import RunEndedError
from fdl_trainer.epochs import EpochBook
from fdl_trainer.member import ConfigurationError, Endpoint, from_environment
from fdl_trainer.store import StoreClosedError
from tests.unit.trainer.cluster import free_port, make_certificates


def channel(folder: Path, limit: float) -> Channel:
    make_certificates(folder)
    endpoint = Endpoint("127.0.0.1", free_port(), "name", "token", folder / "ca.crt")

    def hello() -> wire.RankHello:
        raise AssertionError("nobody answers the dial")

    return Channel(endpoint, hello, EpochBook("a"), lambda epoch: None, limit_seconds=limit)


def test_a_rank_without_coordinator_gives_up_after_the_limit_with_a_sentence(tmp_path: Path) -> None:
    line = channel(tmp_path, limit=0.5)
    line.start()
    limit = time.monotonic() + 30
    while line.ended is None and time.monotonic() < limit:
        line.wait(0.1)
    with pytest.raises(RunEndedError) as caught:
        line.check()
    assert caught.value.code is PodExit.COORDINATOR_LOST and "127.0.0.1" in caught.value.message
    line.close()


def test_a_rank_that_was_asked_to_go_does_not_wait_for_a_coordinator_that_is_gone_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fdl_trainer.control.LEAVE_LIMIT_SECONDS", 0.5)
    line = channel(tmp_path, limit=600)
    line.send(wire.Leave(reason="Preempted"), sticky="leave")
    line.start()
    limit = time.monotonic() + 30
    while line.ended is None and time.monotonic() < limit:
        line.wait(0.1)
    with pytest.raises(RunEndedError) as caught:
        line.check()
    words = caught.value.termination()
    assert caught.value.code is PodExit.LEFT
    assert (words.cause, words.saved) == (Cause.PREEMPTION, Saved.INCOMPLETE)
    line.close()


def test_whoever_waits_at_the_rendezvous_is_freed_when_the_epoch_is_over(tmp_path: Path) -> None:
    line = channel(tmp_path, limit=60)
    member = wire.EpochMember(uid="a", member="a", address="127.0.0.1", cohort="cpu")
    epoch = wire.Epoch(generation=1, epoch=1, previous=0, members=[member], cause=wire.EpochCause.START, planned=False)
    line._receive(epoch)
    failures: list[BaseException] = []

    def ask() -> None:
        try:
            line.store_get(1, ["0/1"], 60)
        except StoreClosedError as error:
            failures.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    while not line._pending:
        time.sleep(0.01)
    line._receive(epoch.model_copy(update={"epoch": 2, "cause": wire.EpochCause.DEATH, "previous": 1}))
    thread.join(10)
    assert len(failures) == 1 and "superseded" in str(failures[0])


def test_an_older_coordinator_is_not_obeyed(tmp_path: Path) -> None:
    line = channel(tmp_path, limit=60)
    line.generation = 3
    epoch = wire.Epoch(generation=2, epoch=9, previous=8, members=[], cause=wire.EpochCause.DEATH, planned=False)
    line._receive(epoch)
    assert line.book.get(9) is None


@pytest.mark.parametrize(
    ("environment", "part"),
    [
        ({"FDL_RUN_FILE": "/nowhere/run.json"}, "/nowhere/run.json"),
        ({}, "run file"),
    ],
)
def test_a_member_without_its_files_says_which(environment: dict[str, str], part: str) -> None:
    with pytest.raises(ConfigurationError, match=part):
        from_environment(environment)
