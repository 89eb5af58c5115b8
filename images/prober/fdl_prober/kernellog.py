"""Xid messages of NVIDIA's driver in the kernel log.

The log is read where the process may (/dev/kmsg; a privileged pod, or a machine that lets everybody read it), each
message once: the file stays open between looks. Where it may not be read, nothing is concluded.
"""

import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

MAX_RECORDS = 20_000
RECORD_BYTES = 8192
MAX_KEPT = 64
KEPT_SECONDS = 86400.0
"""The log does not tell that a device was reset since: what is older than a day is no news any more."""

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]+)\): (?P<number>\d+)")
_STAMP = re.compile(r"\d+,\d+,(\d+),")


@dataclass(frozen=True, slots=True)
class Xid:
    """One kind of message about one device.

    Attributes:
        pci: address of the device, e.g. ``0000:c1:00.0``.
        number: Xid number.
    """

    pci: str
    number: int


def address(text: str) -> str:
    """The driver writes an address without the function (``0000:c1:00``); ours is the whole one in small letters."""
    lower = text.lower()
    lower = lower[4:] if re.fullmatch(r"[0-9a-f]{8}:.*", lower) else lower
    return lower if "." in lower else f"{lower}.0"


def parse(records: Iterable[str]) -> dict[Xid, float]:
    """The Xids in some records of the kernel log, with the newest time of each, in seconds since the machine started.

    A record begins with priority, number and time in microseconds (``3,1201,5220000000,-;``).
    """
    found: dict[Xid, float] = {}
    for text in records:
        if match := _XID.search(text):
            stamp = _STAMP.match(text)
            found[Xid(address(match["pci"]), int(match["number"]))] = int(stamp[1]) / 1e6 if stamp else 0.0
    return found


class KernelLog:
    """Reader that goes on where it stopped.

    Args:
        path: the log's file.
        clock: seconds since the machine started, as the log counts them.
    """

    def __init__(self, path: Path = Path("/dev/kmsg"), clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._file: int | None = None
        self._refused = False
        self._seen: dict[Xid, float] = {}

    def look(self) -> tuple[Xid, ...]:
        """All Xids of the last :data:`KEPT_SECONDS`, as far as the log reaches back. Never waits."""
        if self._refused:
            return ()
        if self._file is None:
            try:
                self._file = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError:
                self._refused = True
                return ()
        self._seen |= parse(self._records(self._file))
        oldest = self._clock() - KEPT_SECONDS
        recent = [(xid, at) for xid, at in self._seen.items() if at >= oldest]
        self._seen = dict(recent[:MAX_KEPT])
        return tuple(self._seen)

    def _records(self, file: int) -> list[str]:
        records = []
        for _ in range(MAX_RECORDS):
            try:
                record = os.read(file, RECORD_BYTES)
            except BrokenPipeError:
                continue  # records were overwritten before they were read: the next read goes on after them
            except OSError:
                break  # no more for now, or the log may be opened but not read
            if not record:
                break
            if b"NVRM" in record:
                records.append(record.decode(errors="replace"))
        return records

    def close(self) -> None:
        """Close the log."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
