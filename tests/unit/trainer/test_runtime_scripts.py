"""Bad scripts and bad data: each ends its member with one sentence that says what to do. Real agents and ranks."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fdl_api.exitcodes import PodExit
from fdl_api.reasons import Ended
from fdl_api.run import Mode
from fdl_api.termination import Cause, Saved
from fdl_trainer.checkpoint import newest_valid
from tests.unit.trainer.cluster import Zygote, loopback_run

SETUP = """
import torch, fdl_trainer
def train(session, data=None, **more):
    data = (torch.randn(64, 4), torch.arange(64) % 2) if data is None else data
    session.setup(model=lambda: torch.nn.Linear(4, 2), optimizer=lambda p: torch.optim.SGD(p, lr=0.1), dataset=data,
                  **{"batch_size": 8, "epochs": 1, **more})
    for x, y in session:
        loss = torch.nn.functional.cross_entropy(session.model(x), y)
        session.optimizer.zero_grad(); loss.backward(); session.optimizer.step()
        session.report(loss)
"""

BAD = """
class Bad:
    def __len__(self): return 64
    def __getitem__(self, i):
        if i == 13: raise OSError("sector 13 is gone")
        return torch.randn(4), i % 2
"""

CASES = {
    "syntax error": ("def main(session)\n    pass\n", PodExit.USER_CODE, Ended.SCRIPT_SYNTAX_ERROR, "line 1"),
    "raises": (
        SETUP + "def main(session):\n    raise KeyError('the answer')\nfdl_trainer.run(main)\n",
        PodExit.USER_CODE,
        Ended.SCRIPT_RAISED,
        "KeyError: 'the answer'",
    ),
    "raises in an import": ("import no_such_module\n", PodExit.USER_CODE, Ended.SCRIPT_RAISED, "no_such_module"),
    "never calls run": ("print('hello')\n", PodExit.USER_CODE, Ended.SCRIPT_NEVER_TRAINED, "fdl_trainer.run"),
    "never loops": (
        SETUP + "fdl_trainer.run(lambda session: None)\n",
        PodExit.USER_CODE,
        Ended.SCRIPT_NEVER_TRAINED,
        "loop over the session",
    ),
    "exits 0 without training": (
        "import sys\nsys.exit(0)\n",
        PodExit.USER_CODE,
        Ended.SCRIPT_NEVER_TRAINED,
        "without training",
    ),
    "exits 0 in the middle of the training": (
        SETUP.replace("session.report(loss)", "raise SystemExit(0)") + "fdl_trainer.run(train)\n",
        PodExit.USER_CODE,
        Ended.SCRIPT_EXITED,
        "code 0 in the middle of the training",
    ),
    "returns in the middle of the training": (
        SETUP.replace("session.report(loss)", "return") + "fdl_trainer.run(train)\n",
        PodExit.USER_CODE,
        Ended.SCRIPT_EXITED,
        "left the loop",
    ),
    "swallows what ended it": (
        SETUP
        + BAD
        + """
try:
    fdl_trainer.run(lambda s: train(s, Bad()))
except BaseException:
    raise SystemExit(1)
""",
        PodExit.DATA,
        Ended.SCRIPT_RAISED,
        "13",
    ),
    "takes other arguments": (
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--width', type=int, required=True)\n"
        "parser.parse_args()\n",
        PodExit.USER_CODE,
        Ended.SCRIPT_EXITED,
        "does not take its arguments: the following arguments are required: --width. Correct spec.trainer.args.",
    ),
    "exits 3": ("import sys\nsys.exit(3)\n", PodExit.USER_CODE, Ended.SCRIPT_EXITED, "code 3"),
    "ends the process directly": ("import os\nos._exit(5)\n", PodExit.USER_CODE, Ended.SCRIPT_EXITED, "os._exit"),
    "leaves the loop": (
        SETUP
        + """
