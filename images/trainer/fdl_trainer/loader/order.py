"""Which samples a span of the run's stream consists of. Holds no list: its size does not depend on the dataset's."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from fdl_trainer.ledger import Span
from fdl_trainer.permutation import Permutation

CHUNK = 4096
"""Positions whose indices are computed at once: for the few of a batch the calls take longer than the numbers."""


@lru_cache(maxsize=8)
def _chunk(order: Permutation, number: int) -> npt.NDArray[np.int64]:
    """32 KiB, for the batches that follow: those of one rank lie side by side in a window."""
    start = number * CHUNK
    return order.indices(start, min(start + CHUNK, order.samples))


def _places(order: Permutation, start: int, stop: int) -> npt.NDArray[np.int64]:
    """The same as :meth:`Permutation.indices`; a copy."""
    order.require(start, stop)
    first, last = start // CHUNK, max(start, stop - 1) // CHUNK
    chunks = [_chunk(order, number) for number in range(first, last + 1)]
    joined = chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
    return joined[start - first * CHUNK : stop - first * CHUNK].copy()


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
        """Dataset indices at the span's positions, shape ``(span.size,)``; the span lies within one pass.

        Raises:
            IndexError: it does not.
        """
        data_epoch, start = divmod(span.start, self.samples)
        order = Permutation(self.samples // self.block, self.seed, data_epoch)
        if self.block == 1:
            return _places(order, start, start + span.size)
        positions = np.arange(start, start + span.size, dtype=np.int64)
        first = start // self.block
        last = int(positions[-1]) // self.block
        blocks = _places(order, first, last + 1)
        indices: npt.NDArray[np.int64] = blocks[positions // self.block - first] * self.block + positions % self.block
        return indices
