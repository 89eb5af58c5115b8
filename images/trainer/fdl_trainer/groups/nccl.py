"""NCCL (on AMD devices RCCL) over one membership epoch's ranks, one device each.

torch's backend object is used directly, over the coordinator's rendezvous: no TCPStore, no default group. torch's own
machinery for lost peers is switched off (:func:`settings`): it ends the process, and would be too late. Instead, as
measured on two H200 (docs/concepts/groups.md):

* at most one collective is in flight, enqueued from a stream of the group's own and waited for by polling an event, so
  that neither the host nor the script's stream ever waits for a peer that is dead;
* on the coordinator's word the wait is left, the operation keeps its buffers, and the old communicator is aborted in a
  side thread only once the next group works (:meth:`NcclGroup.close`): an abort takes 0.5 to 5 s and may hold up the
  making of another communicator for as long;
* a call that does not even come back from enqueuing is freed by an abort at once (:class:`EnqueueWatch`).
"""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from datetime import timedelta
from typing import Any

import torch
from torch._C import _distributed_c10d as c10d

from fdl_api import nccl_env
from fdl_trainer import variant
from fdl_trainer.groups.contract import (
    CollectiveFailedError,
    Interrupt,
    InterruptedCollectiveError,
    first_line,
)
from fdl_trainer.groups.reaper import Reaper
from fdl_trainer.interfaces import ipv4_addresses

OLDEST_NCCL = (2, 26)
"""2.25 hangs in an abort (fixed in 2.26.2)."""
OPERATION_LIMIT = timedelta(hours=24)
"""torch's own limit; nothing here depends on it."""
ENQUEUE_PATIENCE_SECONDS = 0.25
_WATCH_PERIOD_SECONDS = 0.05
_ERROR_LOOKS = 50
_SPIN_SECONDS = 0.002
"""Polling without a pause: an all-reduce of 250 MB over NVLink takes 0.9 ms."""
_PAUSE_SECONDS = 0.0002
_LONG_WAIT_SECONDS = 0.05
"""From here on the rank waits for a slower one and polls less often, so that it leaves its core to others."""
_LONG_PAUSE_SECONDS = 0.001


def settings(environment: Mapping[str, str], interface: str | None) -> dict[str, str]:
    """Variables that NCCL and torch's backend read when the first group is made.

    torch's handling of errors and its monitor are off whatever the user says, since they end the process at a lost
    peer. The rest are defaults: NVLink multicast off (a program that dies while it uses it can leave the devices of
    the whole host unusable), and the network interface that has the member's address.
    """
    forced = {
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
        "TORCH_NCCL_ENABLE_MONITORING": "0",
        "TORCH_NCCL_BLOCKING_WAIT": "0",
        "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
        "TORCH_NCCL_PROPAGATE_ERROR": "0",
    }
    defaults = dict(nccl_env.OWN)
    if interface is not None:
        defaults["NCCL_SOCKET_IFNAME"] = f"={interface}"
    return {**{key: value for key, value in defaults.items() if key not in environment}, **forced}


def interface_of(address: str) -> str | None:
    """Name of the interface that has an IPv4 address; None when there is none (or it is an IPv6 address)."""
    try:
        wanted = socket.inet_ntoa(socket.inet_aton(address))
    except OSError:
        return None
    return next((name for name, has in ipv4_addresses().items() if has == wanted), None)


def refusal(version: tuple[int, ...] | None, device: torch.device, who: str) -> str | None:
    """Why this rank cannot take part in an nccl mode, as a sentence; None when it can."""
    way_out = "set spec.mode to 'cpu-cadence' or 'cpu-sync' in a new run"
    if device.type != "cuda":
        return f"{who} trains on {device.type} and spec.mode is an nccl mode, which needs a device: {way_out}."
    if version is None:
        return f"{who} has a torch without NCCL: use an image whose torch has it (spec.trainer), or {way_out}."
    if version[:2] < OLDEST_NCCL:
        text, oldest = ".".join(map(str, version)), ".".join(map(str, OLDEST_NCCL))
        return (
            f"{who} loads NCCL {text}; fdl needs {oldest} or newer, since older ones can hang for ever after a "
            f"member's death: use an image with a newer one, or {way_out}."
        )
    return None


