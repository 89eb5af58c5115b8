"""How the devices of one host reach each other, and what is said of it.

NCCL chooses by itself, silently: directly (peer-to-peer: NVLink, PCIe), through shared memory, or through sockets. A
container often lacks one of these (no access between devices, a /dev/shm of 64 MiB), and NCCL then either takes the
next one, which is many times slower, or fails. So before the ranks of a member start, its agent tries them in this
order (:mod:`fdl_trainer.preflight`); :func:`decide` says what to use and why.
"""

import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final


class Level(StrEnum):
    """A way between two devices of one host, best first."""

    PEER = "peer-to-peer"
    SHARED_MEMORY = "shared memory"
    SOCKETS = "sockets"


SWITCHES: Final[Mapping[Level, Mapping[str, str]]] = {
    Level.PEER: {},
    Level.SHARED_MEMORY: {"NCCL_P2P_DISABLE": "1"},
    Level.SOCKETS: {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
}
"""What keeps NCCL from a way that does not work here. Read once a process, when the first communicator is made."""

_ADVICE = {
    Level.PEER: "check the devices' topology (nvidia-smi topo -m) and whether the container may see all of them",
    Level.SHARED_MEMORY: "give /dev/shm more room (an emptyDir of medium Memory mounted there)",
    Level.SOCKETS: "check that processes of one pod reach each other over the loopback or pod interface",
}
_USED = re.compile(r" via (P2P|SHM|NET)(?:/([A-Za-z]+))?")
_NAMES = {"P2P": Level.PEER, "SHM": Level.SHARED_MEMORY}


@dataclass(frozen=True)
class Trial:
    """One level's test: ``problem`` is empty when it worked; ``used`` is what NCCL then really took, if it said."""

    level: Level
    problem: str = ""
    used: Level | None = None


@dataclass(frozen=True)
class Choice:
    """What a member uses.

    Attributes:
        level: the way; None: none works.
        sentence: one line for the log or the last words.
    """

    level: Level | None
    sentence: str

    @property
    def environment(self) -> dict[str, str]:
        """Variables for the ranks."""
        return dict(SWITCHES[self.level]) if self.level is not None else {}


def levels(environment: Mapping[str, str]) -> list[Level]:
    """Levels to try: those that the user has not switched off."""
    peer = environment.get("NCCL_P2P_DISABLE", "0") != "1"
    shared = environment.get("NCCL_SHM_DISABLE", "0") != "1"
    chosen = [(Level.PEER, peer), (Level.SHARED_MEMORY, shared), (Level.SOCKETS, True)]
    return [level for level, wanted in chosen if wanted]


def decide(trials: Sequence[Trial], devices: int, node: str) -> Choice:
    """What the trials mean.

    Args:
        trials: in order; the last is the first that worked, or all failed.
        devices: of the member.
        node: where it runs.
    """
    failed = [f"{trial.level} failed ({trial.problem}; {_ADVICE[trial.level]})" for trial in trials if trial.problem]
    good = next((trial for trial in trials if not trial.problem), None)
    where = f"NCCL between the {devices} devices of this member on node {node}"
    if good is None:
        return Choice(
            None,
            f"{where} does not work: {', '.join(failed)}. Mend one of them, or set spec.mode to 'cpu-cadence' or "
            "'cpu-sync', which need no NCCL.",
        )
    used = good.used or good.level
    slower = f", since {', '.join(failed)}" if failed else ""
    if not failed and used is not good.level:
        slower = f", since NCCL found no way {good.level} ({_ADVICE[good.level]})"
    return Choice(good.level, f"{where} goes by {used}{slower}.")


def ways(text: str) -> list[tuple[Level, str]]:
    """Ways that NCCL's own log names, worst first, with its word for each (``P2P/CUMEM``, ``NET/Socket``)."""
    found = {
        (_NAMES.get(kind, Level.SOCKETS), f"{kind}/{detail}" if detail else kind)
        for kind, detail in _USED.findall(text)
    }
    return sorted(found, key=lambda item: (-list(Level).index(item[0]), item[1]))


def log_settings(environment: Mapping[str, str], path: str) -> dict[str, str]:
    """Variables that make NCCL note its ways in a file; none when the user has NCCL log as they like."""
    if "NCCL_DEBUG" in environment or "NCCL_DEBUG_FILE" in environment:
        return {}
    return {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "P2P,SHM,NET", "NCCL_DEBUG_FILE": path}


def _own_log() -> Path:
    return Path(tempfile.gettempdir()) / f"fdl-nccl-{os.getpid()}.log"


def watch_ways() -> int:
    """Begin to watch which ways the next communicator takes.

    Returns:
        Size of NCCL's log so far, for :func:`seen_ways`.
    """
    path = _own_log()
    os.environ.update(log_settings(os.environ, str(path)))
    return path.stat().st_size if path.exists() else 0


def seen_ways(since: int) -> str:
    """The ways that communicators made since then took, as the end of a sentence; empty if NCCL did not tell."""
    path = _own_log()
    if not path.exists():
        return ""
    with path.open(errors="replace") as log:
        log.seek(since)
        found = ways(log.read())
    said = ", ".join(word if word == "NET/IB" else f"{level} ({word})" for level, word in found)
    return f" by {said}" if said else ""
