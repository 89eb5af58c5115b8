"""What the machine must have: programs, headers, and rights."""

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from fdl_cli.local.errors import LocalError

# Debian package -> how to see that it is here: a program, or a file below a root.
_RUN = {
    "iproute2": "ip",
    "iptables": "iptables",
    "ipset": "ipset",
    "nftables": "nft",
    "util-linux": "nsenter",
}
_BUILD = {"gcc": "gcc", "libc6-dev": "/usr/include/stdio.h", "libseccomp-dev": "/usr/include/seccomp.h"}


def _present(probe: str) -> bool:
    return Path(probe).exists() if probe.startswith("/") else shutil.which(probe, path=search_path()) is not None


def search_path() -> str:
    """PATH with the system folders that a plain user's PATH may lack."""
    return os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def missing(build: bool) -> list[str]:
    """Debian packages that a cluster (and, with ``build``, compiling it) needs and that are not here."""
    wanted = {**_RUN, **(_BUILD if build else {})}
    return [package for package, probe in wanted.items() if not _present(probe)]


def ensure(build: bool, say: Callable[[str], None]) -> None:
    """Installs missing packages on Debian or Ubuntu as root, saying so; elsewhere names them.

    Raises:
        LocalError: packages are missing and cannot be installed from here.
    """
    packages = missing(build)
    if not packages:
        return
    listed = " ".join(packages)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise LocalError(f"The local cluster needs {listed}. Install them with the system's package manager.")
    say(f"Installing Debian packages that the cluster needs: {listed}")
    env = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    install = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *packages]
    for command in (["apt-get", "update", "-qq"], install):
        done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=900, check=False)
        # A mirror that does not answer is no fault if the lists know the packages.
        if done.returncode and command is install:
            raise LocalError(f"`{' '.join(command)}` failed: {done.stderr.strip()[-400:]}. Install them by hand.")
    if left := missing(build):
        raise LocalError(
            f"{' '.join(left)} still cannot be found after installing. Check PATH and the package manager."
        )


def ensure_root() -> None:
    """Namespaces and cgroups of nodes can be made by root only."""
    if os.geteuid() != 0:
        raise LocalError("The native cluster makes namespaces and cgroups, which needs root. Run it with sudo.")