def nccl_version() -> tuple[int, ...] | None:
    """NCCL or RCCL version that this process loads; None where torch has none."""
    text = variant.nccl_text(variant.nccl_version(torch))
    return tuple(int(part) for part in text.split(".")) if text is not None else None


class NcclGroup:
    """A communicator over some ranks of one epoch."""

    def __init__(self, backend: Any, rank: int, size: int, device: torch.device, reaper: Reaper) -> None:
        self.rank = rank
        self.size = size
        self._backend = backend
        self._device = device
        self._reaper = reaper
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._left: list[object] = []
        self._watch = EnqueueWatch(backend.abort)
        self._sum = _reduce_options()
        self._ready, self._done = torch.cuda.Event(), torch.cuda.Event()  # type: ignore[no-untyped-call]

    def all_reduce(self, buffer: torch.Tensor, interrupt: Interrupt) -> None:
        """See :class:`Group`."""
        self._run(lambda backend, tensor: backend.allreduce([tensor], self._sum), buffer, interrupt)

    def broadcast(self, buffer: torch.Tensor, root: int, interrupt: Interrupt) -> None:
        """See :class:`Group`."""
        self._run(lambda backend, tensor: backend.broadcast([tensor], _broadcast_options(root)), buffer, interrupt)

    def close(self) -> None:
        """See :class:`Group`. Returns at once; the abort runs in a side thread."""
        backend, self._backend = self._backend, None
        if backend is None:
            return
        self._watch.close()
        left, self._left = self._left, []
        if not self._watch.aborted:
            self._reaper.retire(backend.abort, (backend, left, self._stream))

    def _run(self, start: Callable[[Any, torch.Tensor], Any], buffer: torch.Tensor, interrupt: Interrupt) -> None:
        if self._backend is None or self._left:
            raise CollectiveFailedError("The communicator was given up after an operation that did not complete.")
        with torch.cuda.device(self._device):
            there = buffer if buffer.device.type == "cuda" else buffer.to(self._device)
            why = self._enqueue_and_wait(start, there, interrupt)
            if why is not None:
                raise why
            if there is not buffer:
                buffer.copy_(there)

    def _enqueue_and_wait(
        self, start: Callable[[Any, torch.Tensor], Any], buffer: torch.Tensor, interrupt: Interrupt
    ) -> CollectiveFailedError | InterruptedCollectiveError | None:
        self._ready.record(torch.cuda.current_stream())
        self._stream.wait_event(self._ready)
        try:
            with torch.cuda.stream(self._stream), self._watch.watching(interrupt):
                work = start(self._backend, buffer)
                work.wait()  # orders this group's stream behind the operation; the host does not wait
                self._done.record(self._stream)
        except RuntimeError as error:
            self._left.append(buffer)
            if self._watch.aborted:
                return InterruptedCollectiveError("The communicator was aborted while the operation was enqueued.")
            self.close()
            return CollectiveFailedError(first_line(error))
        outcome = self._poll(work, interrupt)
        if outcome is not None:
            self._left += [work, buffer]
        if isinstance(outcome, CollectiveFailedError):
            self.close()
        return outcome

    def _poll(self, work: Any, interrupt: Interrupt) -> CollectiveFailedError | InterruptedCollectiveError | None:
        started, looks = time.monotonic(), 0
        while not self._done.query():  # type: ignore[no-untyped-call]
            if interrupt():
                return InterruptedCollectiveError("A newer membership epoch or the end of the run came first.")
            looks += 1
            if looks % _ERROR_LOOKS == 0 and self._in_error():
                return CollectiveFailedError(_said(work))
            waited = time.monotonic() - started
            if waited > _SPIN_SECONDS:
                time.sleep(_PAUSE_SECONDS if waited < _LONG_WAIT_SECONDS else _LONG_PAUSE_SECONDS)
        if self._watch.aborted:  # an abort completes what was in flight, with anything in the buffer
            return InterruptedCollectiveError("The communicator was aborted while the operation was enqueued.")
        return None

    def _in_error(self) -> bool:
        """Whether NCCL says that the communicator is broken (a peer's socket closed, a device fault)."""
        return bool(self._backend.get_error() != c10d.ErrorType.SUCCESS)


