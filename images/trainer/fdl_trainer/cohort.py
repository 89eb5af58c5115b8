"""The epochs of one rank and their groups, formed in the background.

The control thread hears of epochs (:mod:`fdl_trainer.control`), a thread an epoch forms its group, and the main thread
takes a group when it switches. Nothing here decides when: that is the window loop's part.
"""

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from fdl_api import wire
from fdl_trainer.control import Pulse
from fdl_trainer.elche import Hardware, Seated, Seating
from fdl_trainer.ending import RunEndedError
from fdl_trainer.epochs import EpochBook
from fdl_trainer.groups import Fabric, Group, Place, Reaper, form
from fdl_trainer.pairs import Pairs
from fdl_trainer.store import StoreTransport

log = logging.getLogger(__name__)

NEWS_SECONDS = 0.05
"""Longest time between two looks at the control flags while the main thread waits."""


class Line(StoreTransport, Protocol):
    """What a rank needs of its line to the coordinator: :class:`fdl_trainer.control.Channel` or its solo twin."""

    lock: threading.Condition
    book: EpochBook
    pulse: Pulse
    generation: int
    settled: int
    stop: wire.Stop | None
    save_wanted: bool
    done: wire.Done | None
    ended: RunEndedError | None

    def start(self) -> None: ...
    def close(self) -> None: ...
    def send(self, message: wire.Message, sticky: str = "") -> None: ...
    def forget(self, sticky: str) -> None: ...
    def wait(self, seconds: float) -> None: ...
    def poke(self) -> None: ...
    def check(self) -> None: ...


