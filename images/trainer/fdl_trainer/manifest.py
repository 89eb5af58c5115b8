"""A checkpoint's manifest: which files belong to it, how long they are and their CRC-32.

It is written last. A directory without a manifest that verifies is no checkpoint, whatever else it holds.
"""

import json
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = "MANIFEST.json"
FORMAT = 1
_CHUNK = 1 << 20

Order = tuple[int, int, int]
"""Attempt, membership epoch, window: of two checkpoints of a run, the one of the higher order is the newer.

The window alone does not tell. A part of the cohort that was cut off counts windows of its own, and may be ahead of the
part that goes on; but that one's epochs have higher numbers (docs/protocol.md, Coordinator restart).
"""


class InvalidCheckpointError(Exception):
    """A directory that holds no valid checkpoint; the message says why."""


@dataclass(frozen=True)
class FileEntry:
    """Size in bytes and CRC-32 of one file."""

    size: int
    crc32: int


@dataclass(frozen=True)
class Manifest:
    """Head of a checkpoint.

    Args:
        window: committed window that it holds.
        samples: samples committed up to it.
        attempt: attempt of the run that wrote it.
        epoch: membership epoch in which it was taken; 0 in manifests that say nothing of it.
        final: no sample is left: this is the trained model.
        model_digest: SHA-256 (hex) of the model's signature.
        versions: fdl, torch and Python that wrote it.
        files: the files that belong to it.
    """

    window: int
    samples: int
    attempt: int
    final: bool
    model_digest: str
    versions: dict[str, str]
    files: dict[str, FileEntry]
    epoch: int = 0

    @property
    def order(self) -> Order:
        """Its place among the run's checkpoints."""
        return self.attempt, self.epoch, self.window

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(entry.size for entry in self.files.values())

    def to_json(self) -> dict[str, Any]:
        """The manifest as JSON data."""
        return {
            "format": FORMAT,
            "window": self.window,
            "samples": self.samples,
            "attempt": self.attempt,
            "epoch": self.epoch,
            "final": self.final,
            "modelDigest": self.model_digest,
            "versions": self.versions,
            "files": {name: {"size": entry.size, "crc32": entry.crc32} for name, entry in self.files.items()},
        }

    @classmethod
    def from_json(cls, data: Any) -> "Manifest":
        """Inverse of :meth:`to_json`.

        Raises:
            InvalidCheckpointError: if it is of another format or incomplete.
        """
        try:
            if data["format"] != FORMAT:
                raise InvalidCheckpointError(
                    f"its format is {data['format']}, and this release reads format {FORMAT}; use the fdl that wrote it"
                )
            return cls(
                window=int(data["window"]),
                samples=int(data["samples"]),
                attempt=int(data["attempt"]),
                epoch=int(data.get("epoch", 0)),
                final=bool(data["final"]),
                model_digest=str(data["modelDigest"]),
                versions={str(name): str(version) for name, version in data["versions"].items()},
                files={
                    str(name): FileEntry(int(entry["size"]), int(entry["crc32"]))
                    for name, entry in data["files"].items()
                },
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidCheckpointError(f"its {FILE} is incomplete ({error!r})") from error


def write_file(path: Path, data: bytes) -> FileEntry:
    """Write a new file, make it durable, and read it back.

    Raises:
        OSError: if the volume refuses.
        InvalidCheckpointError: if what can be read differs from what was written.
    """
    entry = FileEntry(len(data), zlib.crc32(data))
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    if checksum(path) != entry:
        raise InvalidCheckpointError(f"{path.name} reads back differently from what was written")
    return entry


def write(directory: Path, manifest: Manifest) -> None:
    """Write the manifest into a directory whose files are durable already, and make the directory durable.

    Raises:
        OSError: if the volume refuses.
    """
    write_file(directory / FILE, json.dumps(manifest.to_json(), indent=1, sort_keys=True).encode())
    sync_directory(directory)


def read(directory: Path) -> Manifest:
    """The manifest of a checkpoint; its files are not looked at (:func:`verify` does).

    Raises:
        InvalidCheckpointError: if there is none or it cannot be read.
    """
    try:
        return Manifest.from_json(json.loads((directory / FILE).read_bytes()))
    except FileNotFoundError as error:
        raise InvalidCheckpointError(f"it has no {FILE}: it was never finished, or files are missing") from error
    except OSError as error:
        raise InvalidCheckpointError(f"its {FILE} cannot be read ({error.strerror})") from error
    except ValueError as error:
        raise InvalidCheckpointError(f"its {FILE} is no JSON ({error})") from error


def verify(directory: Path) -> Manifest:
    """The manifest, after all files were read and found to be as it says.

    Raises:
        InvalidCheckpointError: if a file is missing, truncated, changed or unreadable.
    """
    manifest = read(directory)
    for name, entry in manifest.files.items():
        try:
            found = checksum(directory / name)
        except FileNotFoundError as error:
            raise InvalidCheckpointError(f"{name} is missing") from error
        except OSError as error:
            raise InvalidCheckpointError(f"{name} cannot be read ({error.strerror})") from error
        if found.size != entry.size:
            raise InvalidCheckpointError(f"{name} has {found.size} bytes instead of {entry.size}: it is truncated")
        if found.crc32 != entry.crc32:
            raise InvalidCheckpointError(f"{name} is corrupt: its CRC-32 is {found.crc32:08x}, not {entry.crc32:08x}")
    return manifest


def checksum(path: Path) -> FileEntry:
    """Size and CRC-32 of a file.

    Raises:
        OSError: if it cannot be read.
    """
    size, crc = 0, 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            size += len(chunk)
            crc = zlib.crc32(chunk, crc)
    return FileEntry(size, crc)


def sync_directory(directory: Path) -> None:
    """Make the entries of a directory durable.

    Raises:
        OSError: if the volume refuses.
    """
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
