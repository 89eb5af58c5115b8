"""What the leading process tells the others. They all do the same next, and meet in the same collectives."""

from dataclasses import dataclass, field
from typing import Any

import torch


@dataclass(frozen=True)
class Slice:
    """Train a part of a batch.

    Attributes:
        data: its samples; of a batch with fewer samples than processes, some get one that does not count.
        weight: of its mean loss, so that the mean over all processes is that of the whole batch.
        progress: see :attr:`fdl_trainer.Session.progress`, and so the others.
        samples: of the run.
        rank: of the member in its epoch.
        world_size: of the epoch.
    """

    data: Any
    weight: float
    progress: float
    samples: float
    rank: int
    world_size: int


@dataclass(frozen=True)
class Pull:
    """Gather the trained parameters."""


@dataclass(frozen=True)
class Push:
    """Take new parameters, and these buffers.

    Attributes:
        frozen: the frozen parameters, too.
        buffers: by name, on the CPU.
    """

    frozen: bool
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class PullOptimizer:
    """Gather the optimizer's state."""


@dataclass(frozen=True)
class Sharded:
    """Stands for a tensor of the shape of a parameter, which follows in shards."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass(frozen=True)
class PushOptimizer:
    """Take the optimizer's state: its state dict, with :class:`Sharded` in place of large tensors."""

    skeleton: dict[str, Any]


@dataclass(frozen=True)
class ResetOptimizer:
    """Forget the optimizer's state."""


@dataclass(frozen=True)
class Ready:
    """The set-up is over; noise is drawn from this seed on, plus the process's own number."""

    seed: int


@dataclass(frozen=True)
class LoopEnd:
    """There are no more batches."""


@dataclass(frozen=True)
class Evaluate:
    """Evaluate the model: the forward pass needs all shards."""


Message = Slice | Pull | Push | PullOptimizer | PushOptimizer | ResetOptimizer | Ready | LoopEnd | Evaluate
