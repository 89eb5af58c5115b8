"""What a member says of its devices and its software."""

from pathlib import Path

import pytest

from fdl_api.runconfig import CohortConfig
from fdl_api.wire import Device
from fdl_trainer.devices import Software, offer, shared

TORCH = """
class version:
    hip = None


class distributed:
    is_available = is_nccl_available = staticmethod(lambda: True)

    class ProcessGroupNCCL:
        get_runtime_nccl_version = staticmethod(lambda: (2, 28, 9))


class cuda:
    device_count = staticmethod(lambda: 2)

    class get_device_properties:
        major, minor, total_memory = 9, 0, 150_000_000_000

        def __init__(self, index): ...
"""
"""As much of a torch with two devices as the agent asks, in a process of its own."""


def test_the_nccl_that_is_loaded_is_told_and_not_the_one_that_the_image_was_built_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text(TORCH)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    cohort = CohortConfig(name="gpu", vendor="nvidia", min_replicas=1, max_replicas=1, devices_per_replica=2)
    devices, software = offer(cohort, Software("cuda", "2.11.0", "2.27.5", accelerated=True))
    assert software.nccl == "2.28.9"
    assert devices == [
        Device(index=index, vendor="nvidia", arch="sm_90", memory_bytes=150_000_000_000) for index in range(2)
    ]


def test_ranks_of_a_member_share_its_cpu_time() -> None:
    devices = [Device(index=index, vendor="cpu", arch="x86_64") for index in range(3)]
    assert [device.cpu_millicores for device in shared(devices, 4000)] == [1333] * 3
    (alone,) = shared(devices[:1], None)
    assert alone.cpu_millicores >= 1000 and alone.cpu_millicores % 1000 == 0, "what this machine has"
    assert shared([], 4000) == []
