"""hivemind's Optimizer with local updates: peers average once they have trained ``target`` samples together.

Settings: ``target``; ``address``: file in which rank 0 leaves the address of its DHT.
"""

import importlib
import time
from pathlib import Path
from typing import Any

from bench.training.job import Job
from bench.training.trainee import Trainee

FIRST_LIMIT = 60.0


def train(job: Job) -> None:
    """Until killed."""
    hivemind: Any = importlib.import_module("hivemind")
    trainee = Trainee(job)
    address = Path(job.settings["address"])
    initial = [] if job.rank == 0 else _wait_for(address).splitlines()
    dht = hivemind.DHT(host_maddrs=["/ip4/127.0.0.1/tcp/0"], initial_peers=initial, start=True)
    if job.rank == 0:
        partial = address.with_suffix(".partial")
        partial.write_text("\n".join(str(maddr) for maddr in dht.get_visible_maddrs()))
        partial.rename(address)
    optimizer = hivemind.Optimizer(
        dht=dht,
        run_id="bench",
        target_batch_size=int(job.settings["target"]),
        batch_size_per_step=job.batch_size,
        optimizer=trainee.optimizer,
        use_local_updates=True,
        matchmaking_time=1.0,
        averaging_timeout=15.0,
        verbose=False,
    )
    trainee.optimizer = optimizer
    epoch = 0
    for x, y in trainee.batches():
        trainee.step(x, y)
        if optimizer.local_epoch > epoch:
            epoch = optimizer.local_epoch
            trainee.mark(compute=False)


def _wait_for(path: Path) -> str:
    limit = time.monotonic() + FIRST_LIMIT
    while not path.exists():
        if time.monotonic() > limit:
            raise TimeoutError(f"rank 0 left no address in {path}")
        time.sleep(0.05)
    return path.read_text()
