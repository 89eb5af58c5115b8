"""Trainings side by side, each on cores of its own: many cores do in minutes what takes two an hour."""

import contextlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.training.quality.results import FILE

_SIBLINGS = "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
_POLL = 0.1
_GRACE = 10.0
"""Seconds that a training has to end its processes after it was told to."""


@dataclass(frozen=True, slots=True)
class Item:
    """One training: its command line, without cores and folder.

    Attributes:
        seed: of model and order.
        task: its name.
        baseline: its name; empty for one of fdl.
        method: of fdl; empty for a baseline.
        setting: of fdl.
    """

    seed: int
    task: str
    baseline: str = ""
    method: str = ""
    setting: str = ""

    def arguments(self) -> list[str]:
        """Of ``python -m bench.training.quality``."""
        return [
            *("--first-seed", str(self.seed), "--seeds", "1", "--tasks", self.task),
            *("--baselines", self.baseline, "--methods", self.method, "--settings", self.setting),
        ]


def core_sets(cores: Iterable[int], siblings: Mapping[int, frozenset[int]], ranks: int) -> list[list[int]]:
    """Disjoint sets of ``ranks`` cores. Threads of one physical core count once: they share its arithmetic units, so
    that two ranks on them would be slower than one alone by no fault of theirs.

    Args:
        cores: that may be used.
        siblings: threads of the same physical core, by core.
        ranks: cores in a set.
    """
    physical: dict[frozenset[int], int] = {}
    for core in sorted(cores):
        physical.setdefault(siblings.get(core, frozenset((core,))), core)
    whole = sorted(physical.values())
    return [whole[start : start + ranks] for start in range(0, len(whole) - ranks + 1, ranks)]


def siblings_of(core: int) -> frozenset[int]:
    """Threads of a core's physical core as the kernel tells them; the core alone where it tells none."""
    try:
        return parsed(Path(_SIBLINGS.format(core)).read_text())
    except (OSError, ValueError):
        return frozenset((core,))


def parsed(text: str) -> frozenset[int]:
    """Numbers of a kernel list such as ``0-1,16``.

    Raises:
        ValueError: it is none.
    """
    found: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return frozenset(found)


def work(
    items: Sequence[Item], sets: Sequence[list[int]], out: Path, extra: Sequence[str], say: Callable[[str], None]
) -> list[Path]:
    """Train all, as many at once as there are sets of cores; the results that came about.

    Args:
        items: in this order.
        sets: of cores.
        out: a folder; each training has its own in it.
        extra: arguments of all.
        say: is told of trainings that ended without a result.
    """
    free, waiting, files = list(sets), list(enumerate(items)), list[Path]()
    running: dict[subprocess.Popen[bytes], tuple[Item, list[int], Path]] = {}
    try:
        while waiting or running:
            while waiting and free:
                number, item = waiting.pop(0)
                cores, folder = free.pop(0), out / f"part-{number:03d}"
                running[_start(item, cores, folder, extra)] = item, cores, folder
            for process in [one for one in running if one.poll() is not None]:
                item, cores, folder = running.pop(process)
                free.append(cores)
                if process.returncode == 0:
                    files.append(folder / FILE)
                else:
                    say(f"{item} ended with {process.returncode}")
            time.sleep(_POLL)
    finally:
        for process in running:
            process.terminate()
        for process in running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE)
            process.kill()
    return files


def _start(item: Item, cores: Sequence[int], folder: Path, extra: Sequence[str]) -> subprocess.Popen[bytes]:
    where = ["--cores", ",".join(map(str, cores)), "--out", str(folder)]
    return subprocess.Popen(
        [sys.executable, "-m", "bench.training.quality", *item.arguments(), *where, *extra], stdout=subprocess.DEVNULL
    )
