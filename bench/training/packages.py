"""Packages of peers, in environments of their own below ``build/bench``: fdl itself depends on none of them."""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

PACKAGES = {
    "torchft": ("torchft==0.2.0",),
    "hivemind": ("hivemind==1.1.12", "setuptools<81"),
}
"""Requirements by name. hivemind imports pkg_resources, which newer setuptools lack."""
INSTALL_LIMIT = 300.0


class PackageError(Exception):
    """The package cannot be had here; the message says why."""


def installed(name: str, folder: Path) -> str:
    """The packages' folder, installed on first use.

    The environment sees this one's packages, too, so that all methods run on the same torch and pip fetches no other.

    Args:
        name: a key of :data:`PACKAGES`.
        folder: where environments are kept.

    Raises:
        PackageError: pip failed, or took more than five minutes.
    """
    home = folder / name
    packages = home / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    stamp = home / ".installed"
    wanted = "\n".join(PACKAGES[name])
    if stamp.exists() and stamp.read_text() == wanted:
        return str(packages)
    try:
        venv.create(home, clear=True, with_pip=True)
        (packages / "fdl-bench.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        pip = [str(home / "bin" / "pip"), "install", "-q", "--disable-pip-version-check", "--no-input"]
        subprocess.run([*pip, *PACKAGES[name]], check=True, capture_output=True, text=True, timeout=INSTALL_LIMIT)
    except subprocess.TimeoutExpired as error:
        raise PackageError(f"{name} was not installed within {INSTALL_LIMIT:.0f} s") from error
    except (subprocess.CalledProcessError, OSError) as error:
        said = str(getattr(error, "stderr", "") or error).strip().splitlines()
        raise PackageError(f"{name} could not be installed: {said[-1] if said else error}") from error
    stamp.write_text(wanted)
    return str(packages)
