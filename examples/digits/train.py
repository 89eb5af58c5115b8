"""Handwritten digits (8x8 pixels): the smallest complete fdl run, done in about half a minute on a CPU.

All but ``fdl_trainer`` is ordinary PyTorch: the session decides which samples are this rank's and when to average.
"""

import argparse
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import fdl_trainer

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=12)
parser.add_argument("--batch-size", type=int, default=16)
parser.add_argument("--width", type=int, default=32)
args = parser.parse_args()


def net() -> nn.Module:
    """Two convolutions and a linear layer, 10 classes."""
    return nn.Sequential(
        nn.Conv2d(1, args.width, 3, padding=1), nn.ReLU(),
        nn.Conv2d(args.width, 2 * args.width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(2 * args.width * 16, 10),
    )  # fmt: skip


def load() -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Training and test set as (images N x 1 x 8 x 8 in 0..1, labels N); every sixth sample is a test sample."""
    data = np.load(Path(__file__).with_name("digits.npz"))
    images = torch.from_numpy(data["images"]).unsqueeze(1).float() / 16
    labels = torch.from_numpy(data["labels"]).long()
    test = torch.arange(len(labels)) % 6 == 0
    return (images[~test], labels[~test]), (images[test], labels[test])


def main(session: fdl_trainer.Session) -> None:
    train, (images, labels) = load()
    sgd = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
    session.setup(model=net, optimizer=sgd, dataset=train, batch_size=args.batch_size, epochs=args.epochs)
    for x, y in session:
        session.optimizer.zero_grad()
        loss = functional.cross_entropy(session.model(x), y)
        loss.backward()
        session.optimizer.step()
        session.report(loss)
    session.evaluate(lambda model: {"accuracy": (model(images).argmax(1) == labels).float().mean().item()})


fdl_trainer.run(main)
