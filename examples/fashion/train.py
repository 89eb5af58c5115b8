"""Fashion-MNIST: 60,000 images of clothes, a small convolutional net, the run of ``make demo``.

All but ``fdl_trainer`` is ordinary PyTorch: the session decides which samples are this rank's and when to average.
"""

import gzip
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

import fdl_trainer

DATA = Path("/usr/share/datasets/fashion-mnist")  # where Debian's dataset-fashion-mnist package puts it


def net() -> nn.Module:
    """Two convolutions and two linear layers, 10 classes, 199,706 parameters."""
    return nn.Sequential(
        nn.Conv2d(1, 24, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(24, 48, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(48 * 7 * 7, 80), nn.ReLU(), nn.Linear(80, 10),
    )  # fmt: skip


def load(part: str) -> tuple[torch.Tensor, torch.Tensor]:
    """``train`` or ``t10k`` as (images N x 1 x 28 x 28 of bytes, labels N), read from the IDX files."""
    images = gzip.decompress((DATA / f"{part}-images-idx3-ubyte.gz").read_bytes())
    labels = gzip.decompress((DATA / f"{part}-labels-idx1-ubyte.gz").read_bytes())
    pixels = np.frombuffer(images, np.uint8, offset=16).reshape(-1, 1, 28, 28)
    return torch.tensor(pixels), torch.tensor(np.frombuffer(labels, np.uint8, offset=8)).long()


def accuracy(model: nn.Module) -> dict[str, float]:
    """Share of the 10,000 held-out images that the model names right."""
    images, labels = load("t10k")
    guesses = torch.cat([model(part.float() / 255).argmax(1) for part in images.split(500)])
    return {"accuracy": (guesses == labels).float().mean().item()}


def main(session: fdl_trainer.Session) -> None:
    sgd = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
    session.setup(model=net, optimizer=sgd, dataset=load("train"), batch_size=64, epochs=2)
    for x, y in session:
        for group in session.optimizer.param_groups:
            group["lr"] = 0.1 * (1 - session.progress) + 0.001
        session.optimizer.zero_grad()
        loss = functional.cross_entropy(session.model(x.float() / 255), y)
        loss.backward()
        session.optimizer.step()
        session.report(loss)
    session.evaluate(accuracy)


fdl_trainer.run(main)
