"""A device's number on its way to the host."""

import torch
from torch import Tensor


class Reading:
    """The copy of a scalar, begun at once and waited for only when it is asked for.

    ``tensor.item()`` would wait for everything that the device was given since; this waits for no later work.

    Args:
        value: shape ``[]``, on any device.
    """

    def __init__(self, value: Tensor) -> None:
        self._host, self._event = value, None
        if value.is_cuda:
            self._host = torch.empty((), dtype=value.dtype, pin_memory=True)
            self._host.copy_(value, non_blocking=True)
            self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._event.record()

    def __float__(self) -> float:
        if self._event is not None:
            self._event.synchronize()
        return float(self._host)
