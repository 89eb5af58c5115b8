"""Device files: who may open them, and what opening them says."""

import errno
import grp
import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_READ_WRITE = {
    "group": stat.S_IRGRP | stat.S_IWGRP,
    "other": stat.S_IROTH | stat.S_IWOTH,
}


@dataclass(frozen=True, slots=True)
class DeviceFile:
    """One device file.

    Attributes:
        path: where it is.
        exists: whether it is there. A container sees only the devices that it was given.
        mode: permission bits.
        gid: number of its group.
        group: name of its group; the number as text where it has none here.
        failure: errno of opening it for reading and writing; 0 when that worked or was not tried.
    """

    path: str
    exists: bool = True
    mode: int = 0
    gid: int = 0
    group: str = ""
    failure: int = 0

    @property
    def everybody(self) -> bool:
        """Whether every user may read and write it."""
        return self.mode & _READ_WRITE["other"] == _READ_WRITE["other"]

    @property
    def by_group(self) -> bool:
        """Whether its group may read and write it."""
        return self.mode & _READ_WRITE["group"] == _READ_WRITE["group"]

    def told(self) -> str:
        """The file with group and mode, for people."""
        return f"{self.path} has mode {self.mode:04o} and group {self.group} ({self.gid})"


def _group(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def _opened(path: Path) -> int:
    """Error number of opening a file for reading and writing, 0 for none. It is closed at once."""
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK))
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def observe(paths: Iterable[Path], try_to_open: bool) -> tuple[DeviceFile, ...]:
    """Look at device files.

    Args:
        paths: files.
        try_to_open: whether to open them as well, which says more than the mode where this process is the one that
            will use them.
    """
    found = []
    for path in paths:
        try:
            status = path.stat()
        except OSError:
            found.append(DeviceFile(str(path), exists=False))
            continue
        found.append(
            DeviceFile(
                str(path),
                mode=stat.S_IMODE(status.st_mode),
                gid=status.st_gid,
                group=_group(status.st_gid),
                failure=_opened(path) if try_to_open else 0,
            )
        )
    return tuple(found)
