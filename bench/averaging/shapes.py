"""Models of given numbers of tensors; only their shapes matter."""

import torch
from torch import nn


def resnet20() -> list[tuple[int, ...]]:
    """The 59 parameters of a ResNet-20 for CIFAR-10 with 1 x 1 short cuts left out: 0.27 M numbers."""
    shapes: list[tuple[int, ...]] = [(16, 3, 3, 3), (16,), (16,)]
    width = 16
    for stage in (16, 32, 64):
        for _ in range(6):
            shapes += [(stage, width, 3, 3), (stage,), (stage,)]
            width = stage
    return [*shapes, (10, 64), (10,)]


def many(count: int = 1000) -> list[tuple[int, ...]]:
    """``count`` tensors, every fourth a matrix of 320 x 320 as in a deep narrow transformer, the rest vectors."""
    return [(320, 320) if index % 4 == 0 else (320,) for index in range(count)]


def model(shapes: list[tuple[int, ...]]) -> nn.Module:
    """A module with these parameters."""
    torch.manual_seed(0)
    module = nn.Module()
    for index, shape in enumerate(shapes):
        module.register_parameter(f"p{index}", nn.Parameter(torch.randn(shape)))
    return module
