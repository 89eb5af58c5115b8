"""What the demo says about the change from one state to the next."""

from typing import Any

from fdl_api.run import FdlRunStatus
from fdl_api.wire import CheckpointState, MemberState, Outcome, RankWindow, State
from fdl_cli.demo import story


def member(ordinal: int, incarnation: int = 1, state: Any = "active", **more: Any) -> MemberState:
    name = f"fashion-cpu-{ordinal}-{incarnation}"
    return MemberState(
        uid=f"uid-{ordinal}-{incarnation}",
        member=name,
        cohort="cpu",
        ordinal=ordinal,
        incarnation=incarnation,
        state=state,
        **more,
    )


def rank(ordinal: int, share: float, ms: float = 20.0, incarnation: int = 1) -> RankWindow:
    uid = f"uid-{ordinal}-{incarnation}/0"
    return RankWindow(
        uid=uid, quota=10, batches=10, samples=640, compute_ms=200, data_wait_ms=1, ms_per_batch=ms, share=share
    )


def state(**fields: Any) -> State:
    base: dict[str, Any] = {
        "generation": 1,
        "run_uid": "u",
        "attempt": 1,
        "outcome": Outcome.TRAINING,
        "epoch": 1,
        "window": 4,
        "samples": 1000,
        "total_samples": 3000,
        "members": [member(0), member(1), member(2)],
    }
    return State(**{**base, **fields})


def test_a_row_has_the_share_and_speed_of_its_own_ranks() -> None:
    now = state(ranks=[rank(0, 0.5, 10), rank(1, 0.3, 20), rank(2, 0.2, 30)])
    rows = story.rows(now, {"fashion-cpu-1-1": "medium"})
    assert [row.share for row in rows] == [0.5, 0.3, 0.2]
    assert [row.ms_per_batch for row in rows] == [10, 20, 30]
    assert [row.node for row in rows] == ["?", "medium", "?"]


def test_a_dead_member_is_shown_until_its_successor_is_known_and_never_with_a_share() -> None:
    dead = member(1, state="dead")
    alone = story.rows(state(members=[member(0), dead], ranks=[rank(1, 0.4)]), {})
    assert [(row.member, row.share) for row in alone] == [("fashion-cpu-0-1", None), ("fashion-cpu-1-1", None)]
    followed = story.rows(state(members=[dead, member(0), member(1, 2, "joining")]), {})
    assert [row.member for row in followed] == ["fashion-cpu-0-1", "fashion-cpu-1-2"]


def test_a_death_and_the_return_are_told_in_order() -> None:
    before = state()
    death = state(members=[member(0), member(1, state="dead", message="connection lost"), member(2)], epoch=2)
    assert story.happened(before, death) == [
        "fashion-cpu-1-1 is dead: connection lost",
        "membership epoch 2: 2 members",
    ]
    going_on = death.model_copy(update={"recoveries": [0.123]})
    assert story.happened(death, going_on) == ["the survivors committed their next window 0.12 s after the death"]
    back = state(members=[member(0), member(1, 2), member(2)], epoch=3, recoveries=[0.123])
    assert story.happened(going_on, back) == [
        "fashion-cpu-1-2, the successor, takes part",
        "membership epoch 3: 3 members",
    ]


def test_nothing_is_told_of_the_first_state_and_of_no_change() -> None:
    assert story.happened(None, state()) == []
    assert story.happened(state(), state(window=5, samples=1100)) == []


def test_a_checkpoint_is_told_once() -> None:
    saved = CheckpointState(window=4, samples=1000, path="p", size_bytes=2**20, verified=True, saved_at="")
    after = state(checkpoint=saved)
    assert story.happened(state(), after) == ["checkpoint at window 4 written and verified (1.0 MiB)"]
    assert story.happened(after, after) == []


def test_the_victim_is_active_and_not_the_first() -> None:
    assert story.victim(state()) == "fashion-cpu-1-1"
    assert story.victim(state(members=[member(0), member(1, state="dead"), member(2)])) == "fashion-cpu-2-1"
    assert story.victim(state(members=[member(0)])) is None


def test_the_status_of_the_run_serves_when_the_coordinator_does_not_answer() -> None:
    assert story.from_status(FdlRunStatus()) is None
    status = FdlRunStatus.model_validate(
        {
            "phase": "Running",
            "members": [
                {"name": "r-cpu-0-1", "uid": "a", "cohort": "cpu", "ordinal": 0, "incarnation": 1, "phase": "Running"},
                {"name": "r-cpu-1-1", "uid": "b", "cohort": "cpu", "ordinal": 1, "incarnation": 1, "phase": "Failed"},
            ],
            "training": {
                "window": 7,
                "samples": 10,
                "totalSamples": 20,
                "ranks": [{"member": "r-cpu-0-1", "msPerBatch": 12.5, "quota": 4, "share": 1.0}],
            },
        }
    )
    found = story.from_status(status)
    assert found is not None
    assert (found.window, found.samples, found.total_samples) == (7, 10, 20)
    rows = story.rows(found, {})
    assert [(row.state, row.share, row.ms_per_batch) for row in rows] == [("active", 1.0, 12.5), ("dead", None, None)]
