"""The runtime as it runs in a cluster, on loopback: coordinator, agents and ranks are real processes."""

import os
import random
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fdl_api.exitcodes import PodExit
from fdl_api.reasons import Ended, Refusal
from fdl_api.run import ElcheSpec
from fdl_api.termination import Cause, Saved
from tests.unit.trainer.cluster import LoopbackRun, Zygote, loopback_run, wait_for

SCRIPTS = Path(__file__).parent / "scripts"
BLOBS = SCRIPTS / "blobs.py"


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """One torch for all tests here."""
    started = Zygote(tmp_path_factory.mktemp("zygote"))
    yield started
    started.close()


def trained(state: dict[str, Any], windows: int = 1) -> bool:
    return bool(state["window"] >= windows)


def trained_past(windows: int, state: dict[str, Any]) -> bool:
    return trained(state, windows)


def deaths_reach(count: int, state: dict[str, Any]) -> bool:
    return bool(state["deaths"] >= count)


def assert_complete(run: LoopbackRun, samples: int, epochs: int, ranks: int) -> dict[str, Any]:
    """The run succeeded: samples add up, survivors hold the same bits, and the last checkpoint is there."""
    state: dict[str, Any] = run.wait_state(
        "the run succeeds", lambda state: state["outcome"] in ("succeeded", "failed")
    )
    assert state["outcome"] == "succeeded", (state, run.logs())
    proof = run.proof(samples, epochs)
    assert proof.ok, (proof, run.logs())
    digests = run.digests()
    assert len(digests) == ranks and len(set(digests.values())) == 1, (digests, run.logs())
    assert state["checkpoint"]["final"] and state["samples"] == samples * epochs
    assert (run.checkpoints / state["checkpoint"]["path"] / "MANIFEST.json").is_file()
    return state


def test_three_ranks_end_with_the_same_bits_and_every_sample_once(tmp_path: Path) -> None:
    with loopback_run(tmp_path, BLOBS, 3) as run:
        members = [run.start_member(ordinal) for ordinal in range(3)]
        assert [member.wait() for member in members] == [0, 0, 0], run.logs()
        state = assert_complete(run, 4096, 2, ranks=3)
        assert state["metrics"]["accuracy"] > 0.85
        words = members[0].words()
        assert (words.cause, words.reason, words.saved) == (Cause.COMPLETE, Ended.COMPLETED, Saved.SAVED)


def test_a_killed_rank_is_replaced_without_a_restart(tmp_path: Path, zygote: Zygote) -> None:
    with loopback_run(tmp_path, BLOBS, 3, ["--epochs", "40", "--work", "4"], zygote=zygote) as run:
        members = [run.start_member(ordinal) for ordinal in range(3)]
        run.wait_state("training goes on", lambda state: trained(state, 5))
        members[1].signal_ranks(signal.SIGKILL)
        assert members[1].wait() == PodExit.KILLED
        assert members[1].words().reason == Ended.KILLED
        run.wait_state("two go on", lambda state: state["epoch"] >= 2 and len(state["ranks"]) == 2)
        run.start_member(1, incarnation=2)
        run.wait_state("three train again", lambda state: len(state["ranks"]) == 3)
        assert [members[0].wait(), members[2].wait(), run.members[-1].wait()] == [0, 0, 0], run.logs()
        assert_complete(run, 4096, 40, ranks=3)


def test_sigterm_is_a_counted_leave(tmp_path: Path, zygote: Zygote) -> None:
    with loopback_run(tmp_path, BLOBS, 3, ["--epochs", "30", "--work", "4"], zygote=zygote) as run:
        members = [run.start_member(ordinal) for ordinal in range(3)]
        run.wait_state("training goes on", lambda state: trained(state, 5))
        members[2].terminate()
        assert members[2].wait() == PodExit.LEFT, run.logs()
        words = members[2].words()
        assert words.cause is Cause.PREEMPTION and words.saved in (Saved.COMMITTED, Saved.SAVED), words
        assert [member.wait() for member in members[:2]] == [0, 0], run.logs()
        state = assert_complete(run, 4096, 30, ranks=2)
        assert state["deaths"] == 0
        assert run.proof(4096, 30).uncommitted == 0, "a leaver's work is counted to the last batch"


def test_training_survives_a_restart_of_the_coordinator(tmp_path: Path, zygote: Zygote) -> None:
    with loopback_run(tmp_path, BLOBS, 3, ["--epochs", "60", "--work", "4"], zygote=zygote) as run:
        members = [run.start_member(ordinal) for ordinal in range(3)]
        before = run.wait_state("training goes on", lambda state: trained(state, 5))
        run.kill_coordinator()
        commits = committed_windows(run)
        wait_for("windows commit without a coordinator", lambda: committed_windows(run) > commits + 5)
        run.start_coordinator()
        after = run.wait_state("it knows the training again", lambda state: trained(state, before["window"]))
        assert after["epoch"] == before["epoch"] and after["generation"] == 2
        assert [member.wait() for member in members] == [0, 0, 0], run.logs()
        assert assert_complete(run, 4096, 60, ranks=3)["deaths"] == 0


