"""Whole runs on devices: the coordinator, and for each device a member with its agent and its rank."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fdl_api.exitcodes import PodExit
from fdl_api.reasons import Ended
from fdl_api.run import ElcheSpec, Mode, RankSpans
from fdl_api.runconfig import CohortConfig, MemberEnv, RunConfig
from fdl_trainer.audit import prove
from fdl_trainer.groups.nccl import nccl_version
from tools import loopback

SCRIPTS = Path(__file__).with_name("scripts")
VENDOR = "amd" if torch.version.hip else "nvidia"
COHORT = {MemberEnv.COHORT: "gpu"}
Keep = Callable[[str, Any], None]


def on(device: int) -> dict[str, str]:
    """A member that sees one of this machine's devices."""
    return {**COHORT, "CUDA_VISIBLE_DEVICES": str(device)}


def start(
    run: loopback.LoopbackRun, ordinal: int, environment: dict[str, str], incarnation: int = 1
) -> loopback.MemberProcess:
    return run.start_member(ordinal, incarnation, 30.0, **environment)


@contextmanager
def gpu_run(
    folder: Path,
    mode: Mode,
    members: int,
    *args: str,
    script: str = "mixed.py",
    devices: int = 1,
    vendor: str = VENDOR,
    spans: RankSpans = RankSpans.DEVICE,
) -> Iterator[loopback.LoopbackRun]:
    values = loopback.run_values(folder, SCRIPTS / script, members, list(args))
    cohort = CohortConfig.model_validate(
        {
            "name": "gpu",
            "vendor": vendor,
            "minReplicas": 1,
            "maxReplicas": 4,
            "devicesPerReplica": devices,
            "rankSpans": spans,
        }
    )
    changes = {"mode": mode, "cohorts": [cohort], "elche": ElcheSpec(anchor=8, max_anchor=32)}
    with loopback.started(loopback.LoopbackRun(folder, RunConfig.model_validate({**values, **changes}))) as run:
        yield run


def text(run: loopback.LoopbackRun) -> str:
    return "\n".join(path.read_text(errors="replace") for path in sorted(run.folder.glob("*.log")))


def digests(run: loopback.LoopbackRun) -> list[list[str]]:
    return [line.split() for line in text(run).splitlines() if line.startswith("digest ")]


@pytest.mark.devices(2)
@pytest.mark.parametrize(
    ("mode", "options"),
    [
        (Mode.NCCL_CADENCE, []),
        (Mode.NCCL_SYNC, []),
        (Mode.CPU_CADENCE, []),
        (Mode.CPU_SYNC, []),
        (Mode.CPU_ASYNC, []),
        (Mode.NCCL_CADENCE, ["--amp"]),
        (Mode.NCCL_CADENCE, ["--amp", "--compile"]),
    ],
)
def test_two_members_train_one_model(mode: Mode, options: list[str], tmp_path: Path, figure: Keep) -> None:
    with gpu_run(tmp_path, mode, 2, *options) as run:
        members = [start(run, ordinal, on(ordinal)) for ordinal in range(2)]
        assert [member.wait() for member in members] == [0, 0], run.logs(60)
        state = run.state()
        found = digests(run)
        carried = "NCCL over 2 ranks by peer-to-peer" if mode.startswith("nccl") else "Gloo over 2 ranks"
        assert carried in text(run), run.logs(60)
    assert len(found) == 2 and found[0][1] == found[1][1], f"the ranks hold the same bits: {found}"
    assert found[0][4] != found[1][4], "each rank had a device of its own"
    assert state["metrics"]["accuracy"] > 0.9, state
    assert prove(run.checkpoints.glob("audit/*.jsonl"), 8192, 2).ok
    figure(f"{mode} {' '.join(options)}: accuracy", state["metrics"]["accuracy"])


@pytest.mark.devices(2)
def test_one_member_with_two_devices_finds_its_way_and_gives_each_rank_its_own(tmp_path: Path) -> None:
    with gpu_run(tmp_path, Mode.NCCL_CADENCE, 1, devices=2) as run:
        member = start(run, 0, COHORT)
        assert member.wait() == 0, run.logs(60)
        found = digests(run)
        assert "NCCL between the 2 devices of this member on node node-0 goes by peer-to-peer." in text(run)
    assert len(found) == 2 and found[0][1] == found[1][1] and found[0][4] != found[1][4], found


@pytest.mark.devices(2)
def test_a_rank_that_spans_two_devices_trains_the_model_of_one(tmp_path: Path) -> None:
    models = []
    for devices, spans in ((2, RankSpans.MEMBER), (1, RankSpans.DEVICE)):
        folder = tmp_path / spans
        folder.mkdir()
        with gpu_run(folder, Mode.CPU_CADENCE, 1, script="sharded.py", devices=devices, spans=spans) as run:
            assert start(run, 0, COHORT if devices == 2 else on(0)).wait() == 0, run.logs(80)
            held = [line.split() for line in text(run).splitlines() if line.startswith("held ")]
            assert len({words[3] for words in held}) == devices, f"each process has a device of its own: {held}"
            assert {words[1] for words in held} == {"DTensor" if devices == 2 else "Parameter"}, held
            state = run.state()
            assert prove(run.checkpoints.glob("audit/*.jsonl"), 2_000, 3).ok
            models.append(load_file(run.checkpoints / state["checkpoint"]["path"] / "model.safetensors"))
    sharded, whole = models
    assert sharded.keys() == whole.keys()
    for name, value in whole.items():
        torch.testing.assert_close(sharded[name], value, rtol=1e-6, atol=1e-9)


