"""The user's script of a quality run: trains to the end, and the rank that evaluates writes the figure.

``script.py FOLDER``; started by the rank of fdl's own runtime.
"""

import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

import torch
from torch import nn

import fdl_trainer
from bench.training.fdl_script import own_job, place
from bench.training.quality.settings import GRADIENTS, RATE
from bench.training.quality.tasks import TASKS, cosine, examine, set_rate
from bench.training.slowness import Burner
from bench.training.workloads import loss_of


def main(session: fdl_trainer.Session) -> None:
    """Train and evaluate."""
    job = own_job()
    task = TASKS[job.workload]
    session.setup(
        model=task.model,
        optimizer=task.optimizer,
        dataset=torch.load(job.data),
        batch_size=job.batch_size,
        epochs=task.epochs,
        seed=job.seed,
    )
    burner = Burner(session.model, job)
    rate = task.rate * float(job.settings[RATE])
    began = 0.0
    for x, y in session:
        began = began or time.monotonic()
        set_rate(session.optimizer, rate * cosine(session.progress))
        burner.burn(x, y)
        if job.settings[GRADIENTS]:
            session.step(lambda batch: loss_of(session.model, *batch))
            continue
        loss = loss_of(session.model, x, y)
        session.optimizer.zero_grad()
        torch.autograd.backward(loss)
        session.optimizer.step()
        session.report(loss)
    seconds = time.monotonic() - began

    def figure(model: nn.Module) -> dict[str, float]:
        found = examine(task, model)
        target = Path(sys.argv[1]) / "figure.json"
        partial = target.with_suffix(".partial")
        partial.write_text(json.dumps({"figure": found, "seconds": seconds}))
        partial.rename(target)
        return {task.figure: found}

    session.evaluate(figure)


if __name__ == "__main__":
    place()
    fdl_trainer.run(main)
