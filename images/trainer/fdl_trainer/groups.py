"""Process groups, one for each membership epoch, and the only way to wait inside a collective.

A group is a raw Gloo backend: no default group, nothing global, so that the old and the next epoch's groups live
side by side. Rules, with their reasons in docs/protocol.md:

* a rank waits in slices and looks at the control flags between them, so that a new epoch frees it at once;
* a failed operation destroys its group at once: that frees the peers which wait for this rank;
* an abandoned operation still owns its buffer: :class:`Reaper` keeps both until it has ended.
"""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
from torch._C._distributed_c10d import ProcessGroupGloo

from fdl_trainer.store import EpochStore, StoreTransport

log = logging.getLogger(__name__)

GROUP_TIMEOUT = timedelta(minutes=30)
"""Limit of one operation. Never a means to find the dead: being late is allowed."""
WAIT_SLICE = timedelta(milliseconds=20)
REAP_PERIOD_SECONDS = 0.05


class CollectiveFailedError(RuntimeError):
    """An operation of the group failed here. It says nothing about who is at fault."""


class InterruptedCollectiveError(RuntimeError):
    """The control channel asked to leave the operation; the group was abandoned."""


class Interrupt(Protocol):
    """Asked between two slices of waiting; true means: leave the operation."""

    def __call__(self) -> bool: ...


class Group(Protocol):
    """What the window loop needs of a group."""

    rank: int
    size: int

    def all_reduce(self, buffer: torch.Tensor, interrupt: Interrupt) -> None:
        """Sum ``buffer`` over all ranks, in place. Raises CollectiveFailedError, InterruptedCollectiveError."""

    def broadcast(self, buffer: torch.Tensor, root: int, interrupt: Interrupt) -> None:
        """Overwrite ``buffer`` with the root's. Raises CollectiveFailedError, InterruptedCollectiveError."""

    def close(self) -> None:
        """Destroy the group; it has no operation in flight."""


class LocalGroup:
    """The group of a single rank: every operation is the identity."""

    rank = 0
    size = 1

    def all_reduce(self, buffer: torch.Tensor, interrupt: Interrupt) -> None:
        """Leave the buffer as it is."""

    def broadcast(self, buffer: torch.Tensor, root: int, interrupt: Interrupt) -> None:
        """Leave the buffer as it is."""

    def close(self) -> None:
        """Nothing to destroy."""


class Reaper:
    """Keeps abandoned operations with their buffers until they have ended, then drops them."""

    def __init__(self) -> None:
        self._kept: list[tuple[Any, Any, torch.Tensor]] = []
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def keep(self, backend: Any, work: Any, buffer: torch.Tensor) -> None:
        """Take an operation in flight; its group is destroyed once it has ended."""
        with self._lock:
            self._kept.append((backend, work, buffer))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fdl-reaper", daemon=True)
                self._thread.start()

    def pending(self) -> int:
        """Abandoned operations that have not ended."""
        with self._lock:
            return len(self._kept)

    def _run(self) -> None:
        while True:
            time.sleep(REAP_PERIOD_SECONDS)
            with self._lock:
                ended = [entry for entry in self._kept if entry[1].is_completed()]
                self._kept = [entry for entry in self._kept if not entry[1].is_completed()]
                if not self._kept and not ended:
                    self._thread = None
                    return
            for backend, work, _ in ended:
                with contextlib.suppress(RuntimeError):
                    work.wait()
                _destroy(backend)


class GlooGroup:
    """A Gloo backend over one epoch's members."""

    def __init__(self, backend: Any, rank: int, size: int, reaper: Reaper) -> None:
        self.rank = rank
        self.size = size
        self._backend = backend
        self._reaper = reaper

    def all_reduce(self, buffer: torch.Tensor, interrupt: Interrupt) -> None:
        """See :class:`Group`."""
        self._run(lambda backend: backend.allreduce([buffer]), buffer, interrupt)

    def broadcast(self, buffer: torch.Tensor, root: int, interrupt: Interrupt) -> None:
        """See :class:`Group`."""
        self._run(lambda backend: backend.broadcast(buffer, root), buffer, interrupt)

    def close(self) -> None:
        """See :class:`Group`."""
        backend, self._backend = self._backend, None
        if backend is not None:
            _destroy(backend)

    def _run(self, start: Callable[[Any], Any], buffer: torch.Tensor, interrupt: Interrupt) -> None:
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

    def _wait(self, start: Callable[[Any], Any], buffer: torch.Tensor, interrupt: Interrupt) -> str | None:
        """Run an operation; returns None, or why it did not complete (then without a backend: it was abandoned)."""
        try:
            work = start(self._backend)
        except RuntimeError as error:
            return _first_line(error)
        while True:
            with contextlib.suppress(RuntimeError):
                work.wait(WAIT_SLICE)
                return None
            if work.is_completed():  # a slice that ran out raises as a failure does: only an ended operation tells
                return _outcome(work)
            if interrupt():
                backend, self._backend = self._backend, None
                self._reaper.keep(backend, work, buffer)
                return "A newer membership epoch or the end of the run came first."


def _outcome(work: Any) -> str | None:
    try:
        work.wait()
    except RuntimeError as error:
        return _first_line(error)
    return None


def form_gloo(
    transport: StoreTransport, *, epoch: int, rank: int, size: int, address: str, reaper: Reaper, interrupt: Interrupt
) -> Group:
    """Form the group of an epoch and prove it with a one-element all-reduce.

    Args:
        transport: carries the rendezvous.
        epoch: number of the membership epoch.
        rank: this rank's place in its member list.
        size: ranks in the list.
        address: IP address at which the others reach this rank.
        reaper: keeps operations that are abandoned later.
        interrupt: true once the group is not wanted any more.

    Raises:
        RuntimeError: a peer did not come, or the epoch was cancelled.
    """
    if size == 1:
        return LocalGroup()
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # torch's stubs lack it; all versions have it
    options._timeout = GROUP_TIMEOUT
    options._threads = 1  # one operation is in flight at a time
    # The own address and not a name: a reverse look-up without DNS takes ten seconds.
    options._devices = [ProcessGroupGloo.create_device(hostname=address)]
    backend = ProcessGroupGloo(EpochStore(transport, epoch), rank, size, options)
    group = GlooGroup(backend, rank, size, reaper)
    proof = torch.ones(1)
    group.all_reduce(proof, interrupt)
    if int(proof.item()) != size:
        group.close()
        raise CollectiveFailedError(f"The group of epoch {epoch} counts {int(proof.item())} ranks instead of {size}.")
    return group


def _destroy(backend: Any) -> None:
    # torch 2.6 has no shutdown of a Gloo backend: there, dropping the last reference closes its sockets.
    shutdown = getattr(backend, "shutdown", None)
    if shutdown is not None:
        with contextlib.suppress(RuntimeError, NotImplementedError):
            shutdown()


def _first_line(error: BaseException) -> str:
    line = (str(error).strip().splitlines() or ["no message"])[0]
    return line.split(" This is typically caused", maxsplit=1)[0][:900]
