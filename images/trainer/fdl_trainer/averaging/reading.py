"""A device's numbers on their way to the host."""

from typing import Any

import torch
from torch import Tensor


class Reading:
    """The copy of a few numbers, begun at once and waited for only when they are asked for.

    ``tensor.item()`` would wait for everything that the device was given since; this waits for no later work. The
    memory that it goes through is kept, so that a reading may be begun again and again.

    Args:
        values: shape ``[n]``, on any device; read anew by each :meth:`begin`.

    Attributes:
        values: these.
    """

    def __init__(self, values: Tensor) -> None:
        self.values = self._host = values
        self._event: Any = None
        if values.is_cuda:
            self._host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def begin(self) -> None:
        """Have the values read as they are when the device comes to this point."""
        if self._event is not None:
            self._host.copy_(self.values, non_blocking=True)
            self._event.record()

    def numbers(self) -> list[float]:
        """What was read last, as Python's numbers: waits for the device to have come to that point."""
        if self._event is not None:
            self._event.synchronize()
        numbers: list[float] = self._host.tolist()
        return numbers
