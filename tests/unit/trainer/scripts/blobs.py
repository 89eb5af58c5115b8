"""A small real training for the process tests: two Gaussian classes, a net with BatchNorm."""

import argparse
import hashlib

import torch
from torch import Tensor, nn
from torch.nn import functional

import fdl_trainer

parser = argparse.ArgumentParser()
parser.add_argument("--samples", type=int, default=4096)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--batch", type=int, default=32)
parser.add_argument("--width", type=int, default=64)
parser.add_argument("--work", type=int, default=1, help="forward passes a batch: a slower device, by real work")
OPTIONS = parser.parse_args()


def blobs(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points of two classes, 16 numbers each."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % 2
    return torch.randn(samples, 16, generator=generator) + 0.7 * labels[:, None], labels


def net() -> nn.Module:
    """A net with parameters, running statistics and an integer buffer."""
    width = OPTIONS.width
    return nn.Sequential(nn.Linear(16, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 2))


def main(session: fdl_trainer.Session) -> None:
    """Train and evaluate."""
    session.setup(
        model=net,
        optimizer=lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
        dataset=blobs(OPTIONS.samples, 1),
        batch_size=OPTIONS.batch,
        epochs=OPTIONS.epochs,
    )
    for x, y in session:
        for _ in range(OPTIONS.work):
            loss = functional.cross_entropy(session.model(x), y)
        session.optimizer.zero_grad()
        loss.backward()
        session.optimizer.step()
        session.report(loss)
    state = session.model.state_dict()
    content = b"".join(state[name].cpu().numpy().tobytes() for name in sorted(state))
    print(f"digest {hashlib.sha256(content).hexdigest()}", flush=True)
    points, labels = (tensor.to(session.device) for tensor in blobs(1000, 2))
    session.evaluate(lambda model: {"accuracy": float((model(points).argmax(1) == labels).float().mean())})


fdl_trainer.run(main)
