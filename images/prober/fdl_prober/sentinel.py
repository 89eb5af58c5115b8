"""Hash of a file on the shared volume: nodes that see different content have different mounts."""

import hashlib
import sys
from pathlib import Path

from fdl_api.report import Sentinel
from fdl_prober.child import run_module

MAX_BYTES = 64 * 1024 * 1024
TIMEOUT_SECONDS = 20.0


def digest(path: Path) -> str:
    """SHA-256 of the file's first :data:`MAX_BYTES` bytes.

    Raises:
        OSError: the file cannot be read.
    """
    checksum = hashlib.sha256()
    left = MAX_BYTES
    with path.open("rb") as file:
        while left > 0 and (block := file.read(min(left, 1 << 20))):
            checksum.update(block)
            left -= len(block)
    return checksum.hexdigest()


async def observe(path: Path, timeout_seconds: float = TIMEOUT_SECONDS) -> Sentinel:
    """Hash the file in a process of its own: a network file system that hangs must not hang the prober."""
    ended = await run_module("fdl_prober.sentinel", str(path), timeout_seconds)
    if ended.code is None:
        return Sentinel(path=str(path), error=f"reading did not end within {timeout_seconds:g} s")
    if ended.code != 0:
        return Sentinel(path=str(path), error=ended.error[-300:] or "reading failed")
    return Sentinel(path=str(path), sha256=ended.output.decode().strip())


if __name__ == "__main__":
    try:
        sys.stdout.write(digest(Path(sys.argv[1])))
    except OSError as failure:
        sys.exit(f"{failure.strerror}")