def test_a_death_without_coordinator_waits_for_it_and_no_longer(tmp_path: Path, zygote: Zygote) -> None:
    with loopback_run(tmp_path, BLOBS, 3, ["--epochs", "60", "--work", "4"], zygote=zygote) as run:
        members = [run.start_member(ordinal) for ordinal in range(3)]
        run.wait_state("training goes on", lambda state: trained(state, 5))
        run.kill_coordinator()
        members[1].kill()
        run.start_coordinator()
        run.wait_state("two go on", lambda state: len(state["ranks"]) == 2 and trained(state, 6))
        assert [members[0].wait(), members[2].wait()] == [0, 0], run.logs()
        assert_complete(run, 4096, 60, ranks=2)


def test_silence_of_all_is_told_and_costs_nobody_his_place(tmp_path: Path, zygote: Zygote) -> None:
    with loopback_run(tmp_path, BLOBS, 2, ["--epochs", "60", "--work", "4"], zygote=zygote) as run:
        members = [run.start_member(ordinal) for ordinal in range(2)]
        run.wait_state("training goes on", lambda state: trained(state, 5))
        for member in members:
            member.signal_ranks(signal.SIGSTOP)
        state = run.wait_state("nobody is heard", lambda state: state["unheardSince"])
        assert (state["deaths"], state["outcome"], state["samplesPerSecond"]) == (0, "training", 0.0)
        for member in members:
            member.signal_ranks(signal.SIGCONT)
        run.wait_state("they are heard again", lambda state: not state["unheardSince"])
        assert [member.wait() for member in members] == [0, 0], run.logs()
        assert assert_complete(run, 4096, 60, ranks=2)["deaths"] == 0


def test_who_stays_frozen_is_killed_by_its_agent_which_says_so(tmp_path: Path, zygote: Zygote) -> None:
    with loopback_run(tmp_path, BLOBS, 2, ["--epochs", "60", "--work", "4"], zygote=zygote) as run:
        members = [run.start_member(ordinal) for ordinal in range(2)]
        run.wait_state("training goes on", lambda state: trained(state, 5))
        members[1].signal_ranks(signal.SIGSTOP)
        assert members[1].wait() == PodExit.FENCED, run.logs()
        assert "Rank 0 was killed by this member's own agent: member digits-cpu-1-1 was given up" in run.logs()
        assert "from outside" not in run.logs()
        assert members[0].wait() == 0, run.logs()


def test_a_zombie_is_fenced(tmp_path: Path, zygote: Zygote) -> None:
    with loopback_run(tmp_path, BLOBS, 3, ["--epochs", "80", "--work", "4"], zygote=zygote) as run:
        members = [run.start_member(ordinal) for ordinal in range(3)]
        run.wait_state("training goes on", lambda state: trained(state, 5))
        members[1].signal_ranks(signal.SIGSTOP)
        run.wait_state("two go on", lambda state: state["deaths"] == 1 and len(state["ranks"]) == 2)
        members[1].signal_ranks(signal.SIGCONT)
        assert members[1].wait() == PodExit.FENCED, run.logs()
        assert members[1].words().cause is Cause.FENCED
        assert [members[0].wait(), members[2].wait()] == [0, 0], run.logs()
        assert_complete(run, 4096, 80, ranks=2)


def test_another_model_is_refused_by_name_and_the_run_goes_on(tmp_path: Path, zygote: Zygote) -> None:
    with loopback_run(tmp_path, BLOBS, 2, ["--epochs", "40", "--work", "4"], zygote=zygote) as run:
        members = [run.start_member(ordinal) for ordinal in range(2)]
        run.wait_state("training goes on", lambda state: trained(state, 3))
        other = run.config.model_copy(
            update={"script": run.config.script.model_copy(update={"args": ["--epochs", "40", "--width", "65"]})}
        )
        (tmp_path / "other.json").write_text(other.model_dump_json(by_alias=True))
        stranger = run.start_member(2, FDL_RUN_FILE=str(tmp_path / "other.json"))
        assert stranger.wait() == PodExit.REFUSED, run.logs()
        words = stranger.words()
        assert words.reason == Refusal.MODEL_MISMATCH and "0.weight" in words.message and words.permanent, words
        assert [member.wait() for member in members] == [0, 0], run.logs()
        assert_complete(run, 4096, 40, ranks=2)


