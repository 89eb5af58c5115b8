"""The base that every image stands on: Debian's slim image where a registry answers, else a tree made by mmdebstrap."""

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Literal

from fdl_cli.images.errors import ImageError

REGISTRY_BASE: Final = "debian:trixie-slim"
SUITE: Final = "trixie"
_KEYRINGS: Final = ("debian-archive-trixie-stable.gpg", "debian-archive-keyring.gpg", "debian-archive-keyring.pgp")
_OPTIONS: Final = (
    "--variant=minbase",
    "--include=ca-certificates,python3",
    "--dpkgopt=path-exclude=/usr/share/man/*",
    "--dpkgopt=path-exclude=/usr/share/locale/*",
    "--dpkgopt=path-exclude=/usr/share/doc/*",
    "--dpkgopt=path-include=/usr/share/doc/*/copyright",
    "--customize-hook=rm -rf $1/var/log/* $1/var/cache/*",
    "--format=tar",
)


@dataclass(frozen=True, slots=True)
class Base:
    """Where images start from. Kept in the cache, so that a second build asks no registry again."""

    kind: Literal["given", "registry", "mmdebstrap"]
    reference: str

    @property
    def identity(self) -> str:
        """What of the base goes into an image's inputs."""
        return f"{self.kind}:{self.reference}"


def recipe_hash(mirror: str) -> str:
    """Hash of the way the tree is made: 16 hexadecimal digits."""
    return hashlib.sha256(json.dumps([SUITE, mirror, *_OPTIONS]).encode()).hexdigest()[:16]


def made_base(mirror: str) -> Base:
    """The base that :func:`mmdebstrap_command` makes."""
    return Base("mmdebstrap", f"fdl.local/base:{recipe_hash(mirror)}")


def mmdebstrap_command(target: Path, mirror: str) -> list[str]:
    """Command that writes the tree as a tar. An empty mirror means mmdebstrap's own default."""
    return ["mmdebstrap", *_OPTIONS, SUITE, str(target), *([mirror] if mirror else [])]


def mirror_setting() -> str:
    """``FDL_DEBIAN_MIRROR``: the Debian mirror for mmdebstrap, empty for its default."""
    return os.environ.get("FDL_DEBIAN_MIRROR", "")


def packages_to_install(need_buildah: bool, need_mmdebstrap: bool) -> list[str]:
    """Debian packages that a build needs and this machine lacks."""
    wanted: list[str] = []
    if need_buildah and shutil.which("buildah") is None:
        wanted.append("buildah")
    if need_mmdebstrap and shutil.which("mmdebstrap") is None:
        wanted.append("mmdebstrap")
    if need_mmdebstrap and not any((Path("/usr/share/keyrings") / name).exists() for name in _KEYRINGS):
        wanted.append("debian-archive-keyring")
    return wanted


def can_install() -> bool:
    """True for root on a machine with apt."""
    return os.geteuid() == 0 and shutil.which("apt-get") is not None


def require_install(packages: list[str]) -> None:
    """Refuse where packages are missing and cannot be installed.

    Raises:
        ImageError: names the packages and the command.
    """
    if packages and not can_install():
        raise ImageError(
            f"The build needs {', '.join(packages)}: install them (on Debian as root: apt-get install "
            f"{' '.join(packages)}), or give a base image with --base-image."
        )


def remembered(path: Path) -> Base | None:
    """The base chosen by an earlier build of this cache."""
    try:
        return Base(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def remember(path: Path, base: Base) -> None:
    """Keep the choice for later builds."""
    path.write_text(json.dumps(asdict(base)) + "\n", encoding="utf-8")
