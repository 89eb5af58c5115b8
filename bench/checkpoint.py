"""What a checkpoint costs while training stands still: ``python -m bench.checkpoint``.

Training waits for the copy of the committed state; everything after it (serialising, writing, syncing, reading back) is
a thread's work. The copy is measured against a plain copy of as much memory, in turn: a busy machine slows both.
"""

import argparse
import os
import time
from collections.abc import Callable
from statistics import median

import torch
from torch import nn

from bench.smoke.figures import Figure, machine, middle, table, to_json
from fdl_trainer import treefile
from fdl_trainer.averaging import ModelState

WIDTH = 1000
TARGET_RATIO = 2.0


def trained(megabytes: int) -> tuple[ModelState, torch.optim.Optimizer, int]:
    """A model and an SGD optimizer with momentum that together hold about ``megabytes``, and their exact bytes."""
    layers = max(1, round(megabytes * 1e6 / 2 / (4 * WIDTH * WIDTH)))
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    state = ModelState(model)
    state.capture()
    return state, optimizer, 2 * 4 * WIDTH * WIDTH * layers


def milliseconds(work: Callable[[], object]) -> float:
    """Time of one call."""
    started = time.perf_counter()
    work()
    return (time.perf_counter() - started) * 1000.0


def measure(megabytes: int, repeats: int) -> list[Figure]:
    """The copy that training waits for, a plain copy of as many bytes, and their ratio."""
    state, optimizer, size = trained(megabytes)
    memory = torch.ones(size // 4)

    def snapshot() -> object:
        return state.tensors(), treefile.copied(optimizer.state_dict())

    snapshots, copies = [], []
    for _ in range(repeats + 1):
        snapshots.append(milliseconds(snapshot))
        copies.append(milliseconds(memory.clone))
    snapshots, copies = snapshots[1:], copies[1:]  # the first call of each also touches its code
    how = f"median of {repeats}, {size / 1e6:.0f} MB of parameters and momentum, fresh memory"
    ratios = [mine / plain for mine, plain in zip(snapshots, copies, strict=True)]
    return [
        middle("checkpoint.stall", snapshots, "ms", TARGET_RATIO * median(copies), how),
        middle(
            "checkpoint.stall over a memory copy", ratios, "x", TARGET_RATIO, f"the copy takes {median(copies):.0f} ms"
        ),
    ]


def main() -> None:
    """Print the figures as a table and as JSON."""
    parser = argparse.ArgumentParser(prog="python -m bench.checkpoint", description=__doc__)
    parser.add_argument("--megabytes", type=int, default=200, help="parameters and optimizer state together")
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    figures = measure(options.megabytes, options.repeats)
    print(table(figures))
    print(to_json(figures, machine(os.cpu_count() or 1)))


if __name__ == "__main__":
    main()
