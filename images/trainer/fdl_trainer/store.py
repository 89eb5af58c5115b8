"""The rendezvous store of a membership epoch, kept by the coordinator.

Process groups find their peers through a key-value store. This one speaks the run's own protocol
(``StoreSet``, ``StoreGet``), so that no rank hosts anything that the others would lose with it.
Gloo and NCCL call ``set``, ``wait`` and ``get`` only, from C++ with the GIL, on torch 2.6 as on 2.15.
"""

import threading
from datetime import timedelta
from typing import Protocol

from torch._C._distributed_c10d import Store

DEFAULT_WAIT = timedelta(minutes=5)


class StoreClosedError(RuntimeError):
    """The epoch was cancelled or superseded: its group will never be complete."""


class StoreTransport(Protocol):
    """What carries the store's requests to the coordinator."""

    def store_set(self, epoch: int, key: str, value: bytes) -> None:
        """Set a key and wait for the answer; raises StoreClosedError."""

    def store_get(self, epoch: int, keys: list[str], timeout_seconds: float) -> list[bytes]:
        """Wait until all keys exist and return their values; raises StoreClosedError."""


class EpochStore(Store):
    """One epoch's keys. Values never change once set, so each is fetched once.

    Args:
        transport: carries the requests.
        epoch: number of the membership epoch.
        prefix: begins all keys, where an epoch has several groups.
    """

    def __init__(self, transport: StoreTransport, epoch: int, prefix: str = "") -> None:
        super().__init__()
        self._transport = transport
        self._epoch = epoch
        self._prefix = prefix
        self._known: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def set(self, key: str, value: bytes | str) -> None:
        """Set ``key``; raises StoreClosedError when the epoch is over."""
        self._transport.store_set(
            self._epoch, self._prefix + key, value.encode() if isinstance(value, str) else bytes(value)
        )

    def get(self, key: str) -> bytes:
        """Value of ``key``, waited for; raises StoreClosedError when the epoch is over."""
        self.wait([key])
        with self._lock:
            return self._known[key]

    def wait(self, keys: list[str], timeout: timedelta = DEFAULT_WAIT) -> None:
        """Wait until all ``keys`` are set; raises StoreClosedError when the epoch is over or time runs out."""
        with self._lock:
            missing = [key for key in keys if key not in self._known]
        if not missing:
            return
        prefixed = [self._prefix + key for key in missing]
        values = self._transport.store_get(self._epoch, prefixed, timeout.total_seconds())
        with self._lock:
            self._known.update(zip(missing, values, strict=True))
