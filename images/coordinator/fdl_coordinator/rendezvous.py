"""The key-value store over which the ranks of an epoch form their process group.

It replaces torch's TCPStore: no rank hosts anything that others depend on.
"""

from dataclasses import dataclass, field

from fdl_api.wire import StoreGet, StoreReply, StoreSet


@dataclass
class _Waiter:
    rank_uid: str
    request: StoreGet
    deadline: float


@dataclass
class _EpochStore:
    values: dict[str, str] = field(default_factory=dict)
    waiters: list[_Waiter] = field(default_factory=list)


Answer = tuple[str, StoreReply]
"""(rank UID, reply)."""


class Rendezvous:
    """Stores of the epochs that may still be formed."""

    def __init__(self) -> None:
        self._epochs: dict[int, _EpochStore] = {}

    def open(self, epoch: int) -> None:
        """Make the store of a new epoch."""
        self._epochs.setdefault(epoch, _EpochStore())

    def set(self, rank_uid: str, request: StoreSet) -> list[Answer]:
        """Set a key; answers the setter and everybody whose keys are complete now."""
        store = self._epochs.get(request.epoch)
        if store is None:
            return [(rank_uid, _closed(request.id, request.epoch))]
        store.values[request.key] = request.value
        answers = [(rank_uid, StoreReply(id=request.id))]
        waiting = []
        for waiter in store.waiters:
            values = _values(store, waiter.request)
            if values is None:
                waiting.append(waiter)
            else:
                answers.append((waiter.rank_uid, StoreReply(id=waiter.request.id, values=values)))
        store.waiters = waiting
        return answers

    def get(self, rank_uid: str, request: StoreGet, now: float) -> list[Answer]:
        """Get keys, now or when the last of them is set."""
        store = self._epochs.get(request.epoch)
        if store is None:
            return [(rank_uid, _closed(request.id, request.epoch))]
        values = _values(store, request)
        if values is not None:
            return [(rank_uid, StoreReply(id=request.id, values=values))]
        store.waiters.append(_Waiter(rank_uid, request, now + request.timeout_seconds))
        return []

    def expire(self, now: float) -> list[Answer]:
        """Answer those who have waited too long."""
        answers: list[Answer] = []
        for epoch, store in self._epochs.items():
            late = [waiter for waiter in store.waiters if waiter.deadline <= now]
            store.waiters = [waiter for waiter in store.waiters if waiter.deadline > now]
            answers += [
                (waiter.rank_uid, StoreReply(id=waiter.request.id, error=_late(waiter, epoch))) for waiter in late
            ]
        return answers

    def close_below(self, epoch: int) -> list[Answer]:
        """Close all epochs older than ``epoch``; whoever waits there is told at once."""
        return [answer for old in [number for number in self._epochs if number < epoch] for answer in self.close(old)]

    def close(self, epoch: int) -> list[Answer]:
        """Close one epoch's store."""
        store = self._epochs.pop(epoch, None)
        waiters = store.waiters if store is not None else []
        return [(waiter.rank_uid, _closed(waiter.request.id, epoch)) for waiter in waiters]


def _values(store: _EpochStore, request: StoreGet) -> list[str] | None:
    if any(key not in store.values for key in request.keys):
        return None
    return [store.values[key] for key in request.keys]


def _closed(request_id: int, epoch: int) -> StoreReply:
    return StoreReply(id=request_id, error=f"Epoch {epoch} is over or was cancelled: wait for the next one.")


def _late(waiter: _Waiter, epoch: int) -> str:
    return (
        f"Nobody set {', '.join(waiter.request.keys[:3])} of epoch {epoch} within "
        f"{waiter.request.timeout_seconds:.0f} s: a member did not come to form the group."
    )
