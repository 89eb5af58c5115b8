"""What an NCCL mode asks of a member at the gate: one sentence that names the member, the field and the way out."""

import pytest

from fdl_api.reasons import Refusal
from fdl_api.runconfig import CohortConfig
from fdl_api.spec_policy import Mode
from fdl_api.wire import Device
from fdl_coordinator.gate import check_agent
from fdl_coordinator.seats import SeatBook
from tests.unit.coordinator.cohort import agent_hello, run_config

REAL = [Device(index=0, vendor="nvidia", arch="sm_90")]
SIMULATED = [Device(index=0, vendor="cpu", arch="x86_64")]


def refusal(mode: Mode, devices: list[Device], nccl: str | None, *, pinned: str | None = "2.28") -> object:
    cohort = CohortConfig(
        name="cpu",
        vendor="nvidia",
        min_replicas=1,
        max_replicas=8,
        devices_per_replica=1,
        nccl=pinned,
        allow_simulated=True,
    )
    hello = agent_hello(1, devices=devices, nccl_version=nccl, torch_version="2.11.0")
    return check_agent(hello, run_config(mode=mode, cohorts=[cohort]), SeatBook())


@pytest.mark.parametrize("mode", [Mode.NCCL_SYNC, Mode.NCCL_CADENCE])
@pytest.mark.parametrize(
    ("devices", "nccl", "reason", "parts"),
    [
        (SIMULATED, "2.28.9", Refusal.VENDOR_MISMATCH, ["no real device", "allowSimulated"]),
        (REAL, None, Refusal.NCCL_VERSION_SKEW, ["torch without NCCL (2.11.0)", "variant"]),
        (REAL, "2.27.3", Refusal.NCCL_VERSION_SKEW, ["loads NCCL 2.27.3", "runs 2.28", "ncclBridge"]),
    ],
)
def test_a_member_that_cannot_do_the_mode_is_refused_in_a_sentence(
    mode: Mode, devices: list[Device], nccl: str | None, reason: Refusal, parts: list[str]
) -> None:
    found = refusal(mode, devices, nccl)
    assert found is not None and getattr(found, "reason", None) == reason and getattr(found, "permanent", False)
    message = str(getattr(found, "message", ""))
    for part in ["digits-cpu-1-1", "node1", "spec.mode", "cpu-cadence", *parts]:
        assert part in message, message


def test_the_same_member_is_welcome_where_its_backend_does() -> None:
    assert refusal(Mode.NCCL_CADENCE, REAL, "2.28.1") is None, "patch releases work together"
    assert refusal(Mode.NCCL_CADENCE, REAL, "2.27.3", pinned=None) is None
    assert refusal(Mode.CPU_CADENCE, SIMULATED, None) is None
