"""A rank that trains for itself: every batch is committed at once."""

from bench.training.job import Job
from bench.training.trainee import Trainee


def train(job: Job) -> None:
    """Until killed."""
    trainee = Trainee(job)
    trainee.mark()
    for x, y in trainee.batches():
        trainee.step(x, y)
        trainee.mark()
