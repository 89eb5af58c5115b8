"""A run of real processes on loopback, and what the tests' script leaves behind."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fdl_api.runconfig import RunConfig
from fdl_trainer.audit import Proof, prove
from tools import loopback
from tools.loopback import Zygote, free_port, make_certificates, wait_for

__all__ = ["LoopbackRun", "Zygote", "free_port", "loopback_run", "make_certificates", "wait_for"]


class LoopbackRun(loopback.LoopbackRun):
    """A run and its processes."""

    def new_attempt(self, **changes: Any) -> None:
        """The run's next attempt, which must resume: a coordinator of its own, and no word of the former members."""
        self.kill_coordinator()
        following = {"attempt": self.config.attempt + 1, "must_resume": True, **changes}
        self.config = self.config.model_copy(update=following)
        self.write_files()
        for path in self.folder.glob("digits-cpu-*"):
            path.unlink()
        self.generation = 0
        self.start_coordinator()

    def digests(self) -> dict[str, str]:
        """Digest of the final model by log name, as the ranks printed it."""
        found = {}
        for path in sorted(self.folder.glob("digits-cpu-*.log")):
            for line in path.read_text(errors="replace").splitlines():
                if line.startswith("digest "):
                    found[path.name] = line.split()[1]
        return found

    def first_audit(self) -> Path:
        """The first member's index log."""
        return self.checkpoints / "audit" / f"{self.members[0].name}-0.jsonl"

    def proof(self, samples: int, epochs: int) -> Proof:
        """What the index logs prove."""
        return prove(self.checkpoints.glob("audit/*.jsonl"), samples, epochs)


@contextlib.contextmanager
def loopback_run(
    folder: Path,
    script: Path,
    members: int,
    args: list[str] | None = None,
    zygote: Zygote | None = None,
    **changes: Any,
) -> Iterator[LoopbackRun]:
    """A run with its coordinator started and no member yet; everything is ended at the end."""
    values = loopback.run_values(folder, script, members, args or [])
    with loopback.started(LoopbackRun(folder, RunConfig.model_validate({**values, **changes}), zygote)) as run:
        yield run
