"""The archives on disk: ``<cache>/images/<name>-<hash>.tar``, a ``current`` link a name, and one lock.

An archive exists whole or not at all: it is written under another name, then its record (JSON beside it), then the link
is switched. A record whose size differs from its archive's (a crash of the machine) counts as absent.
"""

import contextlib
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from fdl_cli.images.errors import ImageError

_LOCK_SECONDS: Final = 2 * 3600
_KEPT: Final = 2


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of one archive; the JSON beside it."""

    name: str
    reference: str
    inputs: str
    engine: str
    base: str
    bytes: int
    """Size of the archive."""
    layers: tuple[tuple[str, int], ...]
    """Digest and bytes of each layer, lowest first; empty where docker wrote the archive."""
    seconds: float
    """Wall-clock seconds of the build, export included."""
    built_at: str
    """UTC, ISO 8601."""


def cache_root() -> Path:
    """``$FDL_CACHE``, else ``$XDG_CACHE_HOME/fdl``, else ``~/.cache/fdl``."""
    if os.environ.get("FDL_CACHE"):
        return Path(os.environ["FDL_CACHE"]).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fdl"


class Store:
    """The folder of archives."""

    def __init__(self, root: Path) -> None:
        """Args: root: the folder; made on first use."""
        self.root = root

    @property
    def scratch(self) -> Path:
        """Folder for everything half-made; emptied when the next build takes the lock."""
        return self.root / "tmp"

    @property
    def storage(self) -> Path:
        """buildah's own image storage."""
        return self.root / "buildah"

    def archive(self, name: str, inputs: str) -> Path:
        """Path of an archive, existing or not."""
        return self.root / f"{name}-{inputs}.tar"

    def log(self, name: str) -> Path:
        """Log of the last build of an image, for its owner only: command lines may hold a proxy's password."""
        folder = self.root / "logs"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder / f"{name}.log"

    def record(self, name: str, inputs: str) -> Record | None:
        """Record of a whole archive; None where there is none."""
        archive = self.archive(name, inputs)
        try:
            fields = json.loads(archive.with_suffix(".json").read_text(encoding="utf-8"))
            fields["layers"] = tuple((digest, size) for digest, size in fields["layers"])
            record = Record(**fields)
        except (OSError, ValueError, TypeError, KeyError):
            return None
        return record if archive.is_file() and archive.stat().st_size == record.bytes else None

    def current(self, name: str) -> Record | None:
        """Record of the image's newest archive; None where it was never built."""
        link = self.root / f"{name}.current.tar"
        if not link.is_symlink():
            return None
        return self.record(name, Path(link.readlink()).stem.removeprefix(f"{name}-"))

    def current_path(self, name: str) -> Path:
        """Archive of the image's newest build.

        Raises:
            ImageError: it was never built, or its archive is gone.
        """
        record = self.current(name)
        if record is None:
            raise ImageError(f"The image '{name}' is not built yet: run 'fdl images build {name}'.")
        return self.archive(name, record.inputs)

    def publish(self, made: Path, record: Record) -> Path:
        """Take a finished archive in, make it the current one, and drop all but the newest two of its name."""
        archive = self.archive(record.name, record.inputs)
        made.replace(archive)
        _write_whole(archive.with_suffix(".json"), json.dumps(asdict(record), indent=2) + "\n")
        self.point(record.name, record.inputs)
        for old in self._older(record.name)[_KEPT - 1 :]:
            self._drop(old)
        return archive

    def point(self, name: str, inputs: str) -> None:
        """Switch the ``current`` link to an archive that is there already."""
        link = self.root / f"{name}.current.tar"
        fresh = link.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(self.archive(name, inputs).name)
        fresh.replace(link)

    def prune(self, names: list[str]) -> int:
        """Drop every archive that is not the current one of its name; returns the bytes freed."""
        freed = 0
        for name in names:
            for old in self._older(name):
                freed += old.stat().st_size
                self._drop(old)
        return freed

    def _older(self, name: str) -> list[Path]:
        current = self.current(name)
        keep = None if current is None else self.archive(name, current.inputs)
        pattern = f"{name}-{'[0-9a-f]' * 16}.tar"
        old = [path for path in self.root.glob(pattern) if path != keep]
        return sorted(old, key=lambda path: path.stat().st_mtime, reverse=True)

    @staticmethod
    def _drop(archive: Path) -> None:
        archive.with_suffix(".json").unlink(missing_ok=True)
        archive.unlink(missing_ok=True)

    @contextlib.contextmanager
    def lock(self, on_wait: Callable[[str], None], limit: float = _LOCK_SECONDS) -> Iterator[None]:
        """Hold the one lock of all builds in this cache; the kernel frees it when this program dies.

        Args:
            on_wait: told once, with a sentence, when another build holds it.
            limit: seconds to wait at most.

        Raises:
            ImageError: the other build did not end in time.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        path = self.root / "lock"
        with path.open("a+", encoding="utf-8") as handle:
            deadline = time.monotonic() + limit
            told = False
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    holder = path.read_text(encoding="utf-8").strip() or "unknown"
                if time.monotonic() > deadline:
                    raise ImageError(
                        f"Another build (process {holder}) has held {path} for {limit:.0f} s. "
                        "Wait for it, or end that process and try again."
                    )
                if not told:
                    on_wait(f"Another build (process {holder}) is running in this cache: waiting for it.")
                    told = True
                time.sleep(min(0.5, limit))
            handle.truncate(0)
            handle.write(f"{os.getpid()}\n")
            handle.flush()
            self._clear_scratch()
            self.scratch.mkdir(parents=True)
            try:
                yield
            finally:
                self._clear_scratch()

    def _clear_scratch(self) -> None:
        """Empty the scratch folder, but never through a mount: behind it may be this machine's own /dev or /proc."""
        inside = mounts_below(self.scratch, Path("/proc/self/mounts").read_text(encoding="utf-8"))
        if inside:
            raise ImageError(
                f"An interrupted build left mounts in {self.scratch}: {', '.join(inside)}. "
                "Unmount them (umount, the deepest first), then build again."
            )
        shutil.rmtree(self.scratch, ignore_errors=True)


def mounts_below(folder: Path, mounts: str) -> list[str]:
    """Mount points below ``folder`` according to the text of ``/proc/self/mounts``."""
    points = [line.split()[1] for line in mounts.splitlines() if len(line.split()) > 1]
    return [point for point in points if Path(point) == folder or folder in Path(point).parents]


def _write_whole(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text, encoding="utf-8")
    fresh.replace(path)
