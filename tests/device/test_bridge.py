"""Another NCCL than torch's own, preloaded as an ``ncclBridge`` does: ``FDL_DEVICE_NCCL`` names the library.

One comes from the wheel of another release: ``pip download --no-deps nvidia-nccl-cu13==2.29.7``.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fdl_api.run import ElcheSpec, Mode
from fdl_api.runconfig import CohortConfig, RunConfig
from fdl_trainer.audit import prove
from fdl_trainer.groups.nccl import nccl_version
from tests.device.test_runs import COHORT, SCRIPTS, VENDOR, on, start, text
from tools import loopback

LIBRARY = os.environ.get("FDL_DEVICE_NCCL", "")
PRELOADED = {"LD_PRELOAD": LIBRARY}
pytestmark = pytest.mark.skipif(not LIBRARY, reason="FDL_DEVICE_NCCL names no library of another NCCL")


def bridged_version() -> str:
    """Of the NCCL that a process with this library has."""
    code = "from fdl_trainer.groups.nccl import nccl_version; print(*nccl_version(), sep='.')"
    environment = {**os.environ, **PRELOADED}
    answer = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    return answer.stdout.strip()


@pytest.mark.devices(2)
def test_a_run_averages_by_the_library_that_is_preloaded(tmp_path: Path) -> None:
    version, own = bridged_version(), ".".join(map(str, nccl_version() or ()))
    assert version and version != own, "the library is of another release than torch's own"
    cohort = {"name": "gpu", "vendor": VENDOR, "minReplicas": 1, "maxReplicas": 2, "devicesPerReplica": 1}
    pinned = CohortConfig.model_validate({**cohort, "nccl": version.rpartition(".")[0]})
    values = loopback.run_values(tmp_path, SCRIPTS / "where.py", 2, [])
    changes = {"mode": Mode.NCCL_CADENCE, "cohorts": [pinned], "elche": ElcheSpec(anchor=8, max_anchor=32)}
    with loopback.started(loopback.LoopbackRun(tmp_path, RunConfig.model_validate({**values, **changes}))) as run:
        members = [start(run, ordinal, {**COHORT, **on(ordinal), **PRELOADED}) for ordinal in range(2)]
        assert [member.wait() for member in members] == [0, 0], run.logs(60)
        assert "NCCL over 2 ranks by peer-to-peer" in text(run), run.logs(60)
        assert text(run).count(f"by NCCL {version}") == 2, run.logs(60)
        assert prove(run.checkpoints.glob("audit/*.jsonl"), 4096, 2).ok
