"""The order of the samples within one pass over the data, computed position by position.

A keyed Feistel network over the smallest even number of bits that holds all samples, walked until the value
lies in range, is a bijection on ``[0, samples)``: every member can compute any part of the order without
holding it, so memory does not grow with the data.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

ROUNDS = 8
"""Four are enough to hide structure from a reader; eight also mix domains of a few bits."""
_MASK64 = (1 << 64) - 1
_MULTIPLIER_A = 0xBF58476D1CE4E5B9
_MULTIPLIER_B = 0x94D049BB133111EB


@dataclass(frozen=True)
class Permutation:
    """Order of the samples in one data epoch.

    Args:
        samples: number of samples in the dataset, >= 1.
        seed: the run's data seed; any integer.
        data_epoch: pass over the data, from 0. Each pass has an order of its own.

    Raises:
        ValueError: if there is no sample.
    """

    samples: int
    seed: int
    data_epoch: int

    def __post_init__(self) -> None:
        if self.samples < 1:
            raise ValueError(f"the dataset has {self.samples} samples; a permutation needs at least one")

    def index(self, position: int) -> int:
        """Dataset index at a position of this data epoch (0 <= position < samples).

        Raises:
            IndexError: if the position is out of range.
        """
        if not 0 <= position < self.samples:
            raise IndexError(f"position {position} is outside of 0..{self.samples - 1}")
        value = self._encrypt(position)
        while value >= self.samples:
            value = self._encrypt(value)
        return value

    def indices(self, start: int, stop: int) -> npt.NDArray[np.int64]:
        """Dataset indices at positions ``start..stop-1``, shape ``(stop - start,)``.

        Raises:
            IndexError: if the positions are out of range.
        """
        self.require(start, stop)
        values = self._encrypt_all(np.arange(start, stop, dtype=np.uint64))
        outside = np.flatnonzero(values >= self.samples)
        while outside.size:
            walked = self._encrypt_all(values[outside])
            values[outside] = walked
            outside = outside[walked >= self.samples]
        return values.astype(np.int64)

    def require(self, start: int, stop: int) -> None:
        """Refuse positions that this data epoch does not have.

        Raises:
            IndexError: if ``start..stop-1`` are out of range.
        """
        if not 0 <= start <= stop <= self.samples:
            raise IndexError(f"positions {start}..{stop} are outside of 0..{self.samples}")

    @cached_property
    def _half_bits(self) -> int:
        return max(1, (max(self.samples - 1, 1).bit_length() + 1) // 2)

    @cached_property
    def _keys(self) -> tuple[int, ...]:
        digest = hashlib.shake_256(f"fdl-order-1:{self.seed}:{self.data_epoch}".encode()).digest(8 * ROUNDS)
        return tuple(int.from_bytes(digest[8 * i : 8 * i + 8], "little") for i in range(ROUNDS))

    def _encrypt(self, value: int) -> int:
        half, mask = self._half_bits, (1 << self._half_bits) - 1
        left, right = value >> half, value & mask
        for key in self._keys:
            mixed = (right ^ key) * _MULTIPLIER_A & _MASK64
            mixed = (mixed ^ (mixed >> 31)) * _MULTIPLIER_B & _MASK64
            left, right = right, left ^ ((mixed >> 32) & mask)
        return (left << half) | right

    def _encrypt_all(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        half, mask = np.uint64(self._half_bits), np.uint64((1 << self._half_bits) - 1)
        left, right = values >> half, values & mask
        for key in self._keys:
            mixed = (right ^ np.uint64(key)) * np.uint64(_MULTIPLIER_A)
            mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(_MULTIPLIER_B)
            left, right = right, left ^ ((mixed >> np.uint64(32)) & mask)
        return (left << half) | right
