"""Folders and files of volumes, each looked at by a process of its own: a file server that hangs must not hang us."""

import json
import os
from pathlib import Path

from pydantic import Field

from fdl_api.model import StatusModel
from fdl_api.report import Sentinel
from fdl_prober.child import run_module
from fdl_prober.text import plain

TIMEOUT_SECONDS = 20.0
READ_SECONDS = 2.0


class Seen(StatusModel):
    """What a look at a folder or file found."""

    step: str = Field(default="", description="Step that failed: look, list, write or read; empty when all went well.")
    errno: int = 0
    error: str = Field(default="", description="Why the look has no answer, if it has none.")
    empty: bool = False
    free_bytes: int | None = None
    free_files: int | None = None
    bytes_per_second: int | None = None
    sha256: str = ""

    @property
    def words(self) -> str:
        """The system's words for what failed."""
        return self.error or os.strerror(self.errno)


async def look(path: Path, kind: str, read_seconds: float = 0.0, timeout_seconds: float = TIMEOUT_SECONDS) -> Seen:
    """Look at one folder or file.

    Args:
        path: where it is.
        kind: ``data``, ``checkpoints`` or ``file``.
        read_seconds: time to read for the folder's speed; 0 for none.
        timeout_seconds: limit, after which the look has no answer.
    """
    argument = json.dumps({"path": str(path), "kind": kind, "seconds": read_seconds})
    ended = await run_module("fdl_prober.children.volume", argument, limit_seconds=timeout_seconds)
    if ended.code is None:
        return Seen(error=f"reading did not end within {timeout_seconds:g} s")
    try:
        return Seen.model_validate_json(ended.output)
    except ValueError:
        return Seen(error=(ended.error or f"the look ended with code {ended.code}")[-300:])


async def sentinel(path: Path, timeout_seconds: float = TIMEOUT_SECONDS) -> Sentinel:
    """Hash a file of the shared volume: nodes that see different content have different mounts."""
    seen = await look(path, "file", timeout_seconds=timeout_seconds)
    error = "" if seen.sha256 else seen.words
    return Sentinel(
        path=plain(str(path), 300), sha256=seen.sha256, error=error, errno=seen.errno, answered=not seen.error
    )
