"""The rules of groups that need no peer: who shares a communicator, what is set, refused and said."""

import os
import sys
import threading
import time
from types import SimpleNamespace

import pytest
import torch

from fdl_api.run import Mode
from fdl_api.runconfig import CohortConfig
from fdl_api.wire import Device
from fdl_trainer import early, preflight
from fdl_trainer.devices import visible
from fdl_trainer.groups import Fabric, Place
from fdl_trainer.groups.form import tell_domains, tiers
from fdl_trainer.groups.gloo import device_of
from fdl_trainer.groups.nccl import EnqueueWatch, interface_of, refusal, settings
from fdl_trainer.groups.reaper import Reaper
from fdl_trainer.store import EpochStore
from fdl_trainer.transport import SWITCHES, Choice, Level, Trial, decide, levels, log_settings, ways
from tests.unit.trainer.test_runtime_groups import LIMIT, Shared, all_of

CUDA, CPU = torch.device("cuda", 0), torch.device("cpu")


def cohort(name: str, vendor: str, nccl: str | None = None) -> CohortConfig:
    return CohortConfig.model_validate(
        {"name": name, "vendor": vendor, "minReplicas": 1, "maxReplicas": 2, "devicesPerReplica": 1, "nccl": nccl}
    )


def told(cohorts: list[str], versions: list[str]) -> list[list[str]]:
    """What each rank of an epoch hears of all ranks' domains."""
    configured = [cohort("a", "nvidia"), cohort("b", "amd"), cohort("c", "nvidia", "2.28")]
    shared = Shared()

    def one(rank: int) -> list[str]:
        version = tuple(int(part) for part in versions[rank].split("."))
        fabric = Fabric.of(Mode.NCCL_CADENCE, CUDA, configured, version)
        place = Place(3, rank, cohorts, "127.0.0.1")
        return tell_domains(EpochStore(shared, 3, "version/"), place, fabric)

    return [future.result(LIMIT) for future in all_of([lambda rank=rank: one(rank) for rank in range(len(cohorts))])]  # type: ignore[misc]


def test_a_domain_is_a_vendor_and_the_nccl_that_is_really_loaded() -> None:
    heard = told(["b", "a", "a", "a", "b"], ["2.28.9", "2.28.1", "2.28.9", "2.27.3", "2.28.3"])
    assert heard[0] == ["amd NCCL 2.28", "nvidia NCCL 2.28", "nvidia NCCL 2.28", "nvidia NCCL 2.27", "amd NCCL 2.28"]
    assert all(other == heard[0] for other in heard), "all ranks make the same tiers"


def test_the_lowest_rank_of_a_domain_leads_it() -> None:
    assert tiers(["x", "y", "y", "z", "x"]) == ((0, 0), (1, 0), (1, 1), (2, 0), (0, 1))
    assert tiers(["x", "x"]) == ((0, 0), (0, 1))


