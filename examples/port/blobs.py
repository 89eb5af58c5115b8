"""What all scripts of this folder share: data, model and the figure at the end."""

import torch
from torch import Tensor, nn


def blobs(samples: int, seed: int) -> tuple[Tensor, Tensor]:
    """Points of two classes, 16 numbers each."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % 2
    return torch.randn(samples, 16, generator=generator) + 0.7 * labels[:, None], labels


def net() -> nn.Module:
    """A small net with running statistics."""
    return nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 2))


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    """Share of new points that a model in evaluation mode puts into their class."""
    points, labels = blobs(2000, seed=2)
    device = next(model.parameters()).device
    return float((model(points.to(device)).argmax(1).cpu() == labels).float().mean())