def test_resume_with_another_world_size(tmp_path: Path, zygote: Zygote) -> None:
    with loopback_run(tmp_path, BLOBS, 3, ["--epochs", "40", "--work", "4"], zygote=zygote) as run:
        members = [run.start_member(ordinal) for ordinal in range(3)]
        run.wait_state("training goes on", lambda state: trained(state, 10))
        for member in members:
            member.terminate()
        assert [member.wait() for member in members] == [PodExit.LEFT] * 3, run.logs()
        words = [member.words() for member in members]
        assert {said.saved for said in words} <= {Saved.COMMITTED, Saved.SAVED}, words  # one may go before the others
        saved = max(int(path.name[5:]) for path in run.checkpoints.glob("ckpt-*"))
        assert saved >= max(10, *(said.last_window or 0 for said in words)), words
        run.new_attempt(join=run.config.join.model_copy(update={"target_members": 2}))
        again = [run.start_member(ordinal, incarnation=2) for ordinal in range(2)]
        first = run.wait_state("it goes on", lambda state: len(state["ranks"]) == 2)
        assert first["window"] > saved
        assert [member.wait() for member in again] == [0, 0], run.logs()
        assert f"resumed after window {saved}: The anchor of" in run.logs(lines=10_000)
        assert_complete(run, 4096, 40, ranks=2)


def test_a_start_from_the_checkpoint_of_a_finished_training_ends_at_once(tmp_path: Path, zygote: Zygote) -> None:
    """All died between the last checkpoint and the end, for instance in the script's evaluation."""
    with loopback_run(tmp_path, BLOBS, 2, ["--epochs", "2", "--work", "1"], zygote=zygote) as run:
        members = [run.start_member(ordinal) for ordinal in range(2)]
        assert [member.wait() for member in members] == [0, 0], run.logs()
        run.new_attempt()
        again = [run.start_member(ordinal, incarnation=2) for ordinal in range(2)]
        assert [member.wait() for member in again] == [0, 0], run.logs()
        assert run.wait_state("the figures", lambda state: bool(state["metrics"]))["outcome"] == "succeeded"


def test_all_die_long_before_the_first_interval_is_over(tmp_path: Path, zygote: Zygote) -> None:
    """Case D10: a first checkpoint is written at once, so that successors need not begin anew (nor be refused to)."""
    with loopback_run(tmp_path, BLOBS, 2, ["--epochs", "30", "--work", "4"], zygote=zygote) as run:
        members = [run.start_member(ordinal) for ordinal in range(2)]
        first = run.wait_state("a checkpoint", lambda state: state.get("checkpoint"))["checkpoint"]["window"]
        for member in members:
            member.kill()
        again = [run.start_member(ordinal, incarnation=2) for ordinal in range(2)]
        state = run.wait_state("training goes on", lambda state: len(state["ranks"]) == 2 and state["deaths"] == 2)
        assert state["window"] > first
        assert [member.wait() for member in again] == [0, 0], run.logs()
        assert_complete(run, 4096, 30, ranks=2)


def test_copies_that_stay_far_apart_send_the_training_back_to_its_checkpoint(tmp_path: Path, zygote: Zygote) -> None:
    """With so small a threshold every window is above the limit: each start gets as far as the guard's patience."""
    elche = ElcheSpec.model_validate({"divergenceThreshold": 1e-6})
    with loopback_run(tmp_path, BLOBS, 2, ["--epochs", "40", "--work", "4"], zygote=zygote, elche=elche) as run:
        for incarnation in (1, 2):
            members = [run.start_member(ordinal, incarnation=incarnation) for ordinal in range(2)]
            assert [member.wait() for member in members] == [PodExit.DIVERGED] * 2, run.logs()
            words = [member.words() for member in members]
            assert {(said.reason, said.permanent) for said in words} == {(Ended.DIVERGED, False)}
            assert sorted(said.cause for said in words) == [Cause.APP, Cause.PREEMPTION], "one of them is billed"
            assert len({said.last_window for said in words}) == 1, "all go back from the same window"
            saved = max(int(path.name[5:]) for path in run.checkpoints.glob("ckpt-*"))
            assert saved < (words[0].last_window or 0)
            assert f"the newest checkpoint, of window {saved} " in words[0].message
            assert incarnation == 1 or f"resumed after window {saved}: " in run.logs(lines=10_000)


