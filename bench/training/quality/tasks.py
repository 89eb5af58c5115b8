"""Two tasks with held-out data. Pure but for the tensors."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bench.training.quality.settings import ALONE, ALONE_WIDE
from bench.training.workloads import Gpt, conv, images, loss_of, passages, text

TEST_IMAGES = 20_000
_CHUNK = 500


@dataclass(frozen=True)
class Task:
    """What is learned.

    Attributes:
        name: as on the command line.
        model: makes the model.
        train: makes the training set.
        test: makes the held-out set.
        batch_size: of the fastest device alone; baselines and settings of fdl take shares of it.
        epochs: passes over the training set.
        rate: highest learning rate; it follows a cosine over the samples. The GPT's is the best for one device alone
            with this batch of 0.001, 0.0014 (as good), 0.002 and 0.004 (AdamW) and 0.1 (SGD).
        settings: of fdl, unless the command line has others.
        baselines: the same.
        adam: train by AdamW, as transformers are, and not by SGD.
        figure: ``accuracy`` (percent) or ``loss``.
        margin: how much worse fdl may be: percentage points of accuracy, or a share of the loss.
    """

    name: str
    model: Callable[[], nn.Module]
    train: Callable[[], tuple[Tensor, Tensor]]
    test: Callable[[], tuple[Tensor, Tensor]]
    batch_size: int
    epochs: int
    rate: float
    figure: str
    margin: float
    settings: tuple[str, ...]
    baselines: tuple[str, ...] = (ALONE, ALONE_WIDE)
    adam: bool = False

    def optimizer(self, parameters: object) -> torch.optim.Optimizer:
        """SGD with momentum 0.9, or AdamW without decay."""
        if self.adam:
            betas = (0.9, 0.95)
            return torch.optim.AdamW(parameters, lr=self.rate, betas=betas, weight_decay=0.0)  # type: ignore[arg-type]
        return torch.optim.SGD(parameters, lr=self.rate, momentum=0.9)  # type: ignore[arg-type]

    def worse_by(self, own: float, other: float) -> float:
        """By how much a figure is worse than another, in the unit of the margin; negative when it is better."""
        return other - own if self.figure == "accuracy" else (own - other) / other


TASKS = {
    task.name: task
    for task in (
        Task(
            "conv",
            conv,
            lambda: images(16_384, 1, 16, noise=2.8),
            lambda: images(TEST_IMAGES, 1, 16, seed=2, noise=2.8),
            batch_size=64,
            epochs=6,
            rate=0.05,
            figure="accuracy",
            margin=0.2,
            settings=("as alone",),
        ),
        Task(
            "gpt",
            lambda: Gpt(text()[1], layers=2),
            lambda: passages(step=4),
            lambda: passages(held_out=True, step=16),
            batch_size=16,
            epochs=2,
            rate=0.002,
            figure="loss",
            margin=0.005,
            settings=("as alone", "half short", "half short moments"),
            baselines=(ALONE, ALONE_WIDE, "alone half"),
            adam=True,
        ),
    )
}


def cosine(progress: float) -> float:
    """Factor of the learning rate: a warm-up over the first 5 % of the samples, then half a cosine to 0."""
    if progress < 0.05:
        return max(progress, 0.002) / 0.05
    return 0.5 * (1.0 + math.cos(math.pi * min(1.0, (progress - 0.05) / 0.95)))


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Of all its groups."""
    for group in optimizer.param_groups:
        group["lr"] = rate


def examine(task: Task, model: nn.Module) -> float:
    """The task's figure on its held-out set; the model is in evaluation mode and without gradients."""
    x, y = task.test()
    total = 0.0
    for place in range(0, len(x), _CHUNK):
        inputs, targets = x[place : place + _CHUNK], y[place : place + _CHUNK]
        if task.figure == "accuracy":
            total += 100.0 * float((model(inputs).argmax(1) == targets).sum())
        else:
            total += float(loss_of(model, inputs, targets)) * len(inputs)
    return total / len(x)
