"""torchft's LocalSGD and DiLoCo.

Settings: ``every``: steps between averages; ``outer``: DiLoCo with its published outer optimizer; ``lighthouse``:
address. Averages are unweighted and every replica does the same number of steps: unequal counts are not possible.
"""

import importlib
import time
from datetime import timedelta
from typing import Any

import torch
from torch._C._distributed_c10d import TCPStore

from bench.training.job import Job
from bench.training.trainee import Trainee

TIMEOUT = timedelta(seconds=30)


def train(job: Job) -> None:
    """Until killed."""
    torchft: Any = importlib.import_module("torchft")
    local_sgd: Any = importlib.import_module("torchft.local_sgd")
    trainee = Trainee(job)
    store = TCPStore("127.0.0.1", job.port + job.rank, is_master=True, wait_for_workers=False)
    assert store is not None
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=TIMEOUT),
        min_replica_size=job.world,
        load_state_dict=lambda state: trainee.model.load_state_dict(state["model"]),
        state_dict=lambda: {"model": trainee.model.state_dict()},
        use_async_quorum=False,  # DiLoCo demands it
        timeout=TIMEOUT,
        quorum_timeout=TIMEOUT,
        connect_timeout=TIMEOUT,
        rank=0,
        world_size=1,
        store_addr="127.0.0.1",
        store_port=job.port + job.rank,
        lighthouse_addr=job.settings["lighthouse"],
        replica_id=f"replica-{job.rank}",
        hostname="127.0.0.1",
        init_sync=False,  # all replicas start from the same seed
    )
    every = int(job.settings["every"])
    wrapper = local_sgd.LocalSGD(manager, trainee.model, trainee.optimizer, every)
    if job.settings.get("outer"):
        outer = torch.optim.SGD(trainee.model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        wrapper = local_sgd.DiLoCo(
            manager, [trainee.model], trainee.optimizer, outer, sync_every=every, use_bucketization=True
        )
    inner = _time_sync(wrapper)
    committed = 0
    with wrapper:
        for x, y in trainee.batches():
            before = inner.spent
            trainee.step(x, y)
            trainee.compute -= inner.spent - before
            if manager.current_step() > committed:  # a window that was discarded is not marked
                committed = manager.current_step()
                trainee.mark(comm=inner.spent)


class _Sync:
    spent = 0.0


def _time_sync(wrapper: Any) -> _Sync:
    """Book the seconds in the wrapper's hook after a step, the wait for other ranks included."""
    booked, hook = _Sync(), wrapper._step_post_hook

    def timed(*arguments: Any) -> Any:
        started = time.perf_counter()
        try:
            return hook(*arguments)
        finally:
            booked.spent += time.perf_counter() - started

    wrapper._step_post_hook = timed
    return booked
