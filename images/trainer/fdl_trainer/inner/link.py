"""The processes of one rank, as a process group of their own on loopback."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from fdl_api.exitcodes import PodExit
from fdl_api.reasons import Ended
from fdl_api.termination import Cause
from fdl_trainer.ending import RunEndedError
from fdl_trainer.inner.messages import Message
from fdl_trainer.inner.place import Place

STEP_LIMIT = timedelta(minutes=10)
"""Longest wait inside a collective of training: all processes do the same at the same time."""
STANDSTILL_LIMIT = timedelta(days=7)
"""Longest wait for the leader's next word. It stands still as long as its run does; deaths are noticed at once."""
_INTERFACE = "GLOO_SOCKET_IFNAME"


class Link:
    """Forms the group and carries the leader's messages.

    Args:
        place: of this process.
        device: that it trains on.

    Attributes:
        mesh: of all processes, one-dimensional; there once the group was formed.
    """

    mesh: DeviceMesh

    def __init__(self, place: Place, device: torch.device) -> None:
        self.place = place
        self.device = device
        self._control: dist.ProcessGroup | None = None

    def form(self) -> None:
        """Meet the other processes.

        Raises:
            RunEndedError: one of them has gone or did not come.
        """
        backend = "gloo" if self.device.type == "cpu" else f"cpu:gloo,{self.device.type}:nccl"
        with together(), _loopback():
            store = FileStore(str(self.place.store), self.place.size)
            dist.init_process_group(
                backend, store=store, rank=self.place.rank, world_size=self.place.size, timeout=STEP_LIMIT
            )
            control = dist.new_group(backend="gloo", timeout=STANDSTILL_LIMIT)
            assert isinstance(control, dist.ProcessGroup)  # of all processes, so this one is in it
            self._control = control
            self.mesh = init_device_mesh(self.device.type, (self.place.size,))

    def send(self, messages: Message | Sequence[Message]) -> None:
        """As leader: give each process its message, or all the same; the first is this process's own.

        Raises:
            RunEndedError: one of them has gone.
        """
        each = list(messages) if isinstance(messages, Sequence) else [messages] * self.place.size
        self._scatter(each)

    def receive(self) -> Message:
        """As follower: wait for the leader's next message.

        Raises:
            RunEndedError: it has gone.
        """
        return self._scatter(None)

    def mean(self, value: torch.Tensor) -> torch.Tensor:
        """Mean over all processes of a tensor of shape ``[]``; nothing waits for the device."""
        total = value.detach().float().clone()
        dist.all_reduce(total)
        return total / self.place.size

    def _scatter(self, messages: list[Message] | None) -> Message:
        received: list[Message | None] = [None]
        with together():
            dist.scatter_object_list(received, messages, src=0, group=self._control)
        return cast(Message, received[0])


@contextlib.contextmanager
def together() -> Iterator[None]:
    """What all processes do at once: when it fails, one of them has failed.

    Raises:
        RunEndedError: it has failed.
    """
    try:
        yield
    except RuntimeError as error:
        raise RunEndedError(
            PodExit.INTERNAL,
            Ended.INTERNAL,
            "A process of this member's rank, which spans several devices, has ended or does not answer, and the "
            f"member ends with it; the log of the member says which: {str(error)[:500]}",
            Cause.INFRASTRUCTURE,
        ) from error


@contextlib.contextmanager
def _loopback() -> Iterator[None]:
    """Have torch's own groups listen on loopback: only the group between members is for the network."""
    before = os.environ.get(_INTERFACE)
    os.environ[_INTERFACE] = "lo"
    try:
        yield
    finally:
        os.environ.pop(_INTERFACE)
        if before is not None:
            os.environ[_INTERFACE] = before
