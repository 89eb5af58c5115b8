"""What a rank has heard of membership epochs, and which of them it must or may go to next. Pure.

Two kinds, told apart by their cause: a *planned* one (join, leave) is switched to at the boundary where the reduced
tail says that everybody is ready for it; an *immediate* one (start, death, reform, suspend) at the next chance.
"""

from dataclasses import dataclass, field

from fdl_api.wire import Epoch, EpochCause

PLANNED_CAUSES = frozenset({EpochCause.JOIN, EpochCause.LEAVE})


@dataclass
class EpochBook:
    """Epochs by number, as heard from the coordinator.

    Attributes:
        uid: UID of this rank.
        present: the epoch in use, 0 before the first.
    """

    uid: str
    present: int = 0
    _heard: dict[int, Epoch] = field(default_factory=dict)
    _confirmed: set[int] = field(default_factory=set)
    _formed: set[int] = field(default_factory=set)
    _closed: set[int] = field(default_factory=set)
    _max_heard: int = 0

    def hear(self, message: Epoch) -> bool:
        """Note an epoch; returns whether it is news (not a confirmation, not an old one)."""
        number = message.epoch
        if number <= self.present or number in self._closed:
            return False
        self._max_heard = max(self._max_heard, number)
        if not message.planned:
            self._confirmed.add(number)
        news = number not in self._heard
        self._heard[number] = message
        return news

    def cancel(self, number: int) -> None:
        """Forget a planned epoch for good."""
        self._closed.add(number)
        self._heard.pop(number, None)

    def formed(self, number: int) -> None:
        """Note that this rank's group of the epoch stands."""
        self._formed.add(number)

    def enter(self, number: int) -> Epoch:
        """Make an epoch the present one and forget all older ones."""
        message = self._heard[number]
        self.present = number
        self._heard = {key: value for key, value in self._heard.items() if key >= number}
        return message

    def get(self, number: int) -> Epoch | None:
        """The epoch of a number, if it is still possible."""
        return self._heard.get(number)

    def immediate(self) -> Epoch | None:
        """The newest epoch to go to at the next chance, if any."""
        numbers = [
            number
            for number, epoch in self._heard.items()
            if number > self.present and (not is_planned(epoch) or self._left_out(epoch))
        ]
        return self._heard[max(numbers)] if numbers else None

    def _left_out(self, epoch: Epoch) -> bool:
        """Whether a planned epoch takes this rank in anew: the cohort has gone on from an epoch without it.

        That happens to a rank that was suspended, or came back too late to a restarted coordinator. It must not wait
        for a boundary of its own epoch, which has no members any more.
        """
        return epoch.epoch in self._confirmed and self.includes(epoch.epoch) and self.apart(epoch.epoch)

    def apart(self, number: int) -> bool:
        """Whether the cohort goes on without this rank in an epoch, or has done so before it."""
        if not self.includes(number):
            return True
        previous = self._heard[number].previous
        return 0 < self.present < previous and not (previous in self._heard and self.includes(previous))

    def suspends(self, number: int) -> bool:
        """Whether an epoch is without this rank only until it goes on."""
        return self._heard[number].cause is EpochCause.SUSPEND and not self.includes(number)

    @property
    def suspended(self) -> bool:
        """Whether the newest that was heard is that the cohort goes on without this rank until it does."""
        newest = max(list(self._heard), default=0)  # a copy: the control thread reads while the main thread enters
        epoch = self._heard.get(newest)
        return (
            epoch is not None
            and newest > self.present
            and epoch.cause is EpochCause.SUSPEND
            and not any(member.uid == self.uid for member in epoch.members)
        )

    def joining(self) -> Epoch | None:
        """For a rank without an epoch: the one that it is to enter, once the coordinator has confirmed it."""
        if self.present:
            return None
        numbers = [number for number in self._heard if number in self._confirmed and self.includes(number)]
        return self._heard[max(numbers)] if numbers else None

    def ready_for(self) -> int:
        """Newest epoch that this rank can switch to: what it puts into the tail.

        A rank that stays needs the coordinator's confirmation and its own group; a leaver need only have heard of it.
        """
        ready = [
            number
            for number in self._heard
            if number > self.present
            and number in self._confirmed
            and (number in self._formed or not self.includes(number))
        ]
        return max(ready, default=self.present)

    def includes(self, number: int) -> bool:
        """Whether this rank is a member of the epoch."""
        return any(member.uid == self.uid for member in self._heard[number].members)

    def wanted(self, number: int) -> bool:
        """Whether forming the epoch's group still makes sense."""
        if number not in self._heard or number < self.present:
            return False
        newer = self.immediate()
        return newer is None or newer.epoch <= number

    @property
    def max_heard(self) -> int:
        """Newest number heard of, whatever became of it."""
        return self._max_heard


def is_planned(epoch: Epoch) -> bool:
    """Whether the epoch is switched to by agreement in the tail."""
    return epoch.cause in PLANNED_CAUSES
