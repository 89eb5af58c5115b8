"""Models of given numbers of tensors; only their shapes matter."""

from dataclasses import dataclass
from math import prod

import torch
from torch import nn

Shape = tuple[int, ...]
MAX_SINGLY = 100
"""Tensors above which nobody waits for one all-reduce each."""


@dataclass(frozen=True, slots=True)
class Load:
    """A model to average.

    Attributes:
        name: as it is printed.
        shapes: of its parameters.
        turns: how often everything is measured.
        narrow: whether bf16 on the wire is measured, too.
    """

    name: str
    shapes: tuple[Shape, ...]
    turns: int
    narrow: bool = True

    @property
    def parameters(self) -> int:
        """Numbers in it."""
        return sum(prod(shape) for shape in self.shapes)

    @property
    def singly(self) -> bool:
        """Whether one all-reduce for every tensor is measured, too."""
        return len(self.shapes) <= MAX_SINGLY


def resnet20() -> tuple[Shape, ...]:
    """The 59 parameters of a ResNet-20 for CIFAR-10 with 1 x 1 short cuts left out: 0.27 M numbers."""
    shapes: list[Shape] = [(16, 3, 3, 3), (16,), (16,)]
    width = 16
    for stage in (16, 32, 64):
        for _ in range(6):
            shapes += [(stage, width, 3, 3), (stage,), (stage,)]
            width = stage
    return (*shapes, (10, 64), (10,))


def many(count: int = 1000) -> tuple[Shape, ...]:
    """``count`` tensors, every fourth a matrix of 320 x 320 as in a deep narrow transformer, the rest vectors."""
    return tuple((320, 320) if index % 4 == 0 else (320,) for index in range(count))


def even(parameters: int, tensors: int = 50) -> tuple[Shape, ...]:
    """So many numbers in so many tensors of equal size."""
    return ((parameters // tensors,),) * tensors


def by_tensors(turns: int) -> tuple[Load, ...]:
    """The models whose cost has a target."""
    return (Load("59 tensors", resnet20(), turns), Load("1,000 tensors", many(), turns))


def by_size(sizes: tuple[int, ...], turns: int) -> tuple[Load, ...]:
    """A sweep over numbers of parameters."""
    return tuple(Load(f"{size / 1e6:,.0f} M parameters", even(size), turns, narrow=False) for size in sizes)


def model(shapes: tuple[Shape, ...], device: torch.device | None = None) -> nn.Module:
    """A module with these parameters."""
    torch.manual_seed(0)
    module = nn.Module()
    for index, shape in enumerate(shapes):
        module.register_parameter(f"p{index}", nn.Parameter(torch.randn(shape, device=device)))
    return module
