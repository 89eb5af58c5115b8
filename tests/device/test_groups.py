"""NCCL groups between two devices: sums, ways, a peer's death in the middle of a collective."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fdl_api.wire import Device
from fdl_trainer.preflight import preflight
from fdl_trainer.transport import SWITCHES, Level
from tools.loopback.processes import wait_for

pytestmark = pytest.mark.devices(2)
Keep = Callable[[str, Any], None]
LIMIT = 120.0


class Started:
    """A peer's process."""

    def __init__(self, scenario: str, rank: int, folder: Path, device: int, **more: str) -> None:
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": str(device), "OMP_NUM_THREADS": "1", **more}
        command = [sys.executable, "-m", "tests.device.peer", scenario, str(rank), str(folder)]
        self.errors = (folder / f"{scenario}{rank}.log").open("w+")
        self.process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=self.errors, text=True)

    def answer(self) -> dict[str, Any]:
        out, _ = self.process.communicate(timeout=LIMIT)
        assert self.process.returncode == 0, self.log()
        result = json.loads(out.strip().splitlines()[-1])
        assert isinstance(result, dict)
        return result

    def log(self) -> str:
        self.errors.seek(0)
        return self.errors.read()[-6000:]


@contextmanager
def peers(*started: Started) -> Iterator[None]:
    try:
        yield
    finally:
        for peer in started:
            if peer.process.poll() is None:
                peer.process.kill()
            peer.process.wait(10)
            peer.errors.close()


@pytest.mark.parametrize("level", Level)
def test_two_devices_sum_over_each_way(level: Level, tmp_path: Path, figure: Keep) -> None:
    pair = [Started("sums", rank, tmp_path, rank, **SWITCHES[level]) for rank in range(2)]
    with peers(*pair):
        first, second = (peer.answer() for peer in pair)
        log = pair[0].log()
    assert first["wrong"] == second["wrong"] == []
    assert first["digest"] == second["digest"], "all ranks hold the same bits"
    assert first["aborts_pending"] == second["aborts_pending"] == 0
    assert f"NCCL over 2 ranks by {level}" in log, log
    figure(f"form a group of two, {level}, s", round(first["formed_s"], 3))
    figure(f"all-reduce of 250 MB, {level}, median ms", statistics.median(first["all_reduce_250MB_ms"]))
    figure(
        f"all-reduce of 25 MB in host memory, {level}, median ms",
        statistics.median(first["all_reduce_25MB_from_host_ms"]),
    )


def test_gloo_sums_buffers_on_devices(tmp_path: Path, figure: Keep) -> None:
    pair = [Started("staged", rank, tmp_path, rank) for rank in range(2)]
    with peers(*pair):
        found = [peer.answer() for peer in pair]
    assert all(result["right"] and result["given"] == [1.0] * 5 for result in found), found
    figure("Gloo all-reduce of 25 MB from devices, median ms", statistics.median(found[0]["all_reduce_25MB_ms"]))


@pytest.mark.parametrize("attempt", range(4))
def test_a_survivor_works_with_the_next_member_before_the_dead_communicator_is_gone(
    attempt: int, tmp_path: Path, figure: Keep
) -> None:
    survivor, victim = (Started("death", rank, tmp_path, rank) for rank in range(2))
    spare = Started("standby", 1, tmp_path, 1)
    with peers(survivor, victim, spare):
        for name in ("ready0", "ready1", "standby"):
            wait_for(name, (tmp_path / name).exists, LIMIT)
        time.sleep(0.1 + 0.037 * attempt)  # into one of thousands of collectives
        victim.process.kill()
        draft = tmp_path / "draft"
        draft.write_text(str(time.time()))
        draft.rename(tmp_path / "word")
        result = survivor.answer()
        assert spare.answer()["sum"] == 4.0
    assert result["rounds"] > 0 and result["sum"] == 4.0 and result["finite"] and result["aborts_pending"] == 0, result
    for key in ("left_ms", "worked_ms", "computed_ms", "aborted_ms"):
        figure(f"after a SIGKILL inside an all-reduce: {key.removesuffix('_ms')}, ms", round(result[key], 1))


def test_two_tiers_sum_as_one_flat_group_with_nccl_inside_a_vendor(tmp_path: Path) -> None:
    three = [Started("tiered", rank, tmp_path, rank % 2) for rank in range(3)]
    with peers(*three):
        found = [peer.answer() for peer in three]
        assert (
            "NCCL inside each of 2 domains (nvidia NCCL; amd NCCL) and Gloo between them over 3 ranks" in three[0].log()
        )
    assert len({result["digest"] for result in found}) == 1, "all ranks hold the same bits"
    for result in found:
        assert result["error"] < 1e-5 and result["given"] == [2] * 9 and result["aborts_pending"] == 0, result["error"]


def test_a_peer_that_never_comes_holds_up_no_later_group(tmp_path: Path, figure: Keep) -> None:
    pair = [Started("alone", 0, tmp_path, 0), Started("other", 1, tmp_path, 1)]
    with peers(*pair):
        first, second = (peer.answer() for peer in pair)
    assert first["sum"] == second["sum"] == 2.0
    figure("form a group beside one that hangs, s", round(first["formed_s"], 3))


@pytest.mark.parametrize("first", Level)
def test_the_preflight_finds_the_best_way_that_is_left(first: Level, figure: Keep) -> None:
    devices = [Device.model_validate({"index": index, "vendor": "nvidia", "arch": "sm_90"}) for index in range(2)]
    started = time.monotonic()
    choice = preflight(devices, {**os.environ, **SWITCHES[first]}, "this-node")
    assert choice.level is first, choice.sentence
    assert f"goes by {first}" in choice.sentence, choice.sentence
    figure("preflight of two devices, s", round(time.monotonic() - started, 2))
