"""Deep check and variant description with the torch and the devices of this machine."""

import json
import os
import subprocess
import sys
from pathlib import Path

import torch

from fdl_api.coverage import covers
from fdl_api.report import DeepFacts
from fdl_trainer.variant import detect


def test_the_deep_check_passes_on_every_device(tmp_path: Path) -> None:
    log = tmp_path / "termination-log"
    log.touch()
    vendor = "amd" if torch.version.hip else "nvidia"
    answer = subprocess.run(
        [sys.executable, "-m", "fdl_trainer.deepcheck", "--variant", "gpu", "--vendor", vendor],
        env={**os.environ, "FDL_TERMINATION_LOG": str(log)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    facts = DeepFacts.model_validate_json(log.read_text())
    assert facts.passed and len(facts.devices) == torch.cuda.device_count() and facts.nccl_version
    assert all(device.ok and covers(facts.archs, device.arch) for device in facts.devices)
    target = os.environ.get("FDL_DEVICE_FACTS")
    if target:
        Path(target).write_text(json.dumps({"deepcheck": json.loads(log.read_text())}, indent=1))


def test_the_variant_file_would_say_what_this_torch_is() -> None:
    facts = detect("gpu")
    assert facts.build != "cpu" and facts.archs and facts.ncclVersion
