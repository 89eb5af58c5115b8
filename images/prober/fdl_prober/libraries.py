"""NCCL, RCCL and HIP libraries of a machine: outside of variant images, and in this Python's packages."""

import re
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from fdl_prober.nvml import FOLDERS
from fdl_prober.settings import LOADER
from fdl_prober.text import plain

_LOADER_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/lib")
_NCCL_NAME = re.compile(r"lib(?:nccl|rccl)\.so(?:\.(?P<version>[0-9.]+))?")
_TOLD = re.compile(rb"(?:NCCL|RCCL) version (\d+\.\d+\.\d+)")
MAX_SCANNED_BYTES = 512 << 20
PACKAGES = ("nvidia/nccl/lib", "torch/lib")
HIP = "libamdhip64.so*"
ROCM_FOLDERS = ("/opt/rocm/lib", "/opt/rocm/lib64", "/opt/rocm/hip/lib")


def packages() -> tuple[Path, ...]:
    """Folders of this Python's packages that bring libraries for GPUs."""
    roots = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    return tuple(folder for root in roots for name in PACKAGES if (folder := Path(root) / name).is_dir())


def told_version(path: Path) -> str:
    """Version that the library's own text names (``NCCL version 2.27.5+cuda12.9``); empty when it names none.

    The file is read, not loaded: a library of another machine's kind, or a broken one, does no harm.
    """
    try:
        with path.open("rb") as file:
            kept, done = b"", 0
            while done < MAX_SCANNED_BYTES and (block := file.read(1 << 20)):
                if match := _TOLD.search(kept + block):
                    return match[1].decode()
                kept, done = block[-64:], done + len(block)
    except OSError:
        return ""
    return ""


def nccl(roots: Iterable[str]) -> dict[str, str]:
    """NCCL and RCCL libraries outside of variant images: full path and version, by the file's name.

    Links are followed to the file that carries the full version; a file without one has an empty version.
    """
    folders: list[Path] = []
    for root in roots:
        folders += [Path(folder) for folder in _LOADER_FOLDERS] if root == LOADER else [Path(root) / f for f in FOLDERS]
    return {plain(path, 300): version for path, version in _in(folders).items()}


def _in(folders: Iterable[Path]) -> dict[str, str]:
    found: dict[str, str] = {}
    for folder in folders:
        for path in sorted(folder.glob("lib[nr]ccl.so*")) if folder.is_dir() else ():
            match = _NCCL_NAME.fullmatch(path.resolve().name)
            if match:
                found[str(path.resolve())] = match["version"] or ""
    return found


def full(version: str) -> bool:
    """Whether a version in a file's name is more than the major number, which all of NCCL 2 share."""
    return version.count(".") >= 1


def local_nccl(folders: Iterable[Path]) -> dict[str, str]:
    """NCCL and RCCL libraries in some folders; where the file's name has no version, the text in it is asked."""
    found = _in(folders)
    return {path: version if full(version) else told_version(Path(path)) for path, version in found.items()}


def hip(folders: Iterable[Path]) -> str:
    """A HIP runtime library in some folders, or empty text."""
    for folder in folders:
        for path in sorted(folder.glob(HIP)) if folder.is_dir() else ():
            return str(path)
    return ""


def loader_folders() -> tuple[Path, ...]:
    """Folders that the loader searches, as far as this knows."""
    return tuple(Path(folder) for folder in _LOADER_FOLDERS)
