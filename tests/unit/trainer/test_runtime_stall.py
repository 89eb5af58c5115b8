"""A member that hangs in a batch, in real processes: the run goes on without it and takes it back."""

from pathlib import Path
from typing import Any

import pytest

from fdl_api.reasons import Progress
from fdl_api.run import Mode
from tests.unit.trainer.cluster import loopback_run

HANGS = Path(__file__).parent / "scripts" / "hangs.py"
SAMPLES, EPOCHS = 4096, 60


def of(state: dict[str, Any], uid: str) -> dict[str, Any]:
    return next((item for item in state["members"] if item["uid"] == uid), {})


def contributors(state: dict[str, Any]) -> set[str]:
    """UIDs of the members with work in the last window."""
    return {rank["uid"].rpartition("/")[0] for rank in state["ranks"] if rank["batches"] > 0}


@pytest.mark.parametrize("mode", [Mode.CPU_CADENCE, Mode.CPU_ASYNC])
def test_a_member_that_hangs_is_suspended_and_contributes_again_when_it_goes_on(tmp_path: Path, mode: Mode) -> None:
    gate = tmp_path / "gate"
    args = ["--member", "digits-cpu-1-1", "--batch", "40", "--gate", str(gate), "--epochs", str(EPOCHS)]
    with loopback_run(tmp_path, HANGS, 3, args, mode=mode, stall_seconds=2.0) as run:
        members = [run.start_member(ordinal) for ordinal in range(3)]
        late = members[1].uid
        state = run.wait_state("it is suspended", lambda state: state["suspensions"] == 1)
        assert of(state, late)["state"] == "suspended" and of(state, late)["reason"] == Progress.STALLED
        run.wait_state("two go on", lambda now: now["window"] >= state["window"] + 3 and len(now["ranks"]) == 2)
        assert members[1].agent.poll() is None
        gate.touch()
        run.wait_state("it contributes again", lambda now: late in contributors(now))
        assert [member.wait() for member in members] == [0, 0, 0], run.logs()
        state = run.wait_state("the run succeeds", lambda now: now["outcome"] == "succeeded")
        assert (state["deaths"], state["suspensions"]) == (0, 1), run.logs()
        proof = run.proof(SAMPLES, EPOCHS)
        assert proof.ok, (proof, run.logs())
        digests = run.digests()
        assert len(digests) == 3 and len(set(digests.values())) == 1, (digests, run.logs())
