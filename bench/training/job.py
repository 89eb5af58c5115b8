"""What one rank of a slice is told."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Job:
    """One rank's part in a slice.

    Attributes:
        kind: the method's program, a key of :data:`bench.training.peers.PROGRAMS`.
        rank: of this process.
        world: ranks of the slice.
        workload: a key of :data:`bench.training.workloads.WORKLOADS`.
        batch_size: samples a batch on this rank.
        factor: passes a batch, the counted one included.
        later: the same after the clock's moment.
        sigma: of the jitter.
        seed: of model, order and jitter; the same on all ranks.
        core: where it runs; None: anywhere.
        group: control group with its quota; empty: none.
        clock: file with the moment of the swap.
        marks: file for its marks.
        data: file with inputs and targets.
        port: on loopback, for the method's rendezvous.
        settings: of the method.
        packages: folder with the method's own packages; empty: none.
        device: ``cpu`` or ``cuda``: the rank's own accelerator.
    """

    kind: str
    rank: int
    world: int
    workload: str
    batch_size: int
    factor: float
    later: float
    sigma: float
    seed: int
    core: int | None
    group: str
    clock: str
    marks: str
    data: str
    port: int
    settings: dict[str, Any] = field(default_factory=dict)
    packages: str = ""
    device: str = "cpu"

    def write(self, path: Path) -> Path:
        """Write it for a process that is started by path."""
        path.write_text(json.dumps(asdict(self)))
        return path


def read(path: Path) -> Job:
    """The job in a file."""
    return Job(**json.loads(path.read_text()))
