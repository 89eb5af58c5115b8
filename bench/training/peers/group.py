"""The default process group of torch, for DDP and PostLocalSGD."""

from datetime import timedelta

import torch.distributed as dist

from bench.training.job import Job

TIMEOUT = timedelta(seconds=60)


def join(job: Job) -> None:
    """Join it: Gloo on loopback, NCCL on accelerators."""
    backend = "nccl" if job.device == "cuda" else "gloo"
    address = f"tcp://127.0.0.1:{job.port}"
    dist.init_process_group(backend, init_method=address, rank=job.rank, world_size=job.world, timeout=TIMEOUT)
