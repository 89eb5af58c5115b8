"""One window as the trainer does it between two batches, step by step."""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from fdl_trainer import tail
from fdl_trainer.averaging import ModelState, Share, Wire
from fdl_trainer.groups import Group
from fdl_trainer.tail import RankTail, Tail

SHARES = (Share(7, 448), Share(16, 1024))


class Window:
    """A rank's windows over a group.

    Args:
        state: the model's.
        group: as the trainer makes it.
    """

    def __init__(self, state: ModelState, group: Group) -> None:
        self._state = state
        self._group = group
        self._share = SHARES[group.rank % len(SHARES)]
        self._members = [f"rank-{number}" for number in range(group.size)]
        self._wire: Wire = state.new_wire(group.rank, group.size, group.size * tail.TAIL_SLOTS)
        self._own = RankTail("")
        self._reduced = Tail(())
        self.steps: dict[str, Callable[[], None]] = {
            "read divergence": self._read,
            "pack": self._pack,
            "write tail": self._write,
            "reduce": self._reduce,
            "read tail": self._hear,
            "commit": self._commit,
        }

    def run(self, note: Callable[[str], AbstractContextManager[object]] = lambda _: nullcontext()) -> dict[str, float]:
        """Do one; ``note`` may mark the steps. Returns the milliseconds that each kept the host."""
        spent = {}
        for name, step in self.steps.items():
            started = time.perf_counter()
            with note(name):
                step()
            spent[name] = (time.perf_counter() - started) * 1000.0
        return spent

    def _read(self) -> None:
        name = self._members[self._group.rank]
        self._own = RankTail(name, self._share.batches, self._share.samples, divergence=self._state.divergence())

    def _pack(self) -> None:
        self._state.pack(self._wire, self._share)

    def _write(self) -> None:
        self._wire.write_tail(
            *(tail.encode(own, self._group.rank, self._group.size) for own in (self._own, self._own.not_finite()))
        )

    def _reduce(self) -> None:
        self._wire.reduce(lambda part: self._group.all_reduce(part, _never))

    def _hear(self) -> None:
        self._reduced = tail.decode(self._wire.read_tail(), self._members)

    def _commit(self) -> None:
        self._state.commit(self._wire, [Share(rank.batches, rank.samples) for rank in self._reduced.ranks])


def _never() -> bool:
    return False
