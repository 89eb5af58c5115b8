"""Hash of a file on the shared volume: nodes that see different content have different mounts."""

import asyncio
import hashlib
import sys
from pathlib import Path

from fdl_api.report import Sentinel

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
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "fdl_prober.sentinel",
        str(path),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        output, errors = await asyncio.wait_for(process.communicate(), timeout_seconds)
    except TimeoutError:
        return Sentinel(path=str(path), error=f"reading did not end within {timeout_seconds:g} s")
    finally:
        if process.returncode is None:
            process.kill()  # not waited for: a process that hangs in a mount cannot be reaped
    if process.returncode != 0:
        return Sentinel(path=str(path), error=errors.decode(errors="replace").strip()[-300:] or "reading failed")
    return Sentinel(path=str(path), sha256=output.decode().strip())


if __name__ == "__main__":
    try:
        sys.stdout.write(digest(Path(sys.argv[1])))
    except OSError as failure:
        sys.exit(f"{failure.strerror}")
