"""One device that trains all samples by itself, with batches and a learning rate of the job's."""

import json
import time
from pathlib import Path

import torch

from bench.training.job import Job
from bench.training.quality.settings import RATE
from bench.training.quality.tasks import TASKS, cosine, examine, set_rate
from bench.training.slowness import Burner
from bench.training.workloads import loss_of


def train(job: Job) -> None:
    """Train to the end and leave the figure and the seconds in the job's marks file."""
    task = TASKS[job.workload]
    torch.manual_seed(job.seed)
    model = task.model()
    optimizer = task.optimizer(model.parameters())
    burner = Burner(model, job)
    inputs, targets = torch.load(job.data)
    rate = task.rate * float(job.settings[RATE])
    total, done = task.epochs * len(inputs), 0
    began = time.monotonic()
    for epoch in range(task.epochs):
        order = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(1000 * job.seed + epoch))
        for rows in torch.split(order, job.batch_size):
            x, y = inputs.index_select(0, rows), targets.index_select(0, rows)
            set_rate(optimizer, rate * cosine(done / total))
            burner.burn(x, y)
            loss = loss_of(model, x, y)
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            done += len(rows)
    seconds = time.monotonic() - began
    model.eval()
    with torch.no_grad():
        figure = examine(task, model)
    Path(job.marks).write_text(json.dumps({"figure": figure, "seconds": seconds}))
