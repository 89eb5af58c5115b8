"""How long a rank computes and waits, on the host's clock or on the device's.

A device works behind the host's back: when a batch's Python code has run, its kernels may not even have begun. So on a
device each mark is an event in the stream, and the time between two marks is read at the end of the window, when the
stream has passed them anyway. Nothing waits for a batch.
"""

import time
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Marks points of a rank's work and tells the time between two of them."""

    def mark(self) -> Any:
        """A mark at this point."""

    def milliseconds(self, since: Any, until: Any) -> float:
        """Time between two marks; waits until the work before the second one is done."""


class HostClock:
    """For devices whose work is done when the call returns: the CPU."""

    def mark(self) -> float:
        """See :class:`Clock`."""
        return time.perf_counter()

    def milliseconds(self, since: float, until: float) -> float:
        """See :class:`Clock`."""
        return (until - since) * 1000.0


class DeviceClock:
    """Events in the current stream of the current CUDA (or ROCm) device.

    Between two marks the device may also have idled, waiting for the host. That counts as computing, as it should: a
    script whose Python code is slower than its kernels makes a slow rank.
    """

    def mark(self) -> torch.cuda.Event:
        """See :class:`Clock`."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def milliseconds(self, since: torch.cuda.Event, until: torch.cuda.Event) -> float:
        """See :class:`Clock`."""
        until.synchronize()
        return float(since.elapsed_time(until))


def clock_here() -> Clock:
    """The clock of this process's device: a rank has one, and the script's first batch has touched it."""
    return DeviceClock() if torch.cuda.is_available() and torch.cuda.is_initialized() else HostClock()  # type: ignore[no-untyped-call]
