"""Which samples a span of the run's stream consists of. Holds no list: its size does not depend on the dataset's."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fdl_trainer.ledger import Span
from fdl_trainer.permutation import Permutation


@lru_cache(maxsize=4)
def _permutation(samples: int, seed: int, data_epoch: int) -> Permutation:
    """Kept for its keys: to derive them takes nearly as long as the places of a batch."""
    return Permutation(samples, seed, data_epoch)


@dataclass(frozen=True)
class Order:
    """The order of the samples over all passes.

    Args:
        samples: samples in the dataset.
        seed: seed of the order.
        block: samples that stay together in their own order (the records of a shard); must divide ``samples``.

    Raises:
        ValueError: if the blocks do not make up the dataset.
    """

    samples: int
    seed: int
    block: int = 1

    def __post_init__(self) -> None:
        if self.block < 1 or self.samples % self.block:
            raise ValueError(f"{self.samples} samples are not made up of blocks of {self.block}")

    def data_epoch(self, span: Span) -> int:
        """Pass over the data that a span belongs to, from 0."""
        return span.start // self.samples

    def indices(self, span: Span) -> npt.NDArray[np.int64]:
        """Dataset indices at the span's positions, shape ``(span.size,)``; the span lies within one pass."""
        data_epoch, start = divmod(span.start, self.samples)
        order = _permutation(self.samples // self.block, self.seed, data_epoch)
        if self.block == 1:
            return order.indices(start, start + span.size)
        positions = np.arange(start, start + span.size, dtype=np.int64)
        first = start // self.block
        blocks = order.indices(first, int(positions[-1]) // self.block + 1)
        indices: npt.NDArray[np.int64] = blocks[positions // self.block - first] * self.block + positions % self.block
        return indices
