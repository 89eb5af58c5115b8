"""A training whose model is sharded where a rank spans its member; imported by its test for a replay."""

import argparse
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import fdl_trainer

SAMPLES, BATCH = 250, 16
"""The last batch of each pass has 10 samples, and slices are unequal with three processes."""


def blobs() -> tuple[Tensor, Tensor]:
    """Points of two classes, 16 numbers each."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.arange(SAMPLES) % 2
    points = torch.randn(SAMPLES, 16, generator=generator) + 0.7 * labels[:, None]
    return points.double(), labels


class Net(nn.Module):
    """Of odd sizes, so that shards are unequal, with tied and frozen parameters and a buffer.

    In fp64: Adam divides gradients by their own size, which turns fp32's rounding of small ones into large steps.
    """

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 23)
        self.middle = nn.Linear(23, 23)
        self.again = nn.Linear(23, 23)
        self.again.weight = self.middle.weight
        self.last = nn.Linear(23, 2)
        self.first.bias.requires_grad_(False)
        self.register_buffer("scale", torch.tensor(0.5))
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        """Logits of two classes."""
        hidden = torch.tanh(self.first(x))
        hidden = torch.tanh(self.again(torch.tanh(self.middle(hidden))))
        scores: Tensor = self.last(hidden) * self.scale
        return scores


def optimizer(parameters: Any) -> torch.optim.Optimizer:
    """AdamW: two large tensors a parameter, and a step count."""
    return torch.optim.AdamW(parameters, lr=0.1)


def rate(progress: float) -> float:
    """Learning rate: falls by nine tenths over the run, so that a step at another place of it is another step."""
    return 0.004 * (1.0 - 0.9 * progress)


def shard(model: nn.Module, mesh: Any) -> None:
    """The last layer by itself, and the whole model, as FSDP2 is meant to be used."""
    from torch.distributed.fsdp import fully_shard

    assert isinstance(model, Net)
    fully_shard(model.last, mesh=mesh)
    fully_shard(model, mesh=mesh)


def unsharded_root(model: nn.Module, mesh: Any) -> None:
    """Forgets the rest."""
    from torch.distributed.fsdp import fully_shard

    assert isinstance(model, Net)
    fully_shard(model.last, mesh=mesh)


def main(session: fdl_trainer.Session) -> None:
    """Train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--shard", default="whole", choices=["whole", "part", "none"])
    parser.add_argument("--step", default="session", choices=["session", "own"])
    parser.add_argument("--rate", default="falling", choices=["falling", "constant"])
    parser.add_argument("--hold", default="", help="file whose presence lets the training go on")
    options = parser.parse_args()
    session.setup(
        model=Net,
        optimizer=optimizer,
        dataset=blobs(),
        batch_size=BATCH,
        epochs=options.epochs,
        shard={"whole": shard, "part": unsharded_root, "none": None}[options.shard],
    )

    def loss(batch: Any) -> Tensor:
        x, y = batch
        return functional.cross_entropy(session.model(x), y)

    for number, batch in enumerate(session):
        for group in session.optimizer.param_groups:
            group["lr"] = rate(session.progress if options.rate == "falling" else 0.5)
        sys.stdout.write(f"at {session.progress!r} {session.samples} {session.rank} {session.world_size}\n")
        if options.step == "own":
            torch.autograd.backward(loss(batch))
            session.optimizer.step()
        else:
            session.step(loss, clip_norm=0.5)
        while number == 9 and options.hold and not Path(options.hold).exists():
            session.model.train()
    session.evaluate(lambda model: {"loss": float(functional.cross_entropy(model(blobs()[0]), blobs()[1]))})


if __name__ == "__main__":
    fdl_trainer.run(main)
