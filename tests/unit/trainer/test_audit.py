import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fdl_trainer.audit import AuditLog, EpochProof, Proof, main, prove

SAMPLES = 12


class Logs:
    """Audit files of ranks that are named by one letter."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.open: dict[tuple[str, int], AuditLog] = {}

    def rank(self, name: str, attempt: int = 1) -> AuditLog:
        if (name, attempt) not in self.open:
            self.open[name, attempt] = AuditLog(self.directory, f"pod-{name}", 0, f"{name}{attempt}", attempt)
        return self.open[name, attempt]

    def prove(self, epochs: int = 1) -> Proof:
        return prove(self.directory.glob("*.jsonl"), SAMPLES, epochs)


@pytest.fixture
def logs(tmp_path: Path) -> Logs:
    return Logs(tmp_path / "audit")


def test_two_ranks_that_share_the_data_prove_it(logs: Logs) -> None:
    a, b = logs.rank("a"), logs.rank("b")
    a.batch(1, 0, 0, [0, 5, 2])
    a.batch(1, 1, 0, [3, 4, 1])
    b.batch(1, 0, 0, [6, 7, 8])
    for rank in (a, b):
        rank.commit(1, 1, {"a1": 2, "b1": 1})
    b.batch(2, 0, 0, [9, 10, 11])
    for rank in (a, b):
        rank.commit(1, 2, {"a1": 0, "b1": 1})
    proof = logs.prove()
    assert proof == Proof((EpochProof(0, 12, 0, 0),), windows=2, void=0, uncommitted=0, problems=())
    assert proof.ok


def whole(logs: Logs, windows: dict[int, list[int]], name: str = "a", attempt: int = 1) -> AuditLog:
    rank = logs.rank(name, attempt)
    for window, indices in windows.items():
        rank.batch(window, 0, 0, indices)
        rank.commit(1, window, {f"{name}{attempt}": 1})
    return rank


def test_missing_and_repeated_samples_are_named(logs: Logs) -> None:
    whole(logs, {1: [0, 1, 2, 3, 4, 5], 2: [5, 6, 7, 8, 9, 9]})
    proof = logs.prove()
    assert not proof.ok
    assert proof.epochs == (EpochProof(0, 12, 2, 2, (10, 11), (5, 9)),)


def test_each_pass_is_proved_for_itself(logs: Logs) -> None:
    rank = logs.rank("a")
    rank.batch(1, 0, 0, list(range(12)))
    rank.batch(1, 1, 1, list(range(11)))
    rank.commit(1, 1, {"a1": 2})
    proof = logs.prove(epochs=2)
    assert [epoch.missing for epoch in proof.epochs] == [0, 1]
    assert not proof.ok


def test_work_that_no_commit_contains_does_not_count(logs: Logs) -> None:
    """The dead one's batches, and those beyond what the tail said, were trained again by others."""
    logs.rank("dead").batch(1, 0, 0, [0, 1])
    a = logs.rank("a")
    a.batch(1, 0, 0, list(range(6)))
    a.batch(1, 1, 0, [6, 7])
    a.commit(2, 1, {"a1": 1})
    a.batch(2, 0, 0, [6, 7, 8, 9, 10, 11])
    a.commit(2, 2, {"a1": 1})
    proof = logs.prove()
    assert proof.ok
    assert proof.uncommitted == 4


def test_a_commit_that_only_the_dead_held_is_void(logs: Logs) -> None:
    a, dead = logs.rank("a"), logs.rank("dead")
    a.batch(1, 0, 0, [0, 1, 2, 3, 4, 5])
    dead.batch(1, 0, 0, [6, 7, 8, 9, 10, 11])
    dead.commit(1, 1, {"a1": 1, "dead1": 1})
    a.commit(2, 1, {"a1": 1})
    a.batch(2, 0, 0, [6, 7, 8, 9, 10, 11])
    a.commit(2, 2, {"a1": 1})
    proof = logs.prove()
    assert proof.ok
    assert proof.void == 1


def test_a_part_that_went_on_with_a_replaced_coordinator_does_not_count(logs: Logs) -> None:
    """It was cut off, had epochs of its own, and came further than the run in as many windows."""
    a, apart = logs.rank("a"), logs.rank("apart")
    a.batch(1, 0, 0, [0, 1, 2, 3])
    a.commit(1, 1, {"a1": 1})
    apart.commit(1, 1, {"a1": 1})
    for window in (2, 3, 4):
        apart.batch(window, 0, 0, [window + 2])
        apart.commit(2, window, {"apart1": 1})
    a.batch(2, 0, 0, [4, 5, 6, 7])
    a.commit(4097, 2, {"a1": 1})
    a.batch(3, 0, 0, [8, 9, 10, 11])
    a.commit(4097, 3, {"a1": 1})
    proof = logs.prove()
    assert proof.ok, proof
    assert (proof.windows, proof.void) == (3, 3)


def test_a_resume_voids_what_the_attempt_before_committed_above_it(logs: Logs) -> None:
    whole(logs, {1: [0, 1, 2, 3], 2: [4, 5, 6, 7], 3: [8, 9]})
    logs.rank("b", 2).resume(1)
    whole(logs, {2: [4, 5], 3: [6, 7, 8, 9, 10, 11]}, "b", 2)
    proof = logs.prove()
    assert proof.problems == ()
    assert proof.ok
    assert (proof.windows, proof.void, proof.uncommitted) == (3, 2, 6)


