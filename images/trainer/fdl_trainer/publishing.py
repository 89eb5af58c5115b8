"""How a prepared checkpoint gets its name, and which ones go then.

Several processes may write to a run's directory without knowing of each other: a part of the cohort that was cut off
goes on for a while. So nothing here trusts a name; what counts is the order in the manifest.
"""

import errno
import re
import shutil
from pathlib import Path

from fdl_trainer import manifest as manifests
from fdl_trainer.checkpoint import NAME, REPLACED_PREFIX, TEMPORARY_PREFIX, directory_name, write_error
from fdl_trainer.manifest import InvalidCheckpointError, Order

PUBLISH_TRIES = 5
"""Two writers of the same window (one of them fenced, and not aware of it yet) may get in each other's way."""
_TEMPORARY_NAME = re.compile(r"^\.(?:tmp|old)-(\d{8,})-(\d+)-(?:(\d+)-)?")


def publish(root: Path, temporary: Path, window: int) -> Path:
    """Give a prepared checkpoint its name, durably.

    The name may be taken: by an earlier epoch's writer of the same window, or by a writer that was fenced and does not
    know it yet. A checkpoint there that verifies and is not older by its order is kept instead.

    Returns:
        The directory that holds the window now.

    Raises:
        CheckpointError: if the volume refuses.
    """
    target = root / directory_name(window)
    aside = root / f"{REPLACED_PREFIX}{temporary.name.removeprefix(TEMPORARY_PREFIX)}"
    try:
        if not _take_name(temporary, target, aside):
            shutil.rmtree(temporary, ignore_errors=True)
            return target
        manifests.sync_directory(root)
        shutil.rmtree(aside, ignore_errors=True)
    except (OSError, InvalidCheckpointError) as error:
        raise write_error(root, window, error) from error
    return target


def _take_name(temporary: Path, target: Path, aside: Path) -> bool:
    """Rename a prepared checkpoint to its name; False if what is there is kept.

    What is replaced goes to ``aside`` first, where :func:`fdl_trainer.checkpoint.newest_valid` finds it if this process
    ends between.

    Raises:
        OSError: if the volume refuses.
        InvalidCheckpointError: the prepared one has gone.
    """
    order = manifests.read(temporary).order
    for tries_left in reversed(range(PUBLISH_TRIES)):
        if _verified_order(target) >= order:
            return False
        try:
            if target.exists():
                shutil.rmtree(aside, ignore_errors=True)
                target.rename(aside)
            temporary.rename(target)
            return True
        except OSError as error:
            met_another = error.errno in (errno.ENOTEMPTY, errno.EEXIST) or not target.exists()
            if not (tries_left and met_another and temporary.exists()):
                raise
    raise AssertionError("the last try returns or raises")


def _verified_order(path: Path) -> Order:
    """Order of the checkpoint in a directory; below all others if none verifies there."""
    try:
        return manifests.verify(path).order
    except InvalidCheckpointError:
        return (-1, -1, -1)


def prune(root: Path, order: Order, keep: int) -> list[Path]:
    """Delete what a newly published checkpoint makes superfluous, and say what went.

    Kept are the newest ``keep`` finished checkpoints up to this one. Those of a higher order are not touched, so that a
    fenced writer never deletes what the run goes on from. Remains of writes of this or a lower order go, too.

    Args:
        root: the run's checkpoint directory.
        order: that of the checkpoint just published.
        keep: how many to keep, at least 1.
    """
    published = root / directory_name(order[2])
    gone: list[Path] = []
    named: list[tuple[Order, bool, Path]] = []
    for path in root.iterdir():
        name, remains = NAME.match(path.name), _TEMPORARY_NAME.match(path.name)
        if name:
            named.append((*_order_of(path, (order[0], order[1], int(name[1]))), path))
        elif remains and (int(remains[2]), int(remains[3] or 0), int(remains[1])) <= order:
            gone.append(path)
    finished = 0
    for place, is_finished, path in sorted(named, reverse=True):
        if place > order:
            continue
        if finished >= max(keep, 1) and path != published:
            gone.append(path)
        finished += is_finished
    for path in gone:
        shutil.rmtree(path, ignore_errors=True)
    return gone


def _order_of(path: Path, otherwise: Order) -> tuple[Order, bool]:
    """A checkpoint's order, and whether it is finished. One that cannot be looked into is of no use: it is not."""
    try:
        return manifests.read(path).order, True
    except InvalidCheckpointError:
        return otherwise, False