def main(session):
    session.setup(model=lambda: torch.nn.Linear(4, 2), optimizer=lambda p: torch.optim.SGD(p, lr=0.1),
                  dataset=(torch.randn(64, 4), torch.arange(64) % 2), batch_size=8, epochs=1)
    for x, y in session:
        break
fdl_trainer.run(main)
""",
        PodExit.USER_CODE,
        Ended.SCRIPT_EXITED,
        "left the loop",
    ),
    "dataset smaller than the cohort": (
        SETUP + "fdl_trainer.run(lambda s: train(s, (torch.randn(2, 4), torch.arange(2))))\n",
        PodExit.DATA,
        Ended.DATASET_TOO_SMALL,
        "2 samples",
    ),
    "empty dataset": (
        SETUP + "fdl_trainer.run(lambda s: train(s, (torch.randn(0, 4), torch.arange(0))))\n",
        PodExit.DATA,
        Ended.DATASET_TOO_SMALL,
        "empty",
    ),
    "a sample that raises": (
        SETUP + BAD + "fdl_trainer.run(lambda s: train(s, Bad()))\n",
        PodExit.DATA,
        Ended.SCRIPT_RAISED,
        "13",
    ),
    "a loss that explodes": (
        SETUP.replace("loss.backward()", "(loss * float('nan')).backward()")
        + "fdl_trainer.run(lambda s: train(s, epochs=40))\n",
        PodExit.DIVERGED,
        "Diverged",
        "learning rate",
    ),
}


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    started = Zygote(tmp_path_factory.mktemp("zygote"))
    yield started
    started.close()


@pytest.mark.parametrize("name", CASES)
def test_a_bad_script_ends_in_a_sentence(name: str, tmp_path: Path, zygote: Zygote) -> None:
    source, code, reason, part = CASES[name]
    script = tmp_path / "train.py"
    script.write_text(source)
    cohorts = [{"name": "cpu", "vendor": "cpu", "minReplicas": 3, "maxReplicas": 3, "devicesPerReplica": 1}]
    with loopback_run(tmp_path, script, 1, zygote=zygote, mode=Mode.CPU_SYNC, cohorts=cohorts) as run:
        member = run.start_member(0)
        assert member.wait() == code, run.logs()
        words = member.words()
        assert words.reason == reason and part in words.message + words.traceback, words
        assert words.cause is Cause.APP and words.permanent and words.message.rstrip(".").strip(), words


def test_a_dataset_smaller_than_the_wanted_members_is_refused_by_the_defaults_too(
    tmp_path: Path, zygote: Zygote
) -> None:
    """minReplicas is 0 and join.minMembers 1: what counts is how many members the run wants."""
    script = tmp_path / "train.py"
    script.write_text(SETUP + "fdl_trainer.run(lambda s: train(s, (torch.randn(1, 4), torch.arange(1))))\n")
    cohort = {"name": "cpu", "vendor": "cpu", "minReplicas": 0, "maxReplicas": 2, "devicesPerReplica": 1, "replicas": 2}
    with loopback_run(tmp_path, script, 2, zygote=zygote, cohorts=[cohort]) as run:
        members = [run.start_member(ordinal) for ordinal in range(2)]
        assert [member.wait() for member in members] == [PodExit.DATA] * 2, run.logs()
        words = members[0].words()
        assert words.reason == Ended.DATASET_TOO_SMALL and words.message.startswith(
            "Rank cpu-0/0: the dataset of session.setup has 1 samples and the run wants 2 ranks"
        )


def test_a_script_that_exits_0_after_its_loop_sees_the_run_through(tmp_path: Path, zygote: Zygote) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        SETUP + "def main(session):\n    train(session)\n    raise SystemExit(0)\nfdl_trainer.run(main)\n"
    )
    with loopback_run(tmp_path, script, 1, zygote=zygote) as run:
        member = run.start_member(0)
        assert member.wait() == PodExit.DONE, run.logs()
        assert member.words().saved is Saved.SAVED
        state = run.wait_state("the run succeeds", lambda state: state["outcome"] == "succeeded")
        assert state["checkpoint"]["final"]


def test_a_script_that_swallows_its_end_is_still_a_leaver(tmp_path: Path, zygote: Zygote) -> None:
    script = tmp_path / "train.py"
    swallowing = (
        "def main(session):\n    try:\n        train(session, epochs=100000)\n    except BaseException:\n        pass\n"
    )
    script.write_text(SETUP + swallowing + "fdl_trainer.run(main)\n")
    with loopback_run(tmp_path, script, 2, zygote=zygote) as run:
        members = [run.start_member(ordinal) for ordinal in range(2)]
        run.wait_state("training goes on", lambda state: state["window"] >= 3)
        members[1].terminate()
        assert members[1].wait() == PodExit.LEFT, run.logs()
        words = members[1].words()
        assert words.cause is Cause.PREEMPTION and words.saved in (Saved.COMMITTED, Saved.SAVED), words


FULL = (
    SETUP.replace("Linear(4, 2)", "Sequential(torch.nn.Linear(4, 10000), torch.nn.Linear(10000, 2))")
    .replace("import torch,", "import os, resource, torch,")
    .replace("session.report(loss)", "session.report(loss); full_once_saved()")
    + """