def test_torch_never_ends_the_process_by_itself_and_users_keep_their_network_settings() -> None:
    plain = settings({}, "eth0")
    assert plain["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0" and plain["TORCH_NCCL_ENABLE_MONITORING"] == "0"
    assert plain["NCCL_NVLS_ENABLE"] == "0" and plain["NCCL_SOCKET_IFNAME"] == "=eth0"
    theirs = settings(
        {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3", "NCCL_SOCKET_IFNAME": "ib0", "NCCL_NVLS_ENABLE": "1"}, "eth0"
    )
    assert theirs["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "0"
    assert "NCCL_SOCKET_IFNAME" not in theirs and "NCCL_NVLS_ENABLE" not in theirs
    assert "NCCL_SOCKET_IFNAME" not in settings({}, None)


def test_the_interface_is_the_one_with_the_members_address() -> None:
    assert interface_of("127.0.0.1") == "lo"
    assert interface_of("192.0.2.77") is None, "an address of nobody (RFC 5737)"
    assert interface_of("fd00::1") is None


@pytest.mark.parametrize(
    ("version", "device", "parts"),
    [
        ((2, 28, 9), CPU, ["trains on cpu", "spec.mode", "cpu-cadence"]),
        (None, CUDA, ["without NCCL", "spec.trainer", "cpu-sync"]),
        ((2, 25, 1), CUDA, ["NCCL 2.25.1", "2.26", "cpu-cadence"]),
    ],
)
def test_a_rank_that_cannot_do_an_nccl_mode_says_who_and_what_and_the_way_out(
    version: tuple[int, ...] | None, device: torch.device, parts: list[str]
) -> None:
    sentence = refusal(version, device, "Rank 1 of digits-0")
    assert sentence is not None and sentence.startswith("Rank 1 of digits-0") and sentence.endswith(".")
    assert all(part in sentence for part in parts), sentence


def test_a_rank_with_a_device_and_a_new_enough_nccl_is_not_refused() -> None:
    assert refusal((2, 26, 2), CUDA, "Rank 0") is None


@pytest.mark.parametrize(
    ("environment", "vendor", "index", "expected"),
    [
        ({}, "nvidia", 1, {"CUDA_VISIBLE_DEVICES": "1"}),
        ({"CUDA_VISIBLE_DEVICES": "4,GPU-7f"}, "nvidia", 1, {"CUDA_VISIBLE_DEVICES": "GPU-7f"}),
        ({"HIP_VISIBLE_DEVICES": "2,3"}, "amd", 0, {"HIP_VISIBLE_DEVICES": "2"}),
        ({"CUDA_VISIBLE_DEVICES": "0"}, "cpu", 0, {"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": ""}),
    ],
)
def test_a_rank_sees_its_own_device_only(
    environment: dict[str, str], vendor: str, index: int, expected: dict[str, str]
) -> None:
    device = Device.model_validate({"index": index, "vendor": vendor, "arch": "x"})
    assert visible(environment, device) == expected


def test_the_first_way_that_works_is_taken_and_told_in_one_line() -> None:
    best = decide([Trial(Level.PEER, used=Level.PEER)], 2, "node-3")
    assert (best.level, best.environment) == (Level.PEER, {})
    assert best.sentence == "NCCL between the 2 devices of this member on node node-3 goes by peer-to-peer."
    second = decide([Trial(Level.PEER, "the sum is wrong in 7 numbers"), Trial(Level.SHARED_MEMORY)], 2, "node-3")
    assert second.level is Level.SHARED_MEMORY and second.environment == SWITCHES[Level.SHARED_MEMORY]
    assert "goes by shared memory, since peer-to-peer failed (the sum is wrong in 7 numbers;" in second.sentence
    assert "\n" not in second.sentence


def test_a_worse_way_that_nccl_took_by_itself_is_not_kept_silent() -> None:
    choice = decide([Trial(Level.PEER, used=Level.SOCKETS)], 4, "n")
    assert choice.level is Level.PEER and "goes by sockets, since NCCL found no way peer-to-peer" in choice.sentence


def test_when_no_way_works_the_cpu_mode_is_named_and_each_way_with_its_remedy() -> None:
    none = decide([Trial(level, "it hung for 90 s") for level in Level], 8, "n")
    assert none == Choice(None, none.sentence) and none.environment == {}
    for part in ("peer-to-peer failed", "shared memory failed", "/dev/shm", "sockets failed", "cpu-cadence"):
        assert part in none.sentence


def test_ways_that_the_user_switched_off_are_not_tried() -> None:
    assert levels({}) == [Level.PEER, Level.SHARED_MEMORY, Level.SOCKETS]
    assert levels({"NCCL_P2P_DISABLE": "1"}) == [Level.SHARED_MEMORY, Level.SOCKETS]
    assert levels({"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}) == [Level.SOCKETS]


def test_ncclS_own_words_are_read_worst_first() -> None:
    text = (
        "h:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
        "h:1:2 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
        "h:1:2 [0] NCCL INFO Channel 00 : 1[1] -> 2[2] via SHM/direct/direct\n"
        "h:1:2 [0] NCCL INFO Channel 00/0 : 2[0] -> 3[1] [send] via NET/Socket/0\n"
    )
    assert ways(text) == [
        (Level.SOCKETS, "NET/Socket"),
        (Level.SHARED_MEMORY, "SHM/direct"),
        (Level.PEER, "P2P/CUMEM"),
    ]
    assert ways("nothing of it") == []


def test_a_users_own_nccl_log_is_left_alone() -> None:
    assert log_settings({"NCCL_DEBUG": "WARN"}, "/tmp/x") == {}
    assert log_settings({}, "/tmp/x")["NCCL_DEBUG_FILE"] == "/tmp/x"


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has devices: tests/device has the real trial")
def test_a_trial_that_fails_in_its_process_is_a_sentence_here() -> None:
    pair = [Device.model_validate({"index": index, "vendor": "nvidia", "arch": "sm_90"}) for index in range(2)]
    only_sockets = {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}

    choice = preflight.preflight(pair, {**os.environ, **only_sockets}, "node-1")
    assert choice.level is None and "sockets failed" in choice.sentence and "cpu-cadence" in choice.sentence
    assert "GPU" in choice.sentence or "NCCL" in choice.sentence, choice.sentence


def test_a_touch_is_placed_in_the_users_own_code() -> None:
    frame = sys._getframe()
    library = SimpleNamespace(f_code=SimpleNamespace(co_filename=torch.__file__), f_lineno=7, f_back=frame)
    assert early.place_of(library) == f"{__file__}:{frame.f_lineno}"  # type: ignore[arg-type]
    assert early.place_of(None) == "an unknown line"


def test_an_enqueue_that_does_not_come_back_is_freed_by_an_abort_at_once() -> None:
    freed, asked = threading.Event(), threading.Event()
    watch = EnqueueWatch(freed.set)
    threading.Timer(0.05, asked.set).start()
    with watch.watching(asked.is_set):
        assert freed.wait(30.0), "the call is stuck until somebody aborts the communicator"
    assert watch.aborted


def test_an_enqueue_that_comes_back_is_never_aborted() -> None:
    aborts: list[str] = []
    watch = EnqueueWatch(lambda: aborts.append("abort"))
    for _ in range(200):
        with watch.watching(lambda: True):
            pass
    watch.close()
    assert not aborts and not watch.aborted


def test_an_abort_runs_beside_the_caller_and_keeps_what_it_needs_until_it_has_returned() -> None:
    reaper, go, gone = Reaper(), threading.Event(), threading.Event()

    class Kept:
        def __del__(self) -> None:
            gone.set()

    def abort() -> None:
        assert go.wait(30.0)

    reaper.retire(abort, Kept())
    assert reaper.pending() == 1 and not gone.is_set()
    go.set()
    assert gone.wait(30.0)
    limit = time.monotonic() + 30.0
    while reaper.pending() and time.monotonic() < limit:
        time.sleep(0.01)
    assert reaper.pending() == 0


def test_gloo_listens_on_the_interface_that_is_named() -> None:
    assert device_of("127.0.0.1", {}) is not None
    assert device_of("192.0.2.1", {"GLOO_SOCKET_IFNAME": "lo"}) is not None
    with pytest.raises(RuntimeError):
        device_of("127.0.0.1", {"GLOO_SOCKET_IFNAME": "no-such-if0"})