def test_a_later_resume_from_further_back_voids_the_attempt_between_too(logs: Logs) -> None:
    whole(logs, {1: [0, 1, 2, 3], 2: [4, 5, 6, 7]})
    logs.rank("b", 2).resume(2)
    whole(logs, {3: [8, 9]}, "b", 2)
    logs.rank("c", 3).resume(1)
    whole(logs, {2: [4, 5, 6, 7, 8, 9, 10, 11]}, "c", 3)
    assert logs.prove().ok


def test_work_that_a_rank_gave_up_is_handed_out_anew(logs: Logs) -> None:
    """Its lease of the open window became another; the live model was put back to the last commit."""
    a = logs.rank("a")
    a.batch(1, 0, 0, [0, 1, 2])
    a.batch(1, 1, 0, [3, 4])
    a.void(1)
    whole(logs, {1: list(range(12))})
    proof = logs.prove()
    assert proof.ok
    assert proof.uncommitted == 5


def test_an_attempt_that_starts_again_when_all_had_died_voids_what_no_checkpoint_holds(logs: Logs) -> None:
    a, b = logs.rank("a"), logs.rank("b")
    a.resume(0, epoch=1)
    a.batch(1, 0, 0, [0, 1, 2, 3])
    a.commit(1, 1, {"a1": 1})
    a.batch(2, 0, 0, [4, 5, 6, 7])
    a.commit(1, 2, {"a1": 1})
    b.resume(1, epoch=2)
    b.batch(2, 0, 0, [4, 5, 6, 7, 8, 9, 10, 11])
    b.commit(2, 2, {"b1": 1})
    proof = logs.prove()
    assert proof.ok, proof
    assert (proof.windows, proof.void, proof.uncommitted) == (2, 1, 4)


@pytest.mark.parametrize(
    ("act", "sentence"),
    [
        (lambda logs: logs.rank("b", 2).commit(1, 2, {"a1": 1}), "Attempt 2 does not say from which window"),
        (lambda logs: whole(logs, {1: [0]}, "b", 2), "Window 1 was committed by 2 attempts"),
        (lambda logs: logs.rank("b").commit(1, 1, {"a1": 2}), "Ranks disagree on who contributed to window 1"),
        (lambda logs: logs.rank("a").commit(1, 4, {"a1": 1}), "No rank logged the commit of window 3"),
        (lambda logs: logs.rank("a").commit(1, 3, {"a1": 1}), "Window 3 counts 1 batches of rank a1, but its loader"),
        (lambda logs: logs.rank("a").batch(1, 0, 0, [3]), "Rank a1 was handed batch 0 of window 1 twice"),
        (lambda logs: whole(logs, {3: [12]}), "Batch 0 of rank a1 in window 3 lies outside of 1 passes over 12"),
        (lambda logs: (logs.rank("b", 2).resume(2), logs.rank("c", 2).resume(1)), "Ranks disagree on the window from"),
    ],
)
def test_logs_that_contradict_themselves_prove_nothing(logs: Logs, act: object, sentence: str) -> None:
    whole(logs, {1: [0, 1, 2, 3, 4, 5], 2: [6, 7, 8, 9, 10, 11]})
    assert logs.prove().ok
    act(logs)  # type: ignore[operator]
    proof = logs.prove()
    assert not proof.ok
    assert any(problem.startswith(sentence) for problem in proof.problems), proof.problems


def test_half_a_line_at_the_end_is_a_death_and_within_a_file_a_fault(logs: Logs) -> None:
    whole(logs, {1: [0, 1, 2, 3, 4, 5], 2: [6, 7, 8, 9, 10, 11]})
    path = logs.directory / "pod-a-0.jsonl"
    with path.open("a") as file:
        file.write('{"k":"batch","uid":"a1","att')
    assert logs.prove().ok
    with path.open("a") as file:
        file.write("\n")
    assert "Line 5 of pod-a-0.jsonl cannot be read" in logs.prove().problems[0]


def test_a_killed_rank_loses_no_line(tmp_path: Path) -> None:
    script = """
        import os, signal, sys
        from pathlib import Path
        from fdl_trainer.audit import AuditLog
        log = AuditLog(Path(sys.argv[1]), "pod", 0, "u", 1)
        log.batch(1, 0, 0, range(12))
        log.commit(1, 1, {"u": 1})
        os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path)]
    assert subprocess.run(command, check=False, timeout=120).returncode == -signal.SIGKILL
    assert prove(tmp_path.glob("*.jsonl"), SAMPLES, 1).ok


def test_the_command_prints_table_and_json(logs: Logs, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [str(logs.directory), "--samples", "12", "--epochs", "1"]
    assert main(arguments) == 1
    assert "there are no audit files" in capsys.readouterr().err
    whole(logs, {1: list(range(11))})
    assert main(arguments) == 1
    assert "the samples do NOT add up" in capsys.readouterr().out
    whole(logs, {2: [11]})
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["0", "12", "0", "0", "0"]
    assert lines[-1] == "every sample exactly once per epoch (2 windows; 0 samples handed out in vain)"
    assert main([*arguments, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["ok"] is True
    assert data["epochs"][0]["committed"] == 12
