"""What an image is made of: its files, the hash over them, and the build context that holds nothing else."""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fdl_cli.images.errors import ImageError

RECIPE: Final = 1
"""Version of the way images are built. Raise it when a change here has to renew every archive."""

_SKIPPED_FOLDERS: Final = {"__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache"}
_SKIPPED_SUFFIXES: Final = {".pyc", ".pyo"}
EPOCH: Final = 946_684_800
"""Time of every file in a build context (2000-01-01): a checkout's times say nothing, and they would change layers."""


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file of a build context."""

    path: str
    """From the context's root, with slashes."""
    sha256: str
    executable: bool


def inputs_hash(files: Sequence[InputFile], settings: Mapping[str, str]) -> str:
    """Hash of all inputs of an image: 16 hexadecimal digits.

    Args:
        files: every file of the context, the Dockerfile included; their order does not matter.
        settings: whatever else decides the image: base, parent's hash, build arguments.
    """
    document = {
        "recipe": RECIPE,
        "files": sorted([file.path, file.sha256, file.executable] for file in files),
        "settings": dict(sorted(settings.items())),
    }
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


def collect(root: Path, paths: Sequence[str]) -> list[InputFile]:
    """Read the files under ``paths`` (files or folders below ``root``), without bytecode and tools' caches.

    Raises:
        ImageError: a path does not exist, or holds no file.
    """
    found: list[InputFile] = []
    for path in paths:
        start = root / path
        if not start.exists():
            raise ImageError(
                f"{start} does not exist, but a Dockerfile copies it. Check that the checkout is complete (git status)."
            )
        files = [start] if start.is_file() else sorted(file for file in start.rglob("*") if _counts(file, start))
        if not files:
            raise ImageError(f"{start} holds no file, but a Dockerfile copies it. Is the checkout complete?")
        for file in files:
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            executable = bool(file.stat().st_mode & 0o100)
            found.append(InputFile(file.relative_to(root).as_posix(), digest, executable))
    return found


def _counts(file: Path, start: Path) -> bool:
    inside = file.relative_to(start)
    return file.is_file() and not _SKIPPED_FOLDERS.intersection(inside.parts) and file.suffix not in _SKIPPED_SUFFIXES


def stage(root: Path, files: Sequence[InputFile], context: Path) -> None:
    """Copy ``files`` into the empty folder ``context`` with fixed times and modes.

    A context of its own makes the hash true (the build sees these files and no others, whatever changes in the checkout
    meanwhile) and equal inputs give equal layers.

    Raises:
        ImageError: a file changed after it was hashed.
    """
    for file in files:
        target = context / file.path
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / file.path, target)
        if hashlib.sha256(target.read_bytes()).hexdigest() != file.sha256:
            raise ImageError(f"{root / file.path} changed while the build was being prepared. Build again.")
        target.chmod(0o755 if file.executable else 0o644)
    for entry in [context, *context.rglob("*")]:
        if entry.is_dir():
            entry.chmod(0o755)
    _set_times(context)


def _set_times(context: Path) -> None:
    for entry in sorted(context.rglob("*"), reverse=True):
        os.utime(entry, (EPOCH, EPOCH))


def find_source(start: Path) -> Path:
    """Root of the checkout that holds ``start``.

    Raises:
        ImageError: no parent folder has fdl's Dockerfiles.
    """
    for folder in (start, *start.parents):
        if (folder / "images/operator/Dockerfile").is_file() and (folder / "pyproject.toml").is_file():
            return folder
    raise ImageError(
        f"{start} is in no checkout of fdl (no images/operator/Dockerfile above it). "
        "Images are built from a checkout: run this inside one, or give its folder with --source."
    )
