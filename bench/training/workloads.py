"""Models and data. Synthetic inputs, except the GPT's text; labels follow the inputs, so that losses fall."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

TEXT = Path(__file__).with_name("text") / "charters.txt"
SAMPLES = 16384
HELD_OUT = 0.1


@dataclass(frozen=True)
class Workload:
    """What is trained.

    Attributes:
        name: as it is printed.
        model: makes the model.
        data: makes inputs and targets of the training set, equal on all ranks.
        batch_size: samples a batch.
        about: one line for the page.
        target: training loss for the time to target.
        rate: learning rate of SGD with momentum 0.9.
    """

    name: str
    model: Callable[[], nn.Module]
    data: Callable[[], tuple[Tensor, Tensor]]
    batch_size: int
    about: str
    target: float
    rate: float = 0.02

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer of all methods."""
        return torch.optim.SGD(model.parameters(), lr=self.rate, momentum=0.9)


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Mean cross entropy; of every position for texts."""
    scores = model(x)
    return functional.cross_entropy(scores.flatten(0, -2), y.flatten())


def images(samples: int, channels: int, side: int, seed: int = 1, noise: float = 2.0) -> tuple[Tensor, Tensor]:
    """Ten classes: a smooth pattern of the class under noise. Shapes (samples, channels, side, side) and (samples,)."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randn(10, channels, 4, 4, generator=torch.Generator().manual_seed(7))
    patterns = functional.interpolate(coarse, size=side, mode="bilinear")
    labels = torch.randint(0, 10, (samples,), generator=generator)
    return patterns[labels] + noise * torch.randn(samples, channels, side, side, generator=generator), labels


def _flat_images() -> tuple[Tensor, Tensor]:
    x, y = images(SAMPLES // 4, 1, 28)
    return x.flatten(1), y


def mlp() -> nn.Module:
    """1.3 M parameters on 784 inputs: much to send for its compute."""
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 512), nn.ReLU(), nn.Linear(512, 10))


def conv() -> nn.Module:
    """A small convolutional net with BatchNorm, 24 k parameters."""
    layers: list[nn.Module] = []
    widths = (1, 16, 32, 48)
    for before, after in pairwise(widths):
        layers += [nn.Conv2d(before, after, 3, padding=1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(48 * 4, 24), nn.ReLU(), nn.Linear(24, 10)
    )


class Residual(nn.Module):
    """Two 3x3 convolutions with BatchNorm and a shortcut without parameters (padding), as in ResNet-20 for CIFAR."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(before, after, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.second = nn.Conv2d(after, after, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.stride, self.pad = stride, after - before

    def forward(self, x: Tensor) -> Tensor:
        """(N, before, H, W) to (N, after, H / stride, W / stride)."""
        shortcut = x[:, :, :: self.stride, :: self.stride]
        if self.pad:
            shortcut = functional.pad(shortcut, (0, 0, 0, 0, 0, self.pad))
        inner = functional.relu(self.norm1(self.first(x)))
        return functional.relu(self.norm2(self.second(inner)) + shortcut)


def resnet20() -> nn.Module:
    """ResNet-20 of K. He et al. (2015) for ten classes: 0.27 M parameters."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    before = 16
    for width in (16, 32, 64):
        for block in range(3):
            layers.append(Residual(before, width, 2 if block == 0 and width > 16 else 1))
            before = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class Block(nn.Module):
    """One pre-norm transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.grow, self.shrink = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(N, T, width) to the same."""
        batch, length, width = x.shape
        parts = self.mix(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4).unbind(0)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        mixed: Tensor = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        grown: Tensor = self.shrink(functional.gelu(self.grow(self.norm2(mixed))))
        return mixed + grown


class Gpt(nn.Module):
    """A character transformer with learned positions and tied embeddings."""

    def __init__(self, kinds: int, context: int = 32, width: int = 128, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.letters = nn.Embedding(kinds, width)
        self.places = nn.Parameter(torch.zeros(context, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.letters.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        """(N, T) characters to (N, T, kinds) scores of the next ones."""
        hidden = self.blocks(self.letters(x) + self.places[: x.shape[1]])
        scores: Tensor = functional.linear(self.norm(hidden), self.letters.weight)
        return scores


def text() -> tuple[Tensor, int]:
    """The bundled text as numbers, and how many kinds of characters it has."""
    content = TEXT.read_text()
    kinds = sorted(set(content))
    number = {letter: place for place, letter in enumerate(kinds)}
    return torch.tensor([number[letter] for letter in content]), len(kinds)


def passages(context: int = 32, *, held_out: bool = False, step: int = 4) -> tuple[Tensor, Tensor]:
    """Passages and the same one character later, shapes (n, context); the text's last tenth is held out."""
    letters, _ = text()
    border = int(len(letters) * (1.0 - HELD_OUT))
    part = letters[border:] if held_out else letters[:border]
    windows = part.unfold(0, context + 1, step)
    return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload("mlp", mlp, _flat_images, 96, "MLP, 1.3 M parameters, 784 inputs: heavy to send", 0.1),
        Workload("conv", conv, lambda: images(SAMPLES, 1, 16), 64, "convolutions with BatchNorm, 24 k parameters", 0.1),
        Workload("gpt", lambda: Gpt(text()[1]), passages, 4, "character GPT, 0.8 M parameters, bundled text", 2.9),
        Workload(
            "resnet20", resnet20, lambda: images(SAMPLES // 4, 3, 16), 8, "ResNet-20's shapes on 16x16 images", 1.0
        ),
        Workload(
            "gpt-10m",
            lambda: Gpt(text()[1], context=256, width=384, layers=6, heads=6),
            lambda: passages(256),
            64,
            "character GPT, 10.8 M parameters, 256 characters: keeps a device busy rather than its host",
            2.9,
        ),
    )
}
