"""A training in which one member's first incarnation hangs in a batch, alive, until a file appears."""

import argparse
import hashlib
import os
import threading
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

import fdl_trainer

parser = argparse.ArgumentParser()
parser.add_argument("--member", required=True, help="who hangs")
parser.add_argument("--batch", type=int, default=6, help="in which of its batches, from 0")
parser.add_argument("--gate", type=Path, required=True, help="file that ends it")
parser.add_argument("--epochs", type=int, default=12)
OPTIONS = parser.parse_args()


def main(session: fdl_trainer.Session) -> None:
    """Train."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(4096) % 2
    points = torch.randn(4096, 16, generator=generator) + 0.7 * labels[:, None]
    session.setup(
        model=lambda: nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2)),
        optimizer=lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
        dataset=(points, labels),
        batch_size=32,
        epochs=OPTIONS.epochs,
    )
    hangs = os.environ["FDL_MEMBER"] == OPTIONS.member
    for number, (x, y) in enumerate(session):
        if hangs and number == OPTIONS.batch:
            print("hangs", flush=True)
            pause = threading.Event()
            while not OPTIONS.gate.exists():
                pause.wait(0.05)
            print("goes on", flush=True)
        for _ in range(8):
            loss = functional.cross_entropy(session.model(x), y)
        session.optimizer.zero_grad()
        loss.backward()
        session.optimizer.step()
        session.report(loss)
    state = session.model.state_dict()
    content = b"".join(state[name].cpu().numpy().tobytes() for name in sorted(state))
    print(f"digest {hashlib.sha256(content).hexdigest()}", flush=True)


fdl_trainer.run(main)