def full_once_saved():
    if any(name.startswith("ckpt-") for name in os.listdir(CHECKPOINTS)):
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
fdl_trainer.run(lambda s: train(s, epochs=EPOCHS))
"""
)
"""From its first checkpoint on, the volume takes no file of more than 100 kB; a checkpoint's model has 280 kB."""


def test_a_volume_that_is_full_in_the_middle_of_a_run_does_not_stop_it(tmp_path: Path, zygote: Zygote) -> None:
    script, epochs = tmp_path / "train.py", 400
    script.write_text(f"CHECKPOINTS, EPOCHS = {str(tmp_path / 'checkpoints')!r}, {epochs}\n{FULL}")
    with loopback_run(tmp_path, script, 1, zygote=zygote, audit=False) as run:
        member = run.start_member(0)
        assert member.wait() == PodExit.BELOW_MINIMUM, run.logs()
        words = member.words()
        assert words.reason == Ended.CHECKPOINT_FULL and "File too large. Free space" in words.message, words
        assert words.saved is Saved.INCOMPLETE
        state = run.wait_state("the run has ended", lambda state: state["outcome"] == "failed")
        assert state["samples"] == 64 * epochs, "it trained to the end"
        found, problems = newest_valid(run.checkpoints)
        assert found is not None and problems == [] and found.window == state["checkpoint"]["window"]


def test_a_missing_script_names_the_file_and_the_field(tmp_path: Path, zygote: Zygote) -> None:
    with loopback_run(tmp_path, tmp_path / "absent.py", 1, zygote=zygote) as run:
        member = run.start_member(0)
        assert member.wait() == PodExit.USER_CODE
        words = member.words()
        assert words.reason == Ended.SCRIPT_MISSING and "absent.py" in words.message and "spec.trainer" in words.message


def test_a_script_trains_alone_on_a_laptop_and_resumes(tmp_path: Path) -> None:
    script = Path(__file__).parent / "scripts" / "blobs.py"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FDL_")}
    environment["FDL_SOLO_DIRECTORY"] = str(tmp_path / "saved")
    command = [sys.executable, str(script), "--samples", "1024"]
    first = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert first.returncode == 0 and "accuracy: 0." in first.stdout, first.stderr
    again = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    digests = [line for line in (first.stdout + again.stdout).splitlines() if line.startswith("digest")]
    assert again.returncode == 0 and len(digests) == 2 and digests[0] == digests[1], again.stderr
    command = [*command, "--width", "65"]
    other = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert other.returncode == PodExit.USER_CODE and "0.weight (float32, 65x16) in the script" in other.stderr
