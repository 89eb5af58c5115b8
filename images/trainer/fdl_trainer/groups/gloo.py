"""A Gloo backend over one membership epoch's ranks, on any kind of device.

No default group, nothing global, so that the old and the next epoch's groups live side by side. Rules, with their
reasons in docs/protocol.md:

* a rank waits in slices and looks at the control flags between them, so that a new epoch frees it at once;
* a failed operation destroys its group at once: that frees the peers which wait for this rank;
* an abandoned operation still owns its buffer: :class:`~fdl_trainer.groups.reaper.Reaper` keeps it until it has ended.

Gloo works in host memory. A buffer on a device travels through one pinned copy of it.
"""

import contextlib
import os
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

import torch
from torch._C._distributed_c10d import ProcessGroupGloo, Store

from fdl_trainer.groups.contract import CollectiveFailedError, Interrupt, InterruptedCollectiveError, first_line
from fdl_trainer.groups.reaper import Reaper

GROUP_TIMEOUT = timedelta(minutes=30)
"""Limit of one operation. Never a means to find the dead: being late is allowed."""
WAIT_SLICE = timedelta(milliseconds=20)


class GlooGroup:
    """A Gloo backend over one epoch's members."""

    def __init__(self, backend: Any, rank: int, size: int, reaper: Reaper) -> None:
        self.rank = rank
        self.size = size
        self._backend = backend
        self._reaper = reaper
        self._stage: _Stage | None = None

    def all_reduce(self, buffer: torch.Tensor, interrupt: Interrupt) -> None:
        """See :class:`Group`."""
        self._run(lambda backend, tensor: backend.allreduce([tensor]), buffer, interrupt)

    def broadcast(self, buffer: torch.Tensor, root: int, interrupt: Interrupt) -> None:
        """See :class:`Group`."""
        self._run(lambda backend, tensor: backend.broadcast(tensor, root), buffer, interrupt)

    def close(self) -> None:
        """See :class:`Group`."""
        backend, self._backend = self._backend, None
        if backend is not None:
            _destroy(backend)

    def _run(self, start: Callable[[Any, torch.Tensor], Any], buffer: torch.Tensor, interrupt: Interrupt) -> None:
        if buffer.device.type == "cpu":
            self._run_on_host(start, buffer, interrupt)
            return
        stage = self._stage = self._stage or _Stage(buffer.device)
        host = stage.fetch(buffer)
        self._run_on_host(start, host, interrupt)
        stage.put_back(host, buffer)

    def _run_on_host(
        self, start: Callable[[Any, torch.Tensor], Any], buffer: torch.Tensor, interrupt: Interrupt
    ) -> None:
        if self._backend is None:
            raise CollectiveFailedError("The group was destroyed after an earlier failure.")
        # Raised out here, where nothing refers to the operation any more: an exception keeps the frames it went
        # through, and the operation keeps the sockets open whose closing frees the peers.
        failure = self._wait(start, buffer, interrupt)
        if failure is None:
            return
        if self._backend is None:
            raise InterruptedCollectiveError(failure)
        self.close()
        raise CollectiveFailedError(failure)

    def _wait(
        self, start: Callable[[Any, torch.Tensor], Any], buffer: torch.Tensor, interrupt: Interrupt
    ) -> str | None:
        """Run an operation; returns None, or why it did not complete (then without a backend: it was abandoned)."""
        try:
            work = start(self._backend, buffer)
        except RuntimeError as error:
            return first_line(error)
        while True:
            with contextlib.suppress(RuntimeError):
                work.wait(WAIT_SLICE)
                return None
            if work.is_completed():  # a slice that ran out raises as a failure does: only an ended operation tells
                return _outcome(work)
            if interrupt():
                backend, self._backend = self._backend, None
                self._reaper.keep(partial(_destroy, backend), work, buffer)
                return "A newer membership epoch or the end of the run came first."


class _Stage:
    """Pinned host memory for a device's buffers, copied on a stream of its own so that training can go on beside it.

    Waits only for its own copies: a device-wide wait would also wait for the kernel of a dead communicator.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pinned: torch.Tensor | None = None

    def fetch(self, buffer: torch.Tensor) -> torch.Tensor:
        """The buffer's content in host memory, as of what the caller's stream was given so far."""
        host, self._pinned = self._pinned, None
        if host is None or host.shape != buffer.shape or host.dtype != buffer.dtype:
            host = torch.empty(buffer.shape, dtype=buffer.dtype, pin_memory=True)
        self._copy(buffer, host)
        return host

    def put_back(self, host: torch.Tensor, buffer: torch.Tensor) -> None:
        """Overwrite the buffer; the host memory is kept for the next of its kind.

        Only after success: memory of an operation that was left still belongs to it.
        """
        self._copy(host, buffer)
        self._pinned = host

    def _copy(self, source: torch.Tensor, target: torch.Tensor) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)
        self._stream.synchronize()


def _outcome(work: Any) -> str | None:
    try:
        work.wait()
    except RuntimeError as error:
        return first_line(error)
    return None


def new_gloo(store: Store, rank: int, size: int, address: str, reaper: Reaper) -> GlooGroup:
    """Connect to the peers.

    Args:
        store: carries the rendezvous; this group's own keys.
        rank: this rank's place.
        size: ranks, at least two.
        address: IP address at which the others reach this rank.
        reaper: keeps operations that are abandoned later.

    Raises:
        RuntimeError: a peer did not come, or the rendezvous was closed.
    """
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # torch's stubs lack it; all versions have it
    options._timeout = GROUP_TIMEOUT
    options._threads = 1  # one operation is in flight at a time
    options._devices = [device_of(address, os.environ)]
    return GlooGroup(ProcessGroupGloo(store, rank, size, options), rank, size, reaper)


def device_of(address: str, environment: Mapping[str, str]) -> Any:
    """Where Gloo listens: on the interface ``GLOO_SOCKET_IFNAME`` where it is set, else on the member's own address.

    Raises:
        RuntimeError: there is no such interface or address here.
    """
    if interface := environment.get("GLOO_SOCKET_IFNAME"):
        return ProcessGroupGloo.create_device(interface=interface)
    # The own address and not a name: a reverse look-up without DNS takes ten seconds.
    return ProcessGroupGloo.create_device(hostname=address)


def _destroy(backend: Any) -> None:
    # torch 2.6 has no shutdown of a Gloo backend: there, dropping the last reference closes its sockets.
    shutdown = getattr(backend, "shutdown", None)
    if shutdown is not None:
        with contextlib.suppress(RuntimeError, NotImplementedError):
            shutdown()
