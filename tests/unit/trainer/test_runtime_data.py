"""Whole runs of real processes that read by worker processes: bad samples, a small device, a rank that is killed."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fdl_api.exitcodes import PodExit
from tests.unit.trainer.cluster import LoopbackRun, Zygote, loopback_run, wait_for

SCRIPT = Path(__file__).parent / "scripts" / "points.py"
SAMPLES = 2048


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    started = Zygote(tmp_path_factory.mktemp("zygote"))
    yield started
    started.close()


def workers(run: LoopbackRun) -> list[int]:
    """Process ids of the workers of all ranks, as the ranks printed them."""
    found = [
        line
        for path in sorted(run.folder.glob("digits-cpu-*.log"))
        for line in re.findall(r"^workers ([\d ]+)$", path.read_text(errors="replace"), re.MULTILINE)
    ]
    return [int(pid) for line in found for pid in line.split()]


def ended(pid: int) -> bool:
    """Whether a process has ended (one that nobody has collected yet has)."""
    path = Path(f"/proc/{pid}/stat")
    try:
        return " Z " in path.read_text()
    except OSError:
        return True


def all_ended(pids: list[int]) -> bool:
    return all(map(ended, pids))


def test_bad_samples_and_a_small_device_in_a_run_that_loses_a_rank_and_bids_one_farewell(
    tmp_path: Path, zygote: Zygote
) -> None:
    with loopback_run(tmp_path, SCRIPT, 3, zygote=zygote) as run:
        members = [run.start_member(0), run.start_member(1, SMALL="1"), run.start_member(2)]
        state = run.wait_state("it trains", lambda state: state["window"] >= 1 and state["ranks"])
        told = [rank["data"] for rank in state["ranks"]]
        assert told == ["streamed: samples may differ from pass to pass"] * 3
        pids = workers(run)
        assert len(pids) == 6 and not any(map(ended, pids))
        members[0].kill()
        members[2].terminate()
        assert members[2].wait() in (PodExit.LEFT, PodExit.DONE), run.logs()
        assert members[1].wait() == PodExit.DONE, run.logs()
        proof = run.proof(SAMPLES, 2)
        assert proof.ok, (proof, run.logs())
        assert [(epoch.committed, epoch.skipped) for epoch in proof.epochs] == [(SAMPLES - 1, 1)] * 2
        assert "the largest number that does is 5" in members[1].log.read_text()
        assert "sample 1234 is left out: OSError: its sector is gone" in run.logs(1000)
        wait_for("no worker is left", lambda: all_ended(pids), 30)
