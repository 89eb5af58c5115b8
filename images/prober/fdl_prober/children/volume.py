"""``python -m fdl_prober.children.volume JSON``: looks at one folder or file of a volume, which may hang.

The argument is an object: ``path``; ``kind``: ``data`` or ``checkpoints`` (a folder) or ``file`` (to be hashed);
``seconds`` to read for its speed, 0 for none; ``known``: the file's state when it was last hashed. The answer has what
was found, and ``errno`` with the step that failed.
"""

import errno
import hashlib
import itertools
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, BinaryIO

MAX_HASHED_BYTES = 64 * 1024 * 1024
BLOCK_BYTES = 1 << 20
LEAST_TIMED_BYTES = 4 * BLOCK_BYTES
"""Less than this is read in no time that could be measured."""

FIRST_FILES = 200


def digest(file: BinaryIO) -> str:
    """SHA-256 of a file's first :data:`MAX_HASHED_BYTES` bytes.

    Raises:
        OSError: the file cannot be read.
    """
    checksum = hashlib.sha256()
    left = MAX_HASHED_BYTES
    while left > 0 and (block := file.read(min(left, BLOCK_BYTES))):
        checksum.update(block)
        left -= len(block)
    return checksum.hexdigest()


def hashed(path: Path, known: str) -> dict[str, Any]:
    """State and hash of a file; the hash is left out when the state is the known one.

    The state is that of the opened file: opening is what makes NFS ask its server whether the cached file is still
    the newest.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        times = (status.st_mtime_ns, status.st_ctime_ns)
        state = ":".join(map(str, (status.st_dev, status.st_ino, status.st_size, *times)))
        return {"state": state} | ({} if state == known else {"sha256": digest(file)})


def largest(folder: Path) -> Path | None:
    """The largest of the first files in a folder and the folders in it.

    Raises:
        OSError: the folder cannot be listed.
    """
    walk = ((Path(base) / name) for base, _, names in os.walk(folder) for name in sorted(names))
    sizes = []
    for path in itertools.islice(walk, FIRST_FILES):
        try:
            sizes.append((path.stat().st_size, str(path)))
        except OSError:
            continue
    return Path(max(sizes)[1]) if sizes else None


def speed(path: Path, seconds: float) -> int | None:
    """Bytes a second of reading a file for at most some seconds; ``None`` when it is too small to tell.

    What the page cache holds is dropped first where the system does so; a file that was just read may look faster
    than it is, never slower.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        started, done = time.perf_counter(), 0
        while (elapsed := time.perf_counter() - started) < seconds and (block := file.read(BLOCK_BYTES)):
            done += len(block)
    return int(done / elapsed) if done >= LEAST_TIMED_BYTES and elapsed > 0 else None


def _space(path: Path) -> dict[str, int]:
    """Free bytes and files for users other than root; a file system that does not count its files says none."""
    found = os.statvfs(path)
    free = {"freeBytes": found.f_bavail * found.f_frsize}
    return free | ({"freeFiles": found.f_favail} if found.f_files else {})


def _write(path: Path) -> None:
    """Make a file in the folder and remove it again.

    Raises:
        OSError: no file can be made there.
    """
    with tempfile.TemporaryFile(dir=path, prefix=".fdl-probe-") as file:
        file.write(b"fdl")


def folder(path: Path, kind: str, seconds: float) -> dict[str, Any]:
    """What is found at a folder, step by step until one fails."""
    found: dict[str, Any] = {}
    step = "look"
    try:
        if not path.is_dir():
            path.stat()
            return {"step": "look", "errno": errno.ENOTDIR}
        step = "list"
        with os.scandir(path) as entries:
            found["empty"] = next(entries, None) is None
        found |= _space(path)
        if kind == "checkpoints":
            step = "write"
            _write(path)
        elif seconds > 0 and (file := largest(path)) is not None:
            step = "read"
            found["bytesPerSecond"] = speed(file, seconds)
    except OSError as error:
        found |= {"step": step, "errno": error.errno or errno.EIO}
    return found


def main() -> None:
    """Look and print."""
    asked = json.loads(sys.argv[1])
    path = Path(asked["path"])
    if asked["kind"] == "file":
        try:
            found: dict[str, Any] = hashed(path, asked.get("known", ""))
        except OSError as error:
            found = {"step": "read", "errno": error.errno or errno.EIO}
    else:
        found = folder(path, asked["kind"], asked.get("seconds", 0))
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main()
