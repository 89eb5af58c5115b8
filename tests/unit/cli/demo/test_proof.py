"""The check of what a run left behind: which commands run, and how their output is read."""

import json
import subprocess
from pathlib import Path

import pytest

from fdl_cli.demo import proof
from fdl_cli.demo.kube import DemoError

QUESTION = proof.Question("fashion", "claim", "image", samples=10, epochs=2, use="/opt/use.py")
GOOD = {
    "ok": True,
    "windows": 3,
    "uncommittedSamples": 4,
    "problems": [],
    "epochs": [{"dataEpoch": 0, "committed": 10, "missing": 0, "duplicated": 0}],
}


def test_the_commands_find_the_runs_directory_and_pass_its_numbers(tmp_path: Path) -> None:
    (tmp_path / "ns" / "fashion-1" / "audit").mkdir(parents=True)
    (tmp_path / "ns" / "other" / "audit").mkdir(parents=True)
    script = "\n".join(proof.commands(QUESTION)).replace(proof.MOUNT, str(tmp_path))
    stand_in = 'python() { echo called: "$@"; }\n'
    done = subprocess.run(["sh", "-ec", stand_in + script], capture_output=True, text=True, check=True, timeout=20)
    home = tmp_path / "ns" / "fashion-1"
    assert done.stdout.splitlines() == [
        f"called: -m fdl_trainer.audit {home}/audit --samples 10 --epochs 2 --json",
        f"called: -m fdl_trainer.export {home} {tmp_path}/fashion.pt",
        f"called: /opt/use.py {tmp_path}/fashion.pt",
    ]


def test_the_log_is_read_in_any_order_of_kinds() -> None:
    answer = proof.read(f"{json.dumps(GOOD)}\n/claim/fashion.pt: the model after window 3\naccuracy 0.9\n")
    assert answer.audit == GOOD
    assert answer.exported == "/claim/fashion.pt: the model after window 3"
    assert answer.used == "accuracy 0.9"


def test_a_log_without_the_accounting_is_refused_with_the_log() -> None:
    with pytest.raises(DemoError, match="No module named"):
        proof.read("No module named fdl_trainer\n")


def test_the_sentence_says_what_does_not_add_up() -> None:
    answer = proof.Answer(GOOD, "", "")
    assert "exactly once" in proof.sentence(answer)
    bad = {**GOOD, "ok": False, "problems": ["No rank logged the commit of window 2."]}
    bad["epochs"] = [{"dataEpoch": 0, "committed": 9, "missing": 2, "duplicated": 1}]
    sentence = proof.sentence(proof.Answer(bad, "", ""))
    assert "do NOT add up: 2 missing, 1 twice. No rank logged the commit of window 2." in sentence


def test_the_pod_fits_pod_security_restricted() -> None:
    spec = proof.pod("p", QUESTION)["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    container = spec["containers"][0]["securityContext"]
    assert container["allowPrivilegeEscalation"] is False
    assert container["capabilities"] == {"drop": ["ALL"]}
