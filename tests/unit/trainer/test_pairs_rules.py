"""Which ways a rank tests, on which address, and how both ends prove themselves."""

import pytest

from fdl_api.run import Mode
from fdl_api.wire import Epoch, EpochCause, EpochMember, Reach
from fdl_trainer.interfaces import ipv4_addresses
from fdl_trainer.pairs import group_address, proof
from fdl_trainer.pairs.interface import keeps_to_itself, nccl_interfaces
from fdl_trainer.pairs.tester import due

NAMES = ["lo", "eth0", "eth1", "ib0", "docker0"]


def epoch(cause: EpochCause, *uids: str, deaf: str = "") -> Epoch:
    members = [
        EpochMember(
            uid=uid,
            member=uid.split("/")[0],
            address="10.0.0.1",
            cohort="cpu",
            reach=None if uid == deaf else Reach(address="10.0.0.1", port=7000 + index),
        )
        for index, uid in enumerate(uids)
    ]
    return Epoch(generation=1, epoch=3, previous=2, members=members, cause=cause, planned=False)


def dialled(cause: EpochCause, *reached: str, uid: str = "b/0", doubtful: bool = False) -> list[str]:
    return [each.uid for each in due(epoch(cause, "a/0", "b/0", "c/0", "d/0"), uid, reached, doubtful=doubtful)]


def test_a_start_tests_all_others_beginning_with_the_next_so_that_not_all_dial_the_first_at_once() -> None:
    assert dialled(EpochCause.START) == ["c/0", "d/0", "a/0"]


def test_a_joiner_tests_all_and_is_tested_by_all() -> None:
    assert dialled(EpochCause.JOIN, "a/0", "c/0") == ["d/0"]
    assert dialled(EpochCause.JOIN, uid="d/0") == ["a/0", "b/0", "c/0"]


@pytest.mark.parametrize("cause", [EpochCause.DEATH, EpochCause.SUSPEND])
def test_survivors_are_not_held_up_unless_their_last_group_failed(cause: EpochCause) -> None:
    assert dialled(cause) == []
    assert dialled(cause, "a/0", doubtful=True) == ["c/0", "d/0", "a/0"]


def test_after_a_group_that_failed_nothing_is_taken_for_granted() -> None:
    assert dialled(EpochCause.REFORM, "a/0", "c/0", "d/0") == ["c/0", "d/0", "a/0"]
    assert dialled(EpochCause.JOIN, "a/0", "c/0", "d/0", doubtful=True) == ["c/0", "d/0", "a/0"]


def test_ranks_of_one_pod_and_those_that_do_not_listen_are_left_out() -> None:
    one_pod = epoch(EpochCause.START, "a/0", "a/1", "b/0", "c/0", deaf="b/0")
    assert [each.uid for each in due(one_pod, "a/0", (), doubtful=False)] == ["c/0"]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("", []),
        (" ", []),
        ("^", []),
        ("eth", ["eth0", "eth1"]),
        ("=eth1", ["eth1"]),
        ("=eth", []),
        ("ib0,eth1", ["eth1", "ib0"]),
        ("^docker,lo", ["eth0", "eth1", "ib0"]),
        ("^=eth0,lo", ["eth1", "ib0", "docker0"]),
    ],
)
def test_nccls_way_to_name_interfaces(pattern: str, expected: list[str]) -> None:
    assert nccl_interfaces(NAMES, pattern) == expected


def test_the_address_is_that_of_the_interface_that_the_mode_uses() -> None:
    """The loopback is the one interface that every machine has."""
    gloo, nccl = {"GLOO_SOCKET_IFNAME": "lo"}, {"NCCL_SOCKET_IFNAME": "=lo"}
    addresses = ipv4_addresses()
    assert addresses["lo"] == "127.0.0.1" and "no-such-if0" not in addresses
    assert group_address(Mode.CPU_CADENCE, "192.0.2.1", gloo) == "127.0.0.1"
    assert group_address(Mode.NCCL_CADENCE, "192.0.2.1", nccl) == "127.0.0.1"
    assert group_address(Mode.CPU_CADENCE, "192.0.2.1", nccl) == "192.0.2.1", "Gloo does not read NCCL's variable"
    assert group_address(Mode.NCCL_CADENCE, "192.0.2.1", {}) == "192.0.2.1"
    assert group_address(Mode.CPU_SYNC, "192.0.2.1", {"GLOO_SOCKET_IFNAME": "no-such-if0"}) == "192.0.2.1"


def test_a_rank_whose_variable_leaves_out_its_own_interface_says_so(caplog: pytest.LogCaptureFixture) -> None:
    everything = ",".join(name for name in ipv4_addresses() if name != "lo")
    with caplog.at_level("WARNING"):
        assert group_address(Mode.NCCL_CADENCE, "127.0.0.1", {"NCCL_SOCKET_IFNAME": "=lo"}) == "127.0.0.1"
        assert not caplog.records, "a member that is reached at its loopback"
        left_out = {"NCCL_SOCKET_IFNAME": f"^={everything}"}
        assert group_address(Mode.NCCL_CADENCE, "192.0.2.1", left_out) == "127.0.0.1"
    (record,) = caplog.records
    assert "leaves out the interface of 192.0.2.1" in record.getMessage() and "the loopback" in record.getMessage()


@pytest.mark.parametrize(
    ("address", "reach", "own", "lost"),
    [
        ("192.0.2.1", "127.0.0.1", "192.0.2.2", True),
        ("fd00::1", "::1", "fd00::2", True),
        ("192.0.2.1", "127.0.0.1", "192.0.2.1", False),
        ("127.0.0.1", "127.0.0.1", "192.0.2.1", False),
        ("192.0.2.1", "192.0.2.9", "192.0.2.2", False),
        ("run-a-0", "127.0.0.1", "run-a-1", True),
        ("192.0.2.1", "rank.example", "192.0.2.2", False),
    ],
    ids=[
        "another machine",
        "version 6",
        "one machine",
        "all at the loopback",
        "another interface",
        "names",
        "no number",
    ],
)
def test_a_rank_that_says_its_loopback_is_not_dialled_by_another_machine(
    address: str, reach: str, own: str, lost: bool
) -> None:
    """The dialler would reach itself: refused at best, and somebody else's answer at worst."""
    rank = EpochMember(uid="b/0", member="b", address=address, cohort="a", reach=Reach(address=reach, port=7000))
    why = keeps_to_itself(rank, own)
    assert bool(why) is lost and (not lost or "NCCL_SOCKET_IFNAME" in why)
    assert len(why) <= 200


def test_a_proof_is_of_one_run_one_rank_one_end_and_one_connection() -> None:
    key, greeted, fresh = proof.key_of("token"), proof.greeting(), proof.nonce()
    made = proof.dialled(key, "a/0", greeted, fresh)
    assert made == proof.dialled(proof.key_of("token"), "a/0", greeted, fresh) and len(made) == proof.PROOF_BYTES
    others = [
        proof.dialled(proof.key_of("other"), "a/0", greeted, fresh),
        proof.dialled(key, "b/0", greeted, fresh),
        proof.answered(key, "a/0", greeted, fresh),
        proof.dialled(key, "a/0", proof.greeting(), fresh),
        proof.dialled(key, "a/0", greeted, proof.nonce()),
    ]
    assert made not in others
