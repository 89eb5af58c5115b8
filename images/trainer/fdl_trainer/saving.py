"""When this rank writes checkpoints, and what it says about them."""

import logging
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from fdl_api import wire
from fdl_trainer import agreed
from fdl_trainer.checkpoint import MODEL_SPECS, Snapshot, specs_json
from fdl_trainer.manifest import Order
from fdl_trainer.replica import Replica
from fdl_trainer.writer import Failed, Saved, Writer

log = logging.getLogger(__name__)

FINAL_WRITE_LIMIT_SECONDS = 3600.0
WAIT_SLICE_SECONDS = 0.1
SAVED_KEY, FAILED_KEY = "checkpoint", "checkpoint failed"
"""Apart, so that a restarted coordinator hears of the newest durable checkpoint even if a later one failed."""


class Saver:
    """Interval, snapshots and the background writer of one rank.

    Args:
        root: the run's checkpoint directory.
        keep: finished checkpoints to keep.
        interval_seconds: time between two checkpoints. A run that has none yet takes its first at the first commit:
            should all members die before the interval is over, it need not begin anew.
        attempt: attempt of the run.
        name: of this rank.
        model_digest: of the model's signature.
        specs: the model's entries, for a later refusal that names a difference.
        resumed: order of the checkpoint that this rank started from; what it writes comes after it, whatever attempt
            and epoch it is in (a solo run has always the same).
        send: says a message to the coordinator.
        forget: takes back what would be said again to a restarted one.
    """

    def __init__(
        self,
        root: Path,
        *,
        keep: int,
        interval_seconds: float,
        attempt: int,
        name: str,
        model_digest: str,
        specs: Sequence[wire.ParameterSpec],
        resumed: Order | None,
        send: Callable[[wire.Message, str], None],
        forget: Callable[[str], None],
    ) -> None:
        self.root = root
        self.saved_window = -1
        self.failed: Failed | None = None
        self._attempt = attempt
        self._interval = interval_seconds
        self._model_digest = model_digest
        self._specs = specs
        self._resumed = resumed
        self._send = send
        self._forget = forget
        self._last = time.monotonic()
        self._taken = -1
        self._writer = Writer(root, keep=keep, writer=name, on_saved=self._on_saved, on_failed=self._on_failed)

    def due(self) -> bool:
        """Whether the interval is over, or this run has no checkpoint at all as far as this rank knows."""
        first = self._resumed is None and self._taken < 0
        return first or time.monotonic() - self._last >= self._interval

    def take(self, replica: Replica, state: dict[str, Any], *, final: bool = False) -> None:
        """Copy the committed state and hand it to the writer; it is published once its window is settled.

        Does nothing before the first commit, and for a window that was taken already (but for the final one).
        """
        window = replica.control.window
        self._last = time.monotonic()
        if window == 0 or (window == self._taken and not final):
            return
        started = time.perf_counter()
        control = replica.control
        model = replica.model.tensors()
        optimizer = replica.optimizer_snapshot()
        outer = replica.model.outer_tensors()
        self._taken = window
        attempt, epoch = self._lineage(replica.entered)
        self._writer.submit(
            Snapshot(
                window=control.window,
                samples=control.samples,
                attempt=attempt,
                epoch=epoch,
                model=model,
                optimizer=optimizer,
                outer=outer,
                state={"control": agreed.to_json(control), MODEL_SPECS: specs_json(self._specs), **state},
                model_digest=self._model_digest,
                final=final,
                stall_ms=(time.perf_counter() - started) * 1000.0,
            )
        )

    def _lineage(self, epoch: int) -> tuple[int, int]:
        """Attempt and epoch of a checkpoint taken now."""
        own = (self._attempt, epoch)
        return own if self._resumed is None else max(own, self._resumed[:2])

    def settle(self, window: int) -> None:
        """All windows up to this one are settled."""
        self._writer.settle(window)

    def finish(self, between: Callable[[], None]) -> bool:
        """Wait until nothing is left to write; ``between`` is called now and then and may raise.

        Returns:
            Whether the newest snapshot is durable.
        """
        limit = time.monotonic() + FINAL_WRITE_LIMIT_SECONDS
        while not self._writer.wait(WAIT_SLICE_SECONDS) and time.monotonic() < limit:
            between()
        return self.saved_window >= self._taken

    def close(self) -> None:
        """End the thread."""
        self._writer.close(0.5)

    def _on_saved(self, saved: Saved) -> None:
        self.saved_window = max(self.saved_window, saved.window)
        self.failed = None
        self._forget(FAILED_KEY)
        log.info("checkpoint of window %d: %d bytes in %.0f ms", saved.window, saved.size_bytes, saved.write_ms)
        self._send(
            wire.CheckpointSaved(
                window=saved.window,
                samples=saved.samples,
                path=saved.path.name,
                size_bytes=saved.size_bytes,
                stall_ms=saved.stall_ms,
                write_ms=saved.write_ms,
                final=saved.final,
            ),
            SAVED_KEY,
        )

    def _on_failed(self, failed: Failed) -> None:
        self.failed = failed
        log.warning("%s", failed.message)
        self._send(
            wire.CheckpointFailed(
                window=failed.window, reason=failed.reason, message=failed.message[:1024], final=failed.final
            ),
            FAILED_KEY,
        )


def problem_with(root: Path) -> str:
    """Why this process cannot write below a directory; empty when it can."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=root, prefix=".probe-"):
            return ""
    except OSError as error:
        return (
            f"Checkpoints cannot be written to {root} ({error.strerror}): check the claim of spec.checkpoint and that "
            f"user {os.getuid()} may write to it."
        )
