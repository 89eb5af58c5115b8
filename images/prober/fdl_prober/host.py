"""The machine below the node: processors, memory, network interfaces, NCCL libraries, device files."""

import fcntl
import ipaddress
import os
import platform
import re
import socket
import stat
import struct
from collections.abc import Iterable
from pathlib import Path

from fdl_api.report import Host, Interface
from fdl_prober.nvml import FOLDERS
from fdl_prober.settings import LOADER

_SIOCGIFADDR = 0x8915
_NCCL_NAME = re.compile(r"lib(?:nccl|rccl)\.so(?:\.(?P<version>[0-9.]+))?")
_LOADER_FOLDERS = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/lib")


def memory_bytes(proc: Path) -> int:
    """Total memory from ``meminfo``, in bytes; 0 when it does not say."""
    try:
        match = re.search(r"^MemTotal:\s+(\d+) kB", (proc / "meminfo").read_text(), re.MULTILINE)
    except OSError:
        return 0
    return int(match[1]) * 1024 if match else 0


def cpu_model(proc: Path) -> str:
    """Name of the processor; the machine type where ``cpuinfo`` names none (arm64)."""
    try:
        match = re.search(r"^model name\s*:\s*(.+)$", (proc / "cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        match = None
    return match[1].strip() if match else platform.machine()


def _ipv4(name: str) -> str | None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            answer = fcntl.ioctl(probe, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        except OSError:
            return None
    return socket.inet_ntoa(answer[20:24])


def ipv6_addresses(text: str) -> dict[str, list[str]]:
    """Global IPv6 addresses by interface, from ``/proc/net/if_inet6``."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) == 6 and fields[3] == "00":
            found.setdefault(fields[5], []).append(str(ipaddress.IPv6Address(bytes.fromhex(fields[0]))))
    return found


def _speed(folder: Path) -> int:
    try:
        return max(0, int((folder / "speed").read_text()))
    except (OSError, ValueError):
        return 0


def _up(folder: Path) -> bool:
    try:
        state = (folder / "operstate").read_text().strip()
    except OSError:
        return False
    return state in ("up", "unknown")


def interfaces(sysfs: Path, proc: Path) -> tuple[Interface, ...]:
    """Interfaces of this network namespace, loopback left out. A pod's are the ones that members will see."""
    net = sysfs / "class/net"
    try:
        six = ipv6_addresses((proc / "net/if_inet6").read_text())
    except OSError:
        six = {}
    found = []
    for folder in sorted(net.iterdir()) if net.is_dir() else ():
        if folder.name == "lo" or not folder.is_dir():
            continue
        four = _ipv4(folder.name)
        addresses = ([four] if four else []) + six.get(folder.name, [])
        found.append(Interface(name=folder.name, addresses=tuple(addresses), speed_mbps=_speed(folder), up=_up(folder)))
    return tuple(found)


def nccl_libraries(roots: Iterable[str]) -> dict[str, str]:
    """NCCL and RCCL libraries outside of variant images: full path and version, by the file's name.

    Links are followed to the file that carries the full version; a file without one has an empty version.
    """
    folders: list[Path] = []
    for root in roots:
        folders += [Path(folder) for folder in _LOADER_FOLDERS] if root == LOADER else [Path(root) / f for f in FOLDERS]
    found: dict[str, str] = {}
    for folder in folders:
        for path in sorted(folder.glob("lib[nr]ccl.so*")) if folder.is_dir() else ():
            match = _NCCL_NAME.fullmatch(path.resolve().name)
            if match:
                found[str(path.resolve())] = match["version"] or ""
    return found


def closed_device_files(paths: Iterable[Path]) -> list[str]:
    """Device files that exist and that not every user of their group or all may open: path and mode.

    Files that are not there are left out: a container sees only the devices that it was given.
    """
    closed = []
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            continue
        usable = status.st_mode & (stat.S_IRGRP | stat.S_IWGRP) == stat.S_IRGRP | stat.S_IWGRP
        if not usable:
            closed.append(f"{path} has mode {stat.S_IMODE(status.st_mode):04o}")
    return closed


def observe(sysfs: Path, proc: Path, roots: Iterable[str]) -> Host:
    """Look at the machine. Nothing here blocks: all files are the kernel's or local."""
    return Host(
        cpus=os.cpu_count() or 0,
        cpu_model=cpu_model(proc),
        memory_bytes=memory_bytes(proc),
        kernel=platform.release(),
        glibc=" ".join(platform.libc_ver()).strip(),
        interfaces=interfaces(sysfs, proc),
        nccl=nccl_libraries(roots),
    )
