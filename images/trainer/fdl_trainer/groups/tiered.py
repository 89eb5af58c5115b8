"""Two tiers: a fast group inside each domain (a vendor's devices), and Gloo between the domains' first ranks.

NCCL and RCCL cannot be in one communicator. So each domain sums inside, its *leader* (its lowest rank) sums with the
other leaders, and gives the total back inside.

A failure between the tiers must not leave one domain with half a sum. So the last step inside a domain begins with
the leader's word that the outer tier succeeded: the others do not enqueue the total's broadcast before they have it.
The word goes over Gloo, where a rank can stop waiting at any time and a closed group frees everybody. Domains can then
still differ in whether they have the total; the exchange at the start of the next epoch settles that, as it does for a
flat group. What a domain summed is never an input again: a rank packs its own model anew for the retry.
"""

import contextlib
from collections.abc import Iterator

import torch

from fdl_trainer.groups.contract import CollectiveFailedError, Group, Interrupt


class TieredGroup:
    """A group of groups, with the order of ranks of the whole.

    Args:
        rank: this rank's place in the whole.
        inner: this rank's domain; its rank 0 is the leader.
        outer: the leaders, ordered by domain; None on other ranks.
        word: this rank's domain again, over Gloo: carries the leader's word.
        place: (domain, rank inside it) of each rank of the whole.
    """

    def __init__(
        self, rank: int, inner: Group, outer: Group | None, word: Group, place: tuple[tuple[int, int], ...]
    ) -> None:
        self.rank = rank
        self.size = len(place)
        self._inner = inner
        self._outer = outer
        self._word = word
        self._place = place

    def all_reduce(self, buffer: torch.Tensor, interrupt: Interrupt) -> None:
        """See :class:`Group`."""
        with self._closing_on_failure():
            self._inner.all_reduce(buffer, interrupt)
            if self._outer is not None:
                self._outer.all_reduce(buffer, interrupt)
            self._hear_word(interrupt)
            self._inner.broadcast(buffer, 0, interrupt)

    def broadcast(self, buffer: torch.Tensor, root: int, interrupt: Interrupt) -> None:
        """See :class:`Group`."""
        domain, place = self._place[root]
        mine = self._place[self.rank][0] == domain
        with self._closing_on_failure():
            if mine:
                self._inner.broadcast(buffer, place, interrupt)
            if self._outer is not None:
                self._outer.broadcast(buffer, domain, interrupt)
            if not mine:
                self._hear_word(interrupt)
                self._inner.broadcast(buffer, 0, interrupt)

    def close(self) -> None:
        """See :class:`Group`."""
        for group in (self._word, self._outer, self._inner):
            if group is not None:
                group.close()

    @contextlib.contextmanager
    def _closing_on_failure(self) -> Iterator[None]:
        # As everywhere: whoever sees a failure destroys what it has of the group, which frees those who wait for it.
        try:
            yield
        except CollectiveFailedError:
            self.close()
            raise

    def _hear_word(self, interrupt: Interrupt) -> None:
        """Wait until the leader says that the outer tier succeeded. A leader that failed closes the group instead."""
        self._word.broadcast(torch.zeros(1), 0, interrupt)
