"""Copies batches to the rank's device beside the training: from pinned memory, on a stream of their own."""

from dataclasses import dataclass
from typing import Any

import torch

from fdl_trainer.loader.trees import map_tensors, tensors, to_device


@dataclass(frozen=True)
class Parcel:
    """A batch on its way. ``arrived`` is None where nothing has to be waited for."""

    data: Any
    arrived: torch.cuda.Event | None = None


class Courier:
    """Brings batches to one device.

    Args:
        device: an accelerator or the CPU, where nothing is copied.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream: torch.cuda.Stream | None = None

    def send(self, data: Any) -> Parcel:
        """Start to copy a batch; called from the loader's thread, it waits for nothing on the device."""
        if self._device.type != "cuda":
            return Parcel(to_device(data, self._device))
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        pinned = map_tensors(lambda tensor: tensor if tensor.is_cuda else tensor.pin_memory(), data)
        with torch.cuda.stream(self._stream):
            moved = to_device(pinned, self._device)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record(self._stream)
        return Parcel(moved, arrived)

    def receive(self, parcel: Parcel) -> Any:
        """The batch, for use on the current stream; the stream waits for the copy, the caller does not."""
        if parcel.arrived is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(parcel.arrived)
            for tensor in tensors(parcel.data):
                if tensor.is_cuda:
                    tensor.record_stream(current)  # its memory was taken on the courier's stream
        return parcel.data
