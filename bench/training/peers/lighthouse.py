"""torchft's lighthouse, with time-outs for one machine instead of its defaults for a data centre."""

import importlib
import time
from pathlib import Path
from typing import Any

from bench.training.job import Job


def train(job: Job) -> None:
    """Serve until killed; the address goes into the marks file."""
    native: Any = importlib.import_module("torchft._torchft")
    server = native.LighthouseServer(
        bind=f"127.0.0.1:{job.port}",
        min_replicas=job.world,
        join_timeout_ms=500,
        quorum_tick_ms=10,
        heartbeat_timeout_ms=5000,
    )
    Path(job.marks).write_text(f"http://127.0.0.1:{job.port}")
    while server is not None:
        time.sleep(3600)