@pytest.mark.devices(2)
@pytest.mark.parametrize("mode", [Mode.NCCL_CADENCE, Mode.CPU_CADENCE])
def test_the_survivor_of_a_sigkill_goes_on_and_the_replacement_joins(mode: Mode, tmp_path: Path, figure: Keep) -> None:
    samples, epochs = 96_000, 8
    options = ["--samples", str(samples), "--epochs", str(epochs), "--work", "8"]
    with gpu_run(tmp_path, mode, 2, *options) as run:
        survivor, victim = (start(run, ordinal, on(ordinal)) for ordinal in range(2))
        run.wait_state("both train", lambda state: state["window"] >= 20 and len(state["ranks"]) == 2)
        victim.signal_ranks(signal.SIGKILL)
        killed = time.monotonic()
        after = run.wait_state("the survivor goes on", lambda state: state["deaths"] == 1 and state["recoveries"])
        victim.wait()
        window = after["window"]
        run.wait_state("alone", lambda state: state["window"] > window + 5 and len(state["ranks"]) == 1)
        start(run, 1, on(1), 2)
        run.wait_state("two again", lambda state: len(state["ranks"]) == 2, 120)
        joined = time.monotonic() - killed
        assert survivor.wait() == 0 and run.members[2].wait() == 0, run.logs(80)
        last, found = run.state(), digests(run)
        assert mode.startswith("cpu") or text(run).count("NCCL over 2 ranks by peer-to-peer") == 4, run.logs(80)
    assert len(found) == 2 and found[0][1] == found[1][1], found
    assert last["outcome"] == "succeeded" and last["deaths"] == 1, json.dumps(last)
    proof = prove(run.checkpoints.glob("audit/*.jsonl"), samples, epochs)
    assert proof.ok, proof
    figure(f"{mode}: from a rank's SIGKILL to the survivor's next commit, s", after["recoveries"])
    figure(f"{mode}: from the SIGKILL to a window with the replacement, s", round(joined, 2))


@pytest.mark.devices(2)
def test_cohorts_of_different_nccl_versions_meet_over_gloo(tmp_path: Path) -> None:
    values = loopback.run_values(tmp_path, SCRIPTS / "where.py", 2, [])
    cohorts = [
        CohortConfig.model_validate(
            {"name": name, "vendor": VENDOR, "minReplicas": 1, "maxReplicas": 2, "devicesPerReplica": 1, "nccl": pin}
        )
        for name, pin in (("gpu", None), ("pinned", ".".join(map(str, (nccl_version() or ())[:2]))))
    ]
    changes = {"mode": Mode.NCCL_CADENCE, "cohorts": cohorts, "elche": ElcheSpec(anchor=8, max_anchor=32)}
    with loopback.started(loopback.LoopbackRun(tmp_path, RunConfig.model_validate({**values, **changes}))) as run:
        members = [start(run, 0, on(0)), start(run, 1, {**on(1), MemberEnv.COHORT: "pinned"})]
        assert [member.wait() for member in members] == [0, 0], run.logs(60)
        assert "NCCL inside each of 2 domains (" in text(run), run.logs(60)
        assert prove(run.checkpoints.glob("audit/*.jsonl"), 4096, 2).ok


def test_cuda_touched_before_run_is_refused_with_the_line(tmp_path: Path) -> None:
    with gpu_run(tmp_path, Mode.CPU_CADENCE, 1, script="early.py") as run:
        member = start(run, 0, on(0))
        assert member.wait() == PodExit.USER_CODE, run.logs(60)
        words = member.words()
    line = (SCRIPTS / "early.py").read_text().splitlines().index("SCALE = torch.ones(1).cuda()") + 1
    assert words.reason == Ended.SCRIPT_RAISED and f"{SCRIPTS / 'early.py'}:{line}" in words.message, words
    assert "touched CUDA before fdl_trainer.run" in words.message


def test_a_member_without_a_device_is_refused_in_an_nccl_mode(tmp_path: Path) -> None:
    with gpu_run(tmp_path, Mode.NCCL_CADENCE, 1, vendor="cpu") as run:
        member = start(run, 0, on(0))
        assert member.wait() == PodExit.REFUSED, run.logs(60)
        words = member.words()
    for part in ("digits-cpu-0-1", "spec.mode", "cpu-cadence"):
        assert part in words.message, words


def test_a_cpu_member_beside_devices_trains_on_its_processor(tmp_path: Path) -> None:
    with gpu_run(tmp_path, Mode.CPU_CADENCE, 1, script="where.py", vendor="cpu") as run:
        member = start(run, 0, COHORT)
        assert member.wait() == 0, run.logs(60)
        assert "trained on cpu" in text(run), run.logs(60)


@pytest.mark.devices(2)
def test_a_device_and_a_processor_train_one_model_in_a_cpu_mode(tmp_path: Path) -> None:
    values = loopback.run_values(tmp_path, SCRIPTS / "where.py", 2, [])
    cohorts = [
        CohortConfig.model_validate(
            {"name": name, "vendor": vendor, "minReplicas": 1, "maxReplicas": 2, "devicesPerReplica": 1}
        )
        for name, vendor in (("gpu", VENDOR), ("cpu", "cpu"))
    ]
    changes = {"mode": Mode.CPU_CADENCE, "cohorts": cohorts, "elche": ElcheSpec(anchor=8, max_anchor=32)}
    with loopback.started(loopback.LoopbackRun(tmp_path, RunConfig.model_validate({**values, **changes}))) as run:
        members = [start(run, 0, on(0)), start(run, 1, {MemberEnv.COHORT: "cpu"})]
        assert [member.wait() for member in members] == [0, 0], run.logs(60)
        assert "trained on cpu" in text(run) and "trained on cuda:0" in text(run), run.logs(60)
        assert prove(run.checkpoints.glob("audit/*.jsonl"), 4096, 2).ok