def test_a_stuck_script_is_ended_when_its_grace_is_over(tmp_path: Path, zygote: Zygote) -> None:
    """It is alive, so the others wait for it; SIGTERM (a drain, a person) ends it, whatever the script does."""
    source = BLOBS.read_text().replace(
        "        session.report(loss)\n", "        session.report(loss)\n        maybe_hang()\n"
    )
    hang = """
def maybe_hang() -> None:
    if os.environ["FDL_ORDINAL"] == "1" and os.path.exists(HANG):
        threading.Event().wait()


fdl_trainer.run(main)
"""
    script, switch = tmp_path / "train.py", tmp_path / "hang"
    source = source.replace("import argparse\n", f"import argparse, os, threading\nHANG = {str(switch)!r}\n")
    script.write_text(source.replace("\nfdl_trainer.run(main)\n", hang))
    with loopback_run(tmp_path, script, 2, ["--epochs", "20", "--work", "4"], zygote=zygote) as run:
        members = [run.start_member(0), run.start_member(1, grace=3.0)]
        run.wait_state("training goes on", lambda state: trained(state, 3))
        switch.touch()
        run.wait_state("one waits for the other", lambda state: phases(state) == ["reduce", "train"])
        members[1].terminate()
        assert members[1].wait() == PodExit.TERMINATED, run.logs()
        words = members[1].words()
        assert (words.cause, words.saved) == (Cause.PREEMPTION, Saved.INCOMPLETE), words
        assert "terminationGracePeriodSeconds" in words.message
        assert members[0].wait() == 0, run.logs()
        assert_complete(run, 4096, 20, ranks=1)


def phases(state: dict[str, Any]) -> list[str]:
    """What the members do, by ordinal."""
    return [item["phase"] for item in sorted(state["members"], key=lambda item: item["ordinal"])]


def test_a_member_of_two_ranks_stands_and_falls_as_one(tmp_path: Path, zygote: Zygote) -> None:
    cohort = {"name": "cpu", "vendor": "cpu", "minReplicas": 0, "maxReplicas": 2, "devicesPerReplica": 2}
    with loopback_run(tmp_path, BLOBS, 2, ["--epochs", "30", "--work", "4"], zygote=zygote, cohorts=[cohort]) as run:
        members = [run.start_member(ordinal) for ordinal in range(2)]
        run.wait_state("four ranks train", lambda state: trained(state, 3) and len(state["ranks"]) == 4)
        os.kill(members[1].ranks()[1], signal.SIGKILL)
        assert members[1].wait() == PodExit.KILLED, run.logs()
        words = members[1].words()
        assert (words.reason, words.rank) == (Ended.KILLED, 1), words
        run.wait_state("two ranks go on", lambda state: len(state["ranks"]) == 2 and state["epoch"] >= 2)
        assert members[0].wait() == 0, run.logs()
        assert_complete(run, 4096, 30, ranks=1)


def test_twenty_kills_at_random_moments(tmp_path: Path, zygote: Zygote) -> None:
    """Case T3: kill and replace at any point of a window, over and over: no hang, and no sample lost."""
    dice = random.Random(20)
    with loopback_run(tmp_path, BLOBS, 4, ["--epochs", "400", "--work", "3"], zygote=zygote) as run:
        living = [run.start_member(ordinal) for ordinal in range(4)]
        run.wait_state("training goes on", lambda state: trained(state, 3))
        for kill in range(20):
            victim = living.pop(dice.randrange(len(living)))
            time.sleep(dice.random() * 0.1)  # the random moment
            window = run.state()["window"]
            victim.kill()
            died = run.wait_state("the death is seen", partial(deaths_reach, kill + 1))
            state = run.wait_state("the survivors go on", partial(trained_past, max(window, died["window"]) + 2))
            assert state["deaths"] == kill + 1, (state, run.logs())
            living.append(run.start_member(victim.ordinal, incarnation=victim.incarnation + 1))
            run.wait_state("the successor takes part", lambda state: len(state["ranks"]) == 4)
        assert [member.wait() for member in living] == [0, 0, 0, 0], run.logs()
        assert_complete(run, 4096, 400, ranks=4)


def committed_windows(run: LoopbackRun) -> int:
    """Commits in the first rank's index log."""
    return sum(line.startswith('{"k":"commit"') for line in run.first_audit().read_text().splitlines())


def test_a_kill_inside_the_reduce(tmp_path: Path, zygote: Zygote) -> None:
    """One rank is held for a moment so that the others wait in the reduce; one of these is killed there."""
    with loopback_run(tmp_path, BLOBS, 4, ["--epochs", "150", "--work", "3"], zygote=zygote) as run:
        members = [run.start_member(ordinal) for ordinal in range(4)]
        run.wait_state("training goes on", lambda state: trained(state, 5))
        held, victim = members[3], members[1]
        held.signal_ranks(signal.SIGSTOP)
        phases = run.wait_state(
            "the others are in the reduce",
            lambda state: [item["phase"] for item in state["members"]].count("reduce") >= 3,
            seconds=1.5,  # the held rank must not be silent for longer than a heartbeat's limit
        )
        assert phases["deaths"] == 0
        victim.kill()
        held.signal_ranks(signal.SIGCONT)
        run.wait_state("three go on", lambda state: len(state["ranks"]) == 3 and state["deaths"] == 1)
        assert [member.wait() for member in members if member is not victim] == [0, 0, 0], run.logs()
        assert_complete(run, 4096, 150, ranks=3)
