"""Looks after what was abandoned: operations that still own their buffers, communicators that are being aborted."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Any

log = logging.getLogger(__name__)

REAP_PERIOD_SECONDS = 0.05
ABORT_EXPECTED_SECONDS = 30.0
"""An abort takes 0.5 to 5 s beside a dead peer. One that takes longer than this is worth a line in the log."""


class Reaper:
    """Keeps abandoned operations with their buffers until they have ended, then drops them."""

    def __init__(self) -> None:
        self._kept: list[tuple[Callable[[], None], Any, object]] = []
        self._retiring = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def keep(self, destroy: Callable[[], None], work: Any, buffer: object) -> None:
        """Take an operation in flight; ``destroy`` is called once it has ended."""
        with self._lock:
            self._kept.append((destroy, work, buffer))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="fdl-reaper", daemon=True)
                self._thread.start()

    def retire(self, abort: Callable[[], None], kept: object) -> None:
        """Run an abort in a thread of its own; ``kept`` lives until it has returned."""
        with self._lock:
            self._retiring += 1
        threading.Thread(target=self._retire, args=(abort, kept), name="fdl-abort", daemon=True).start()

    def pending(self) -> int:
        """Abandoned operations that have not ended, and aborts that have not returned."""
        with self._lock:
            return len(self._kept) + self._retiring

    def _run(self) -> None:
        while True:
            time.sleep(REAP_PERIOD_SECONDS)
            with self._lock:
                ended = [entry for entry in self._kept if entry[1].is_completed()]
                self._kept = [entry for entry in self._kept if not entry[1].is_completed()]
                if not self._kept and not ended:
                    self._thread = None
                    return
            for destroy, work, _ in ended:
                with contextlib.suppress(RuntimeError):
                    work.wait()
                destroy()

    def _retire(self, abort: Callable[[], None], kept: object) -> None:
        late = threading.Timer(ABORT_EXPECTED_SECONDS, _say_late)
        late.daemon = True
        late.start()
        started = time.monotonic()
        try:
            abort()
        except RuntimeError as error:
            log.warning("the abort of an old communicator failed: %s", error)
        finally:
            late.cancel()
            del kept
            with self._lock:
                self._retiring -= 1
        log.debug("an old communicator was aborted in %.2f s", time.monotonic() - started)


def _say_late() -> None:
    log.error(
        "the abort of an old communicator has not returned for %.0f s: its kernel may still hold a part of the device; "
        "if this rank makes no progress, delete its pod.",
        ABORT_EXPECTED_SECONDS,
    )
