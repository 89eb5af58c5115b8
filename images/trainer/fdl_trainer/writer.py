"""The background thread that writes checkpoints while training goes on.

A snapshot is written at once, under a temporary name; it is published when its window is settled and it is complete,
whichever comes last. If snapshots come faster than the volume takes them, the newest waiting one wins.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fdl_api.reasons import Ended
from fdl_trainer import checkpoint, publishing
from fdl_trainer.checkpoint import CheckpointError, Snapshot

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Saved:
    """A checkpoint is durable, verified and has its name."""

    window: int
    samples: int
    path: Path
    size_bytes: int
    stall_ms: float
    write_ms: float
    final: bool


@dataclass(frozen=True)
class Failed:
    """A checkpoint could not be written; training may go on."""

    window: int
    reason: Ended
    message: str
    final: bool


@dataclass(frozen=True)
class _Prepared:
    snapshot: Snapshot
    temporary: Path
    write_ms: float


class Writer:
    """Writes snapshots of one rank. All methods return at once but :meth:`wait` and :meth:`close`.

    Args:
        root: the run's checkpoint directory.
        keep: finished checkpoints to keep.
        writer: name of this rank, for temporary names.
        on_saved: called from the thread after each published checkpoint.
        on_failed: called from the thread after each failure.
    """

    def __init__(
        self,
        root: Path,
        *,
        keep: int,
        writer: str,
        on_saved: Callable[[Saved], None],
        on_failed: Callable[[Failed], None],
    ) -> None:
        self._root = root
        self._keep = keep
        self._name = writer
        self._on_saved = on_saved
        self._on_failed = on_failed
        self._condition = threading.Condition()
        self._waiting: Snapshot | None = None
        self._prepared: list[_Prepared] = []
        self._settled = 0
        self._busy = False
        self._closed = False
        self._thread = threading.Thread(target=self._work, name="fdl-checkpoint", daemon=True)
        self._thread.start()

    def submit(self, snapshot: Snapshot) -> None:
        """Hand a snapshot over. One that still waits for its turn is dropped for it.

        Raises:
            RuntimeError: if the writer is closed.
        """
        with self._condition:
            if self._closed:
                raise RuntimeError("the checkpoint writer is closed")
            if self._waiting is not None:
                log.info("checkpoint %d is skipped for the newer %d", self._waiting.window, snapshot.window)
            self._waiting = snapshot
            self._condition.notify_all()

    def settle(self, window: int) -> None:
        """Say that all windows up to this one are settled: their checkpoints may be published."""
        with self._condition:
            self._settled = max(self._settled, window)
            self._condition.notify_all()

    def discard(self, window: int) -> None:
        """Forget snapshots of this and later windows: the run does not hold them any more."""
        with self._condition:
            if self._waiting is not None and self._waiting.window >= window:
                self._waiting = None
            self._prepared = [item for item in self._prepared if item.snapshot.window < window]
            self._condition.notify_all()

    def wait(self, timeout_seconds: float) -> bool:
        """Wait until nothing can be written or published; False if that took longer than allowed."""
        with self._condition:
            return self._condition.wait_for(self._idle, timeout_seconds)

    def close(self, timeout_seconds: float) -> bool:
        """Finish what can be finished, then end the thread; False if that took longer than allowed."""
        done = self.wait(timeout_seconds)
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        self._thread.join(timeout_seconds if done else 0.0)
        return done

    def _idle(self) -> bool:
        return not self._busy and self._waiting is None and self._publishable() is None

    def _publishable(self) -> _Prepared | None:
        return next((item for item in self._prepared if item.snapshot.window <= self._settled), None)

    def _work(self) -> None:
        while True:
            with self._condition:
                self._busy = False
                self._condition.notify_all()
                self._condition.wait_for(lambda: self._closed or not self._idle())
                if self._closed:
                    return
                self._busy = True
                ready = self._publishable()
                snapshot = None
                if ready is not None:
                    self._prepared.remove(ready)
                else:
                    snapshot, self._waiting = self._waiting, None
            if ready is not None:
                self._publish(ready)
            elif snapshot is not None:
                self._prepare(snapshot)

    def _prepare(self, snapshot: Snapshot) -> None:
        started = time.perf_counter()
        try:
            temporary = checkpoint.prepare(self._root, snapshot, self._name)
        except CheckpointError as error:
            self._fail(snapshot, error.reason, str(error))
            return
        except Exception as error:
            log.exception("checkpoint %d", snapshot.window)
            self._fail(snapshot, Ended.INTERNAL, f"Checkpoint {snapshot.window} could not be written: {error}")
            return
        with self._condition:
            self._prepared.append(_Prepared(snapshot, temporary, (time.perf_counter() - started) * 1000.0))

    def _publish(self, item: _Prepared) -> None:
        started = time.perf_counter()
        snapshot = item.snapshot
        try:
            path = publishing.publish(self._root, item.temporary, snapshot.window)
            size = checkpoint.open_checkpoint(path).manifest.size_bytes
            publishing.prune(self._root, snapshot.order, self._keep)
        except CheckpointError as error:
            self._fail(snapshot, error.reason, str(error))
            return
        except Exception as error:
            log.exception("checkpoint %d", snapshot.window)
            self._fail(snapshot, Ended.INTERNAL, f"Checkpoint {snapshot.window} could not be published: {error}")
            return
        write_ms = item.write_ms + (time.perf_counter() - started) * 1000.0
        self._on_saved(
            Saved(snapshot.window, snapshot.samples, path, size, snapshot.stall_ms, write_ms, snapshot.final)
        )

    def _fail(self, snapshot: Snapshot, reason: Ended, message: str) -> None:
        self._on_failed(Failed(snapshot.window, reason, message, snapshot.final))
