"""Whole runs of real processes in which a rank spans its member, held beside one process with the whole model."""

import os
import runpy
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from fdl_api.exitcodes import PodExit
from fdl_api.run import ElcheSpec, Mode, RankSpans
from fdl_api.runconfig import CohortConfig, MemberEnv
from fdl_trainer import audit
from fdl_trainer.checkpoint import newest_valid
from tests.unit.trainer.cluster import LoopbackRun, Zygote, loopback_run
from tests.unit.trainer.test_runtime_processes import SCRIPTS, trained

SHARDS = SCRIPTS / "shards.py"
SAMPLES, BATCH = 250, 16


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """One torch for all tests here."""
    started = Zygote(tmp_path_factory.mktemp("zygote"))
    yield started
    started.close()


def cohort(devices: int, name: str = "cpu", spans: RankSpans = RankSpans.MEMBER) -> CohortConfig:
    """Members of so many processes."""
    return CohortConfig(
        name=name, vendor="cpu", min_replicas=1, max_replicas=8, devices_per_replica=devices, rank_spans=spans
    )


Windows = list[dict[str, list[list[int]]]]


def windows_of(run: LoopbackRun) -> Windows:
    """Of each window that is in the final model, the batches of each rank by ordinal, from the index logs."""
    logs = audit._Logs()
    for path in sorted(run.checkpoints.glob("audit/*.jsonl")):
        audit._read(path, logs)
    assert not logs.problems, logs.problems
    return [
        {
            uid.split("-")[2]: [logs.batches[attempt, uid, window][i][1] for i in range(count)]
            for uid, count in ranks.items()
        }
        for (attempt, window), ranks in sorted(audit._counting_commits(logs).items())
    ]


Places = dict[str, list[float]]


def places_of(run: LoopbackRun) -> Places:
    """What ``session.progress`` was at each batch of each rank by ordinal, of all its incarnations in their order.

    The processes of a rank say the same, and none is a batch ahead of another: each line counts once.
    """
    places: Places = {}
    for member in run.members:
        said = dict.fromkeys(line for line in member.tail(2000).splitlines() if line.startswith("at "))
        places.setdefault(member.uid.split("-")[2], []).extend(float(line.split()[1]) for line in said)
    return places


def replayed(windows: Windows, epochs: int, places: Places | None) -> dict[str, torch.Tensor]:
    """The model that ranks of one process with a whole model each come to by these batches.

    Args:
        windows: the batches.
        epochs: passes that they make.
        places: where in the run each batch was trained; None: the rate did not follow it.
    """
    at = {uid: iter(found) for uid, found in (places or {}).items()}
    script = runpy.run_path(str(SHARDS))
    torch.manual_seed(0)
    committed: torch.nn.Module = script["Net"]()
    x, y = script["blobs"]()
    ranks: dict[str, tuple[torch.nn.Module, torch.optim.Optimizer]] = {}
    done = 0
    for window in windows:
        for uid, batches in window.items():
            began = done / (SAMPLES * epochs)
            if uid not in ranks:
                model = script["Net"]()
                ranks[uid] = model, script["optimizer"](model.parameters())
            model, optimizer = ranks[uid]
            model.load_state_dict(committed.state_dict())
            for number, indices in enumerate(batches):
                place = next(at[uid]) if places is not None else 0.5
                assert places is None or (place == began if number == 0 else began < place < 1.0), (window, place)
                for group in optimizer.param_groups:
                    group["lr"] = script["rate"](place)
                optimizer.zero_grad()
                torch.autograd.backward(torch.nn.functional.cross_entropy(model(x[indices]), y[indices]))
                torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
        weights = {uid: sum(map(len, batches)) for uid, batches in window.items()}
        states = {uid: ranks[uid][0].state_dict() for uid in window}
        total = sum(weights.values())
        committed.load_state_dict(
            {key: sum(weights[uid] * states[uid][key] for uid in window) / total for key in committed.state_dict()}
        )
        done += total
    assert done == SAMPLES * epochs
    assert not any(list(rest) for rest in at.values()), "a batch that was trained is in no window"
    return committed.state_dict()


def succeeded(run: LoopbackRun, epochs: int) -> dict[str, Any]:
    """The state of a run in which every sample was trained once."""
    state: dict[str, Any] = run.wait_state(
        "the run succeeds", lambda state: state["outcome"] in ("succeeded", "failed")
    )
    assert state["outcome"] == "succeeded", (state, run.logs())
    proof = run.proof(SAMPLES, epochs)
    assert proof.ok, (proof, run.logs())
    return state


