"""A training by session.step, as spec.elche.average: gradients needs it; imported by its test for a replay."""

import argparse
import hashlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import fdl_trainer

SAMPLES, BATCH = 2048, 16


def blobs() -> tuple[Tensor, Tensor]:
    """Points of two classes, 16 numbers each."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(SAMPLES) % 2
    return torch.randn(SAMPLES, 16, generator=generator) + 0.7 * labels[:, None], labels


def net() -> nn.Module:
    """A net whose gradient of a batch is the mean of its samples' (no BatchNorm)."""
    return nn.Sequential(nn.Linear(16, 24), nn.Tanh(), nn.Linear(24, 2))


def optimizer(name: str, parameters: Any) -> torch.optim.Optimizer:
    """SGD with momentum and decay, or Adam."""
    if name == "adam":
        return torch.optim.Adam(parameters, lr=0.002)
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3)


def rate(name: str, progress: float) -> float:
    """The schedule: a straight way down to a half."""
    return (0.002 if name == "adam" else 0.05) * (1.0 - 0.5 * progress)


def main(session: fdl_trainer.Session) -> None:
    """Train, and print the digest of the model."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--optimizer", default="sgd")
    parser.add_argument("--work", type=int, default=1, help="forward passes a batch: a slower device, by real work")
    parser.add_argument("--bare", action="store_true", help="step without session.step, which is refused")
    options = parser.parse_args()
    session.setup(
        model=net,
        optimizer=lambda parameters: optimizer(options.optimizer, parameters),
        dataset=blobs(),
        batch_size=BATCH,
        epochs=options.epochs,
    )

    def loss(batch: Any) -> Tensor:
        x, y = batch
        for _ in range(options.work - 1):
            session.model(x)
        return functional.cross_entropy(session.model(x), y)

    for batch in session:
        for group in session.optimizer.param_groups:
            group["lr"] = rate(options.optimizer, session.progress)
        if options.bare:
            torch.autograd.backward(loss(batch))
            session.optimizer.step()
        session.step(loss, clip_norm=0.5)
    state = session.model.state_dict()
    content = b"".join(state[name].cpu().numpy().tobytes() for name in sorted(state))
    print(f"digest {hashlib.sha256(content).hexdigest()}", flush=True)
    session.evaluate(lambda model: {"loss": float(functional.cross_entropy(model(blobs()[0]), blobs()[1]))})


if __name__ == "__main__":
    fdl_trainer.run(main)
