"""Checks of volumes: data, checkpoints, and the file that all nodes should see alike."""

import errno
from collections.abc import Iterator
from typing import Final

from fdl_api.checks import machine as catalogue
from fdl_api.report import Check
from fdl_prober.facts import Facts
from fdl_prober.volumes import Seen

GIB: Final = 1 << 30
FULL_BYTES: Final = GIB
FULL_FILES: Final = 1000
SLOW_BYTES_PER_SECOND: Final = 20_000_000

_REASONS: Final = {
    errno.ENOENT: "absent",
    errno.ENOTDIR: "not-a-folder",
    errno.EACCES: "no-permission",
    errno.EPERM: "no-permission",
    errno.EROFS: "read-only",
    errno.ESTALE: "stale",
}


def _reason(seen: Seen) -> str:
    """What is wrong with a folder; empty for nothing. A volume that is full is another check's finding."""
    if seen.error:
        return "no-answer"
    if not seen.step or (seen.step == "write" and seen.errno in (errno.ENOSPC, errno.EDQUOT)):
        return ""
    return _REASONS.get(seen.errno, "broken")


def data_path(facts: Facts) -> Iterator[Check]:
    """Whether each folder is there and can be used for what it is for."""
    for folder, seen in facts.seen.volumes.items():
        subject, reason = str(folder.path), _reason(seen)
        if reason:
            words = f"{folder.kind}: {seen.words}"
            yield catalogue.DATA_PATH.found(reason, words, subject, {"step": seen.step} if seen.step else None)
        else:
            use = "can be written" if folder.kind == "checkpoints" else "can be read"
            yield catalogue.DATA_PATH.passed(f"{folder.kind}: {use}{', and is empty' if seen.empty else ''}", subject)


def disk_space(facts: Facts) -> Iterator[Check]:
    """Whether checkpoints have room. The limit is told, not the space: a sentence that changes would be written."""
    for folder, seen in facts.seen.volumes.items():
        if folder.kind != "checkpoints" or (seen.free_bytes is None and seen.errno not in (errno.ENOSPC, errno.EDQUOT)):
            continue
        subject, free = str(folder.path), seen.free_bytes or 0
        wanted = f"{folder.wanted_bytes / GIB:.3g} GiB"
        few = seen.free_files is not None and seen.free_files < FULL_FILES
        if seen.errno in (errno.ENOSPC, errno.EDQUOT) or free < FULL_BYTES or few:
            what = f"less than {FULL_FILES} files are free" if few else f"less than {FULL_BYTES // GIB} GiB is free"
            yield catalogue.DISK_SPACE.found("full", what, subject)
        elif free < folder.wanted_bytes:
            yield catalogue.DISK_SPACE.found("low", f"less than {wanted} is free", subject)
        else:
            yield catalogue.DISK_SPACE.passed(f"at least {wanted} is free", subject)


def read_speed(facts: Facts) -> Iterator[Check]:
    """Whether data comes fast enough to be trained from."""
    for folder, seen in facts.seen.volumes.items():
        if seen.bytes_per_second is None:
            continue
        limit = f"{SLOW_BYTES_PER_SECOND // 1_000_000} MB/s"
        if seen.bytes_per_second < SLOW_BYTES_PER_SECOND:
            told = {"megabytesPerSecond": round(seen.bytes_per_second / 1e6, 1)}
            yield catalogue.READ_SPEED.found("slow", f"a file was read slower than {limit}", str(folder.path), told)
        else:
            yield catalogue.READ_SPEED.passed(f"faster than {limit}", str(folder.path))


def shared_volume(facts: Facts) -> Iterator[Check]:
    """Whether the shared volume's file can be read. Different content on two nodes is the operator's finding."""
    sentinel, info = facts.sentinel, catalogue.SHARED_VOLUME
    if sentinel is None:
        return
    if sentinel.sha256:
        yield info.passed(f"SHA-256 {sentinel.sha256[:12]}", sentinel.path)
        return
    stale = sentinel.errno == errno.ESTALE
    reason = "no-answer" if not sentinel.answered else "stale" if stale else "unreadable"
    yield info.found(reason, f"cannot be read: {sentinel.error}", sentinel.path)


ALL = (data_path, shared_volume, disk_space, read_speed)