def assert_same_as_whole(run: LoopbackRun, state: dict[str, Any], epochs: int, *, falling: bool = True) -> None:
    saved = load_file(run.checkpoints / state["checkpoint"]["path"] / "model.safetensors")
    expected = replayed(windows_of(run), epochs, places_of(run) if falling else None)
    assert saved.keys() == expected.keys()
    for key, value in expected.items():
        torch.testing.assert_close(saved[key], value, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize("processes", [2, 3])
def test_a_sharded_member_comes_to_the_parameters_of_a_whole_one(
    processes: int, tmp_path: Path, zygote: Zygote
) -> None:
    with loopback_run(tmp_path, SHARDS, 1, zygote=zygote, cohorts=[cohort(processes)]) as run:
        assert run.start_member(0).wait() == 0, run.logs()
        state = succeeded(run, 2)
        assert_same_as_whole(run, state, 2)
        places = Counter(line for line in run.members[0].tail(1000).splitlines() if line.startswith("at "))
        assert set(places.values()) == {processes}, "all processes are told the same progress, samples and rank"
        assert len(places) > SAMPLES // BATCH
        assert state["metrics"]["loss"] < 0.6, "evaluated by all processes at once"
        told = f"{2 * SAMPLES} samples trained (100 % of {2 * SAMPLES}), 1 rank"
        assert run.logs(1000).count(told) == 2, "the member's log and the coordinator's"


@pytest.mark.parametrize("mode", [Mode.CPU_CADENCE, Mode.CPU_ASYNC])
def test_it_averages_with_members_that_are_not_sharded(mode: Mode, tmp_path: Path, zygote: Zygote) -> None:
    cohorts = [cohort(2), cohort(1, "whole", RankSpans.DEVICE)]
    arguments = ["--epochs", "4"]
    with loopback_run(tmp_path, SHARDS, 2, arguments, zygote=zygote, cohorts=cohorts, mode=mode) as run:
        members = [run.start_member(0), run.start_member(1, **{MemberEnv.COHORT: "whole", MemberEnv.ORDINAL: "0"})]
        assert [member.wait() for member in members] == [0, 0], run.logs()
        state = succeeded(run, 4)
        assert len({uid for window in windows_of(run) for uid, batches in window.items() if batches}) == 2
        if mode is Mode.CPU_CADENCE:
            assert_same_as_whole(run, state, 4)
        assert state["metrics"]["loss"] < 0.6


@pytest.mark.parametrize("then", [cohort(3), cohort(1, spans=RankSpans.DEVICE)])
def test_its_checkpoint_is_whole_and_any_number_of_devices_goes_on_from_it(
    then: CohortConfig, tmp_path: Path, zygote: Zygote
) -> None:
    # At a constant rate: of the batches that died with the first member, their places are not told apart.
    hold = ["--epochs", "3", "--rate", "constant", "--hold", str(tmp_path / "go")]
    with loopback_run(tmp_path, SHARDS, 1, hold, zygote=zygote, cohorts=[cohort(2)]) as run:
        member = run.start_member(0)
        run.wait_state("a checkpoint is durable", lambda state: state.get("checkpoint") and trained(state))
        found, _ = newest_valid(run.checkpoints)
        assert found is not None and found.window == 1
        member.kill()
        (tmp_path / "go").touch()
        run.new_attempt(cohorts=[then])
        assert run.start_member(0).wait() == 0, run.logs()
        assert "resuming from" in run.logs(1000), run.logs()
        # Only a restored optimizer's momentum and step counts come to the parameters of a run without a break.
        assert_same_as_whole(run, succeeded(run, 3), 3, falling=False)


def test_the_death_of_a_process_is_the_death_of_its_member(tmp_path: Path, zygote: Zygote) -> None:
    hold = ["--hold", str(tmp_path / "go")]
    with loopback_run(tmp_path, SHARDS, 1, hold, zygote=zygote, cohorts=[cohort(2)]) as run:
        member = run.start_member(0)
        run.wait_state("a window is committed", trained)
        assert len(member.ranks()) == 2
        os.kill(max(member.ranks()), signal.SIGKILL)
        assert member.wait() == PodExit.KILLED, run.logs()
        assert member.words().message.startswith("Rank 0, in its process 1, was killed by SIGKILL"), member.words()


def test_a_member_that_is_asked_to_leave_does_so_in_order(tmp_path: Path, zygote: Zygote) -> None:
    arguments = ["--epochs", "400"]
    with loopback_run(tmp_path, SHARDS, 2, arguments, zygote=zygote, cohorts=[cohort(2)]) as run:
        members = [run.start_member(ordinal) for ordinal in range(2)]
        run.wait_state("both train", lambda state: trained(state, 3))
        members[1].terminate()
        assert members[1].wait() == PodExit.LEFT, run.logs()
        run.wait_state("the other goes on alone", lambda state: len(state["ranks"]) == 1)
        members[0].kill()


@pytest.mark.parametrize(
    ("arguments", "changes", "sentence"),
    [
        (["--shard", "none"], {}, "session.setup has no shard"),
        (["--shard", "part"], {}, "left the model's parameter first.weight as it is"),
        (["--step", "own"], {}, "call session.step(loss) once for each batch"),
        ([], {"elche": ElcheSpec(average="gradients", max_anchor=4)}, "spec.elche.average is gradients"),
    ],
)
def test_what_cannot_be_done_is_said(
    arguments: list[str], changes: dict[str, Any], sentence: str, tmp_path: Path, zygote: Zygote
) -> None:
    with loopback_run(tmp_path, SHARDS, 1, arguments, zygote=zygote, cohorts=[cohort(2)], **changes) as run:
        member = run.start_member(0)
        assert member.wait() == PodExit.USER_CODE, run.logs()
        assert sentence in member.words().message, member.words()
