"""A run of one process without a coordinator: ``python train.py`` on a laptop takes the same path."""

import threading
from collections.abc import Callable

from fdl_api import wire
from fdl_api.exitcodes import PodExit
from fdl_api.reasons import Ended
from fdl_trainer.control import Pulse
from fdl_trainer.ending import RunEndedError
from fdl_trainer.epochs import EpochBook
from fdl_trainer.store import StoreClosedError


class SoloLine:
    """Answers as a coordinator with a single member would, in the caller's thread."""

    def __init__(self, book: EpochBook, on_epoch: Callable[[wire.Epoch], None]) -> None:
        self.lock = threading.Condition()
        self.book = book
        self.pulse = Pulse()
        self.generation = 1
        self.settled = 0
        self.stop: wire.Stop | None = None
        self.save_wanted = False
        self.done: wire.Done | None = None
        self.ended: RunEndedError | None = None
        self._on_epoch = on_epoch

    def start(self) -> None:
        """Announce the only epoch."""
        me = wire.EpochMember(uid=self.book.uid, member="solo", address="127.0.0.1", cohort="solo")
        epoch = wire.Epoch(generation=1, epoch=1, previous=0, members=[me], cause=wire.EpochCause.START, planned=False)
        self.book.hear(epoch)
        self._on_epoch(epoch)

    def close(self) -> None:
        """Nothing to close."""

    def send(self, message: wire.Message, sticky: str = "") -> None:
        """Settle at once what is committed, and end what is finished."""
        with self.lock:
            if isinstance(message, wire.WindowCommitted):
                self.settled = message.window
            elif isinstance(message, wire.Leave):
                self.stop = wire.Stop(save=True, reason=Ended.LEFT, message="The process was asked to end.")
            elif isinstance(message, wire.Finished):
                code = PodExit.DONE if self.stop is None else PodExit.LEFT
                reason = Ended.COMPLETED if self.stop is None else Ended.LEFT
                self.done = wire.Done(exit_code=code, reason=reason)
            self.lock.notify_all()

    def forget(self, sticky: str) -> None:
        """Nothing is repeated."""

    def wait(self, seconds: float) -> None:
        """Wait for a formed group."""
        with self.lock:
            self.lock.wait(seconds)

    def poke(self) -> None:
        """Wake who waits."""
        with self.lock:
            self.lock.notify_all()

    def check(self) -> None:
        """Never ended from outside."""

    def store_set(self, epoch: int, key: str, value: bytes) -> None:
        """A single rank needs no rendezvous."""
        raise StoreClosedError("A run of one process has no rendezvous.")

    def store_get(self, epoch: int, keys: list[str], timeout_seconds: float) -> list[bytes]:
        """A single rank needs no rendezvous."""
        raise StoreClosedError("A run of one process has no rendezvous.")
