"""Folders and files of volumes, each looked at by a process of its own: a file server that hangs must not hang us."""

import asyncio
import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from pydantic import Field

from fdl_api.model import StatusModel
from fdl_api.report import Sentinel
from fdl_prober.child import run_module
from fdl_prober.settings import Folder
from fdl_prober.text import plain

TIMEOUT_SECONDS = 20.0
"""Limit of a look at all volumes, since they are looked at side by side."""

READ_SECONDS = 2.0
READ_LIMIT_SECONDS = 10.0
"""Limit of one timed reading, which is part of :data:`TIMEOUT_SECONDS`."""

READ_AGAIN_SECONDS = 3600.0
HASH_AGAIN_SECONDS = 600.0
"""Age at which the sentinel is hashed again although its state is the same: a cache may hold old content behind new
times, and give it up without any change of them."""


class Seen(StatusModel):
    """What a look at a folder or file found."""

    step: str = Field(default="", description="Step that failed: look, list, write or read; empty when all went well.")
    errno: int = 0
    error: str = Field(default="", description="Why the look has no answer, if it has none.")
    empty: bool = False
    free_bytes: int | None = None
    free_files: int | None = None
    bytes_per_second: int | None = None
    state: str = Field(default="", description="Device, inode, size and times of a file.")
    sha256: str = ""

    @property
    def words(self) -> str:
        """The system's words for what failed."""
        return self.error or os.strerror(self.errno)

    @property
    def good(self) -> bool:
        """Whether nothing failed."""
        return not (self.step or self.error)


async def look(
    path: Path, kind: str, read_seconds: float = 0.0, timeout_seconds: float = TIMEOUT_SECONDS, known: str = ""
) -> Seen:
    """Look at one folder or file.

    Args:
        path: where it is.
        kind: ``data``, ``checkpoints`` or ``file``.
        read_seconds: time to read for the folder's speed; 0 for none.
        timeout_seconds: limit, after which the look has no answer.
        known: state in which a file is not hashed again.
    """
    argument = json.dumps({"path": str(path), "kind": kind, "seconds": read_seconds, "known": known})
    ended = await run_module("fdl_prober.children.volume", argument, limit_seconds=timeout_seconds)
    if ended.code is None:
        return Seen(error=f"reading did not end within {timeout_seconds:g} s")
    try:
        return Seen.model_validate_json(ended.output)
    except ValueError:
        return Seen(error=(ended.error or f"the look ended with code {ended.code}")[-300:])


class SharedFile:
    """The file that all nodes should see alike: nodes that see different content have different mounts, or a stale
    cache. It is hashed through the cache, as programs of this node would read it, and again when its state changed.

    Args:
        path: where it is.
        clock: seconds that never go back.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._kept = Seen()
        self._hashed_at = 0.0

    async def look(self, timeout_seconds: float = TIMEOUT_SECONDS) -> Sentinel:
        """The file's hash, or why there is none."""
        now = self._clock()
        known = self._kept.state if now - self._hashed_at < HASH_AGAIN_SECONDS else ""
        seen = await look(self._path, "file", timeout_seconds=timeout_seconds, known=known)
        if seen.sha256 or not seen.good:
            self._kept, self._hashed_at = seen, now
        kept = self._kept
        return Sentinel(
            path=plain(str(self._path), 300),
            sha256=kept.sha256,
            error="" if kept.sha256 else kept.words,
            errno=kept.errno,
            answered=not kept.error,
        )


class Folders:
    """Folders that are looked at again and again, side by side; how fast they read is measured now and then only.

    Args:
        folders: which ones.
        clock: seconds that never go back.
    """

    def __init__(self, folders: tuple[Folder, ...], clock: Callable[[], float] = time.monotonic) -> None:
        self._folders = folders
        self._clock = clock
        self._speeds: dict[Folder, tuple[float, int | None]] = {}

    async def look(self, timeout_seconds: float = TIMEOUT_SECONDS) -> Mapping[Folder, Seen]:
        """What is found at each folder, within one limit for all of them."""
        reading = asyncio.Lock()  # two that read from one disk at once would both look slow
        found = await asyncio.gather(*(self._one(folder, reading, timeout_seconds) for folder in self._folders))
        return dict(zip(self._folders, found, strict=True))

    async def _one(self, folder: Folder, reading: asyncio.Lock, timeout_seconds: float) -> Seen:
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_seconds
        seen = await look(folder.path, folder.kind, timeout_seconds=timeout_seconds)
        measured, speed = self._speeds.get(folder, (-READ_AGAIN_SECONDS, None))
        if folder.kind == "data" and seen.good and self._clock() - measured >= READ_AGAIN_SECONDS:
            async with reading:
                # What does not fit into the limit is measured at the next look.
                if end - loop.time() >= READ_LIMIT_SECONDS:
                    seen = await look(folder.path, folder.kind, READ_SECONDS, READ_LIMIT_SECONDS)
                    if seen.good:
                        self._speeds[folder] = (self._clock(), seen.bytes_per_second)
                    return seen
        return seen.model_copy(update={"bytes_per_second": speed})
