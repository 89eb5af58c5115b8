"""A member that hangs in a batch, in real processes: the run goes on without it and takes it back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fdl_api.reasons import Progress
from fdl_api.run import Mode
from tests.unit.trainer.cluster import Zygote, loopback_run

HANGS = Path(__file__).parent / "scripts" / "hangs.py"
SAMPLES, EPOCHS = 4096, 40


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """One torch for both tests."""
    started = Zygote(tmp_path_factory.mktemp("zygote"))
    yield started
    started.close()


def of(state: dict[str, Any], uid: str) -> dict[str, Any]:
    return next((item for item in state["members"] if item["uid"] == uid), {})


def contributors(state: dict[str, Any]) -> set[str]:
    """UIDs of the members with work in the last window."""
    return {rank["uid"].rpartition("/")[0] for rank in state["ranks"] if rank["batches"] > 0}


@pytest.mark.parametrize(
    ("mode", "who", "restart"),
    [(Mode.CPU_CADENCE, 0, True), (Mode.CPU_ASYNC, 1, False)],
    ids=["writer and a new coordinator", "overlap"],
)
def test_a_member_that_hangs_is_suspended_and_contributes_again_when_it_goes_on(
    tmp_path: Path, zygote: Zygote, mode: Mode, who: int, restart: bool
) -> None:
    gate = tmp_path / "gate"
    args = ["--member", f"digits-cpu-{who}-1", "--batch", "40", "--gate", str(gate), "--epochs", str(EPOCHS)]
    with loopback_run(tmp_path, HANGS, 3, args, zygote, mode=mode, stall_seconds=4.0) as run:
        members = [run.start_member(ordinal) for ordinal in range(3)]
        late = members[who].uid
        state = run.wait_state("it is suspended", lambda state: of(state, late).get("state") == "suspended")
        assert of(state, late)["reason"] == Progress.STALLED and state["suspensions"] >= 1
        run.wait_state("two go on", lambda now: now["window"] >= state["window"] + 3 and len(now["ranks"]) == 2)
        assert members[who].agent.poll() is None
        if restart:
            run.kill_coordinator()
            run.start_coordinator()
            told = run.wait_state(
                "two go on with the next one, which knows that it is suspended",
                lambda now: now["window"] >= state["window"] + 6 and of(now, late).get("state") == "suspended",
            )
            assert told["generation"] == 2 and told["suspensions"] == 0, "it was not taken back to be suspended anew"
        gate.touch()
        run.wait_state("it contributes again", lambda now: late in contributors(now))
        assert [member.wait() for member in members] == [0, 0, 0], run.logs()
        state = run.wait_state("the run succeeds", lambda now: now["outcome"] == "succeeded")
        assert state["deaths"] == 0, run.logs()
        proof = run.proof(SAMPLES, EPOCHS)
        assert proof.ok, (proof, run.logs())
        digests = run.digests()
        assert len(digests) == 3 and len(set(digests.values())) == 1, (digests, run.logs())