class Cohort:
    """Groups by epoch, and the one in use.

    Args:
        address: where other ranks reach this one.
        uid: UID of this rank.
        connect: makes the line; it is given the callback for new epochs.
        fabric: what the groups are made of.
        pairs: tests the ways to the others before a group is formed; None: they are not tested.
    """

    def __init__(
        self,
        address: str,
        book: EpochBook,
        connect: Callable[[Callable[[wire.Epoch], None]], Line],
        fabric: Fabric | None = None,
        pairs: Pairs | None = None,
    ) -> None:
        self.line = connect(self._on_epoch)
        self.group: Group | None = None
        self.epoch: wire.Epoch | None = None
        self.reaper = Reaper()
        self._address = address
        self._fabric = fabric or Fabric()
        self._pairs = pairs
        self._book = book
        self._groups: dict[int, Group] = {}
        self._former: list[Group] = []

    @property
    def rank(self) -> int:
        """This rank's place in the present epoch."""
        assert self.group is not None
        return self.group.rank

    @property
    def members(self) -> list[str]:
        """UIDs of the present epoch's ranks, in order."""
        assert self.epoch is not None
        return [member.uid for member in self.epoch.members]

    @property
    def seating(self) -> Seating:
        """What the present epoch's message says of its ranks: the same on all of them."""
        assert self.epoch is not None
        return Seating(self.epoch.seats, {each.uid: Seated(each.seat, _hardware(each)) for each in self.epoch.members})

    def interrupt(self) -> bool:
        """Whether to leave a collective: a death was announced, or this rank has to end."""
        line = self.line
        if line.ended is not None or line.done is not None:
            return True
        with line.lock:
            return self._book.immediate() is not None

    def next_immediate(self) -> int | None:
        """Number of the epoch that must be entered now, if any."""
        with self.line.lock:
            epoch = self._book.immediate()
            return epoch.epoch if epoch is not None else None

    def next_joining(self) -> int | None:
        """For a rank without an epoch: the one that it may enter."""
        with self.line.lock:
            epoch = self._book.joining()
            return epoch.epoch if epoch is not None else None

    def ready_for(self) -> int:
        """Newest epoch that this rank can switch to; goes into the tail."""
        with self.line.lock:
            return self._book.ready_for()

    def includes_me(self, number: int) -> bool | None:
        """Whether an epoch has this rank; None when it was cancelled or superseded."""
        with self.line.lock:
            return self._book.includes(number) if self._book.get(number) is not None else None

    def starts(self, number: int) -> bool:
        """Whether an epoch begins the training: nobody in it is live."""
        with self.line.lock:
            epoch = self._book.get(number)
            return epoch is not None and epoch.cause is wire.EpochCause.START

    def apart(self, number: int) -> bool:
        """Whether the cohort has gone on without this rank in or before an epoch: what it holds is not of the run."""
        with self.line.lock:
            return self._book.get(number) is not None and self._book.apart(number)

    def suspends(self, number: int) -> bool:
        """Whether an epoch is without this rank until it goes on."""
        with self.line.lock:
            return self._book.get(number) is not None and self._book.suspends(number)

    def left_behind(self) -> bool:
        """Whether this rank is to leave its work: the cohort has gone on without it."""
        with self.line.lock:
            epoch = self._book.immediate()
            return epoch is not None and self._book.apart(epoch.epoch)

    def enter(self, number: int) -> bool:
        """Make an epoch the present one and wait for its group.

        The former group stays open: a peer may still be reading the end of its last operation. It is closed by
        :meth:`forget_old`, once an operation of the new group has succeeded.

        Returns:
            False when a newer epoch, or the end of the run, came first: there is no group then.
        """
        line = self.line
        with line.lock:
            self.epoch = self._book.enter(number)
        if self.group is not None:
            self._former.append(self.group)
        self.group = None
        while True:
            line.check()
            with line.lock:
                self.group = self._groups.pop(number, None)
                if self.group is not None:
                    return True
                if self._book.immediate() is not None or line.done is not None:
                    return False
                line.lock.wait(NEWS_SECONDS)

    def forget_old(self) -> None:
        """Close the former groups, and those of epochs that will never be entered."""
        with self.line.lock:
            old = [self._groups.pop(number) for number in list(self._groups) if number < self._book.present]
        for group in [*self._former, *old]:
            group.close()
        self._former.clear()

    def _on_epoch(self, epoch: wire.Epoch) -> None:
        if not any(member.uid == self._book.uid for member in epoch.members):
            return
        threading.Thread(target=self._form, args=(epoch,), name=f"fdl-form-{epoch.epoch}", daemon=True).start()

    def _form(self, epoch: wire.Epoch) -> None:
        number = epoch.epoch
        rank = [member.uid for member in epoch.members].index(self._book.uid)
        self._test_ways(epoch)
        try:
            place = Place(number, rank, [member.cohort for member in epoch.members], self._address)
            group = form(self.line, place, self._fabric, self.reaper, lambda: not self._wanted(number))
        except RuntimeError as error:
            log.info("the group of epoch %d was not formed: %s", number, error)
            if self._wanted(number):
                self._group_stands(False)
                self.line.send(wire.EpochFailed(epoch=number, message=str(error)[:1024]))
            return
        with self.line.lock:
            wanted = self._book.wanted(number)
            if wanted:
                self._groups[number] = group
                self._book.formed(number)
                self.line.lock.notify_all()
        self._group_stands(True)
        if wanted:
            self.line.send(wire.EpochFormed(epoch=number), sticky="formed")
        else:
            group.close()

    def _test_ways(self, epoch: wire.Epoch) -> None:
        """Tell the coordinator whom this rank does not reach.

        The group is tried all the same: who connects to whom is the backend's, so that one broken direction may not
        matter. Where neither rank reaches the other the coordinator ends the try.
        """
        report = self._pairs.test(epoch) if self._pairs is not None else None
        if report is not None:
            self.line.send(report)

    def _group_stands(self, stands: bool) -> None:
        if self._pairs is not None:
            self._pairs.formed(stands)

    def _wanted(self, number: int) -> bool:
        with self.line.lock:
            return self._book.wanted(number)


def _hardware(member: wire.EpochMember) -> Hardware | None:
    device = member.device
    if device is None:
        return None
    return Hardware(device.vendor, device.arch, device.memory_bytes, device.cpu_millicores)
