"""DistributedDataParallel: one averaged gradient a step.

Settings: ``weight``: what the rank's loss is multiplied with, so that the mean over the ranks of gradients of unequal
batches is the gradient of the whole (1 with equal batches).
"""

from torch.nn.parallel import DistributedDataParallel

from bench.training.job import Job
from bench.training.peers.group import join
from bench.training.trainee import Trainee


def train(job: Job) -> None:
    """Until killed. Compute cannot be told from communication: DDP overlaps them."""
    join(job)
    trainee = Trainee(job)
    # The fastest settings: no copies of gradients, no broadcast of BatchNorm's buffers before each forward.
    trainee.model = DistributedDataParallel(
        trainee.model, gradient_as_bucket_view=True, static_graph=True, broadcast_buffers=False
    )
    weight = float(job.settings.get("weight", 1.0))
    trainee.mark(compute=False)
    for x, y in trainee.batches():
        trainee.step(x, y, weight)
        trainee.mark(compute=False)