class EnqueueWatch:
    """Aborts a communicator whose caller does not come back from enqueuing although it was asked to leave.

    Its thread looks now and then by itself: to wake it for each operation would cost the caller the interpreter's lock
    just when it enqueues.
    """

    def __init__(self, abort: Callable[[], None]) -> None:
        self.aborted = False
        self._abort = abort
        self._closed = threading.Event()
        self._number = 0
        self._inside: tuple[int, Interrupt] | None = None
        threading.Thread(target=self._run, name="fdl-nccl-watch", daemon=True).start()

    @contextlib.contextmanager
    def watching(self, interrupt: Interrupt) -> Iterator[None]:
        """Watch what is enqueued in this block."""
        self._number += 1
        self._inside = (self._number, interrupt)
        try:
            yield
        finally:
            self._inside = None

    def close(self) -> None:
        """End the thread."""
        self._closed.set()

    def _run(self) -> None:
        number, asked_at = 0, 0.0
        while not self._closed.wait(_WATCH_PERIOD_SECONDS):
            inside = self._inside
            if inside is None or not inside[1]():
                number = 0
            elif number != inside[0]:
                number, asked_at = inside[0], time.monotonic()
            elif time.monotonic() - asked_at > ENQUEUE_PATIENCE_SECONDS and self._inside is inside:
                self.aborted = True
                with contextlib.suppress(RuntimeError):
                    self._abort()
                return


def new_nccl(
    store: c10d.Store, *, name: str, rank: int, size: int, device: torch.device, address: str, reaper: Reaper
) -> NcclGroup:
    """Make a communicator; returns once all ranks are in it.

    Args:
        store: carries the rendezvous; this group's own keys.
        name: of the group, in NCCL's messages.
        rank: this rank's place.
        size: ranks, at least two.
        device: this rank's device; no other rank of the group has the same one.
        address: IP address at which the others reach this rank.
        reaper: looks after the abort.

    Raises:
        RuntimeError: a peer did not come, or the rendezvous was closed.
    """
    apply_settings(os.environ, address)
    with torch.cuda.device(device):
        options = c10d.ProcessGroupNCCL.Options()
        options._timeout = OPERATION_LIMIT
        options.group_name = name  # type: ignore[assignment]  # a str to every version at run time
        backend = c10d.ProcessGroupNCCL(store, rank, size, options)
        backend.eager_connect_single_device(device)
        return NcclGroup(backend, rank, size, device, reaper)


def apply_settings(environment: MutableMapping[str, str], address: str) -> None:
    """Put :func:`settings` into the process's environment; both libraries read it when they are first used."""
    environment.update(settings(environment, interface_of(address)))


def _reduce_options() -> Any:
    options = c10d.AllreduceOptions()
    options.reduceOp = c10d.ReduceOp.SUM
    return options


def _broadcast_options(root: int) -> Any:
    options = c10d.BroadcastOptions()
    options.rootRank = root
    options.rootTensor = 0
    return options


def _said(work: Any) -> str:
    try:
        work.wait()
    except RuntimeError as error:
        return first_line(error)
    return "NCCL reported an error of the communicator; NCCL_DEBUG=WARN in the member's environment shows it."
