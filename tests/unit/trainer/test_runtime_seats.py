"""Whole runs of real processes: what is believed of ranks before they are measured, and shares that stick to seats."""

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fdl_api.exitcodes import PodExit
from fdl_api.run import ElcheSpec, Mode
from fdl_api.runconfig import CohortConfig, MemberEnv
from tests.unit.trainer.cluster import LoopbackRun, Zygote, loopback_run

BLOBS = Path(__file__).parent / "scripts" / "blobs.py"


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    started = Zygote(tmp_path_factory.mktemp("zygote"))
    yield started
    started.close()


def contributions(run: LoopbackRun, window: int) -> dict[str, int]:
    """Batches of each rank in a window, by the index logs."""
    lines = (json.loads(line) for line in run.first_audit().read_text().splitlines())
    return next(line["contributions"] for line in lines if line["k"] == "commit" and line["window"] == window)


def test_the_first_window_of_unequal_devices_follows_their_cpu_time(tmp_path: Path, zygote: Zygote) -> None:
    with loopback_run(tmp_path, BLOBS, 3, zygote=zygote) as run:
        limits = ["1000", "4000", "1000"]
        members = [run.start_member(i, **{MemberEnv.CPU_LIMIT: limit}) for i, limit in enumerate(limits)]
        assert [member.wait() for member in members] == [PodExit.DONE] * 3, run.logs()
        first = contributions(run, 1)
        assert [first[f"{member.uid}/0"] for member in members] == [2, 4, 2], "twice as fast by a prior, not four times"


def quotas(state: dict[str, Any]) -> dict[str, int]:
    return {row["uid"].partition("/")[0]: row["quota"] for row in state["ranks"]}


def test_a_fixed_share_sticks_to_its_seat_over_a_death(tmp_path: Path, zygote: Zygote) -> None:
    cohort = CohortConfig(name="cpu", vendor="cpu", min_replicas=1, max_replicas=8, devices_per_replica=1, replicas=2)
    changes = {
        "mode": Mode.CPU_SYNC,
        "elche": ElcheSpec(partition_ratios=(0.25, 0.75)),
        "cohorts": [cohort],
    }
    with loopback_run(tmp_path, BLOBS, 2, ["--epochs", "40", "--work", "4"], zygote=zygote, **changes) as run:
        first, second = run.start_member(0), run.start_member(1)
        run.wait_state("they train", lambda state: quotas(state) == {first.uid: 1, second.uid: 3})
        first.signal_ranks(signal.SIGKILL)
        assert first.wait() == PodExit.KILLED
        successor = run.start_member(0, incarnation=2)
        state = run.wait_state("its successor trains", lambda state: successor.uid in quotas(state))
        assert quotas(state) == {second.uid: 3, successor.uid: 1} and state["notes"] == []
