"""What all ranks of a run agree on at a boundary; :mod:`fdl_trainer.plan` moves it."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fdl_trainer import elche, ledger
from fdl_trainer.elche import ElcheState
from fdl_trainer.ledger import Ledger, Span

FORMAT = 2
"""Version of the control state's JSON."""
DIGEST_BITS = 24
"""Bits of the plan's digest: an integer that fp32 carries exactly."""
FIRST_OVERSHOOT = 3
"""Batches of the slowest rank during a reduce in flight, at the start."""


@dataclass(frozen=True)
class Control:
    """What all ranks agree on at a boundary.

    Args:
        window: last committed window of the run; 0 before the first.
        samples: samples committed since the start of the run, skipped ones left out.
        members: UIDs of the ranks of the present epoch, in order.
        leaving: members that asked to go and get no lease any more.
        elche: speeds and the anchor.
        ledger: the books of the data, with the leases of the window in work (``window + 1``) and, with overlap, of the
            one after it.
        checkpoint_window: newest window at which a checkpoint was decided on; 0 when none was.
        overshoot: batches that the slowest rank may train while a reduce is in flight.
        draining: the run stops with the next commit: only what is begun is finished.
        slots: the tensors of the optimizers that most ranks hold (:attr:`fdl_trainer.tail.Tail.slots`).
    """

    window: int
    samples: int
    members: tuple[str, ...]
    leaving: tuple[str, ...]
    elche: ElcheState
    ledger: Ledger
    checkpoint_window: int = 0
    overshoot: int = FIRST_OVERSHOOT
    draining: bool = False
    slots: int = 0

    @property
    def consumed(self) -> int:
        """Samples that are behind the run, skipped ones included; drives learning-rate schedules."""
        return self.samples + self.ledger.skipped

    @property
    def finished(self) -> bool:
        """Whether every sample of every pass is committed: the last commit was the final one."""
        return ledger.finished(self.ledger)

    @property
    def data_epoch(self) -> int:
        """Oldest pass over the data in work, from 0."""
        return ledger.data_epoch(self.ledger)

    def quota(self, uid: str, *, ahead: bool = False) -> int:
        """Micro-batches that a rank has to train in the window in work (or the next); 0: it contributes zeros."""
        return ledger.quota(self.ledger, uid, ahead=ahead)

    def batches(self, uid: str, *, ahead: bool = False) -> list[Span]:
        """Those micro-batches, in order."""
        return ledger.batches(self.ledger, uid, ahead=ahead)

    def planned_samples(self, *, ahead: bool = False) -> int:
        """Samples of all leases of the window in work (or the next): what it commits if everybody does its quota."""
        leases = self.ledger.ahead if ahead else self.ledger.leases
        return sum(span.size for given in leases for span in given.spans)


def digest(control: Control) -> int:
    """The first 24 bits of SHA-256 over the state's canonical JSON: equal states, equal digests."""
    text = json.dumps(to_json(control), sort_keys=True, separators=(",", ":"))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> (32 - DIGEST_BITS)


def to_json(control: Control) -> dict[str, Any]:
    """The state as JSON data; :func:`from_json` gives back an equal state, bit for bit."""
    return {
        "format": FORMAT,
        "window": control.window,
        "samples": control.samples,
        "members": list(control.members),
        "leaving": list(control.leaving),
        "elche": elche.to_json(control.elche),
        "ledger": ledger.to_json(control.ledger),
        "checkpointWindow": control.checkpoint_window,
        "overshoot": control.overshoot,
        "draining": control.draining,
        "slots": control.slots,
    }


def from_json(data: Mapping[str, Any]) -> Control:
    """Inverse of :func:`to_json`.

    Raises:
        ValueError: if the data is of another format.
        KeyError: if a field is missing.
    """
    if data.get("format") != FORMAT:
        raise ValueError(f"the control state has format {data.get('format')}; this release reads format {FORMAT}")
    return Control(
        window=data["window"],
        samples=data["samples"],
        members=tuple(data["members"]),
        leaving=tuple(data["leaving"]),
        elche=elche.from_json(data["elche"]),
        ledger=ledger.from_json(data["ledger"]),
        checkpoint_window=data["checkpointWindow"],
        overshoot=data["overshoot"],
        draining=data["draining"],
        slots=data.get("slots", 0),
    )
