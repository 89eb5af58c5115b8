"""Which samples are committed, leased or free: every sample of every pass exactly once.

Positions are places in the run's whole stream, ``0 .. samples * data_epochs - 1``; ``position // samples`` is the
data epoch and ``position % samples`` the place in its order (:mod:`fdl_trainer.permutation`). A position below the
cursor that is neither in a hole nor leased is committed. All functions are pure, and all ranks apply the same ones
to the same reduced numbers, so that nobody has to ask who trains what.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

OPEN_EPOCHS = 2
"""Passes over the data that may be in work at once."""


class Span(NamedTuple):
    """Positions ``start .. stop-1`` of the stream."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        """Number of samples."""
        return self.stop - self.start


class Lease(NamedTuple):
    """What a rank may train in the window in work."""

    uid: str
    spans: tuple[Span, ...]


@dataclass(frozen=True)
class Ledger:
    """The books of the data.

    Args:
        samples: samples in the dataset.
        batch_size: samples in a full micro-batch.
        data_epochs: passes over the data that the run makes.
        seed: seed of the order.
        cursor: first position that was never leased.
        holes: returned positions below the cursor, sorted, apart from each other.
        leases: open leases in the order in which they were given; a rank has at most one.
    """

    samples: int
    batch_size: int
    data_epochs: int
    seed: int
    cursor: int = 0
    holes: tuple[Span, ...] = ()
    leases: tuple[Lease, ...] = ()

    @property
    def total(self) -> int:
        """Samples that the whole run commits."""
        return self.samples * self.data_epochs

    @property
    def batches_per_epoch(self) -> int:
        """Micro-batches in one data epoch, the short last one included."""
        return -(-self.samples // self.batch_size)


def create(samples: int, batch_size: int, data_epochs: int, seed: int) -> Ledger:
    """Books of a run that has not begun.

    Raises:
        ValueError: if a figure leaves nothing to train.
    """
    for name, value in (("samples", samples), ("batch_size", batch_size), ("data_epochs", data_epochs)):
        if value < 1:
            raise ValueError(f"{name} is {value}; it must be at least 1")
    return Ledger(samples, batch_size, data_epochs, seed)


def lease(ledger: Ledger, quotas: Mapping[str, int]) -> Ledger:
    """Give each rank of ``quotas`` that many micro-batches, in the mapping's order: holes first, then new positions.

    Where less is left than is asked for, what is left is shared in proportion (largest remainder, zero allowed).
    Where fewer batches than ranks would be left over, they are given out too: no window for crumbs.

    Raises:
        ValueError: if a rank has an open lease already, or a quota is negative.
    """
    held = {given.uid for given in ledger.leases}
    for uid, quota in quotas.items():
        if uid in held:
            raise ValueError(f"rank {uid} has an open lease; commit or drop it before it gets another")
        if quota < 0:
            raise ValueError(f"the quota of rank {uid} is {quota} batches; it must not be negative")
    end = _lease_end(ledger)
    rest = [*ledger.holes, *((Span(ledger.cursor, end),) if end > ledger.cursor else ())]
    available = sum(_pieces(ledger, span) for span in rest)
    shares = _shares(list(quotas.values()), available, end == ledger.total)
    leases = list(ledger.leases)
    for uid, share in zip(quotas, shares, strict=True):
        taken, rest = _take(ledger, rest, share)
        leases.append(Lease(uid, tuple(taken)))
    cursor = rest[-1].start if rest and rest[-1].stop == end and end > ledger.cursor else max(end, ledger.cursor)
    holes = tuple(span for span in rest if span.start < ledger.cursor)
    return _normal(replace(ledger, cursor=cursor, leases=tuple(leases)), holes)


def batches(ledger: Ledger, uid: str) -> list[Span]:
    """Micro-batches of a rank's lease in order; empty if it has none. None of them spans two data epochs."""
    result: list[Span] = []
    for span in leased(ledger, uid):
        start = span.start
        while start < span.stop:
            stop = min(start + ledger.batch_size, span.stop, _epoch_end(ledger, start))
            result.append(Span(start, stop))
            start = stop
    return result


def leased(ledger: Ledger, uid: str) -> tuple[Span, ...]:
    """Spans of a rank's open lease; empty if it has none."""
    return next((given.spans for given in ledger.leases if given.uid == uid), ())


def quota(ledger: Ledger, uid: str) -> int:
    """Micro-batches in a rank's open lease."""
    return sum(_pieces(ledger, span) for span in leased(ledger, uid))


def commit(ledger: Ledger, done: Mapping[str, int]) -> Ledger:
    """Close all leases: of each, the first ``done[uid]`` micro-batches are committed, the rest become holes.

    Ranks that ``done`` does not name have committed nothing.

    Raises:
        ValueError: if a rank claims more micro-batches than it holds.
    """
    for uid, count in done.items():
        if not 0 <= count <= quota(ledger, uid):
            raise ValueError(f"rank {uid} reports {count} batches of a lease of {quota(ledger, uid)}")
    undone: list[Span] = []
    for given in ledger.leases:
        _, rest = _take(ledger, list(given.spans), done.get(given.uid, 0))
        undone += rest
    return _normal(replace(ledger, leases=()), (*ledger.holes, *undone))


def drop(ledger: Ledger, uids: Iterable[str]) -> Ledger:
    """Turn the open leases of ranks that are gone into holes."""
    gone = set(uids)
    returned = [span for given in ledger.leases if given.uid in gone for span in given.spans]
    kept = tuple(given for given in ledger.leases if given.uid not in gone)
    return _normal(replace(ledger, leases=kept), (*ledger.holes, *returned))


def free(ledger: Ledger) -> int:
    """Samples that are neither committed nor leased."""
    return ledger.total - ledger.cursor + sum(span.size for span in ledger.holes)


def remaining(ledger: Ledger) -> int:
    """Samples that are not committed yet, leased ones included."""
    return free(ledger) + sum(span.size for given in ledger.leases for span in given.spans)


def finished(ledger: Ledger) -> bool:
    """Whether every sample of every pass is committed."""
    return remaining(ledger) == 0


def data_epoch(ledger: Ledger) -> int:
    """The oldest pass over the data that still has uncommitted samples; the last one when all are committed."""
    return min(_oldest(ledger) // ledger.samples, ledger.data_epochs - 1)


def to_json(ledger: Ledger) -> dict[str, Any]:
    """The books as JSON data; :func:`from_json` gives back an equal ledger."""
    return {
        "samples": ledger.samples,
        "batchSize": ledger.batch_size,
        "dataEpochs": ledger.data_epochs,
        "seed": ledger.seed,
        "cursor": ledger.cursor,
        "holes": [list(span) for span in ledger.holes],
        "leases": [[given.uid, [list(span) for span in given.spans]] for given in ledger.leases],
    }


def from_json(data: Mapping[str, Any]) -> Ledger:
    """Inverse of :func:`to_json`.

    Raises:
        KeyError: if a field is missing.
    """
    return Ledger(
        samples=data["samples"],
        batch_size=data["batchSize"],
        data_epochs=data["dataEpochs"],
        seed=data["seed"],
        cursor=data["cursor"],
        holes=_spans(data["holes"]),
        leases=tuple(Lease(uid, _spans(spans)) for uid, spans in data["leases"]),
    )


def apportion(weights: Sequence[int], seats: int) -> list[int]:
    """Share ``seats`` in proportion to ``weights`` by largest remainder, ties to the earlier; exact integers."""
    total = sum(weights)
    if total == 0:
        return [0] * len(weights)
    shares = [weight * seats // total for weight in weights]
    by_remainder = sorted(range(len(weights)), key=lambda i: (-(weights[i] * seats % total), i))
    for i in by_remainder[: seats - sum(shares)]:
        shares[i] += 1
    return shares


def _shares(quotas: Sequence[int], available: int, last: bool) -> list[int]:
    """Micro-batches for each quota out of ``available``; ``last``: nothing comes after them."""
    surplus = available - sum(quotas)
    crumbs = last and 0 < surplus < sum(1 for quota in quotas if quota)
    return apportion(quotas, available) if surplus < 0 or crumbs else list(quotas)


def _spans(data: Iterable[Sequence[int]]) -> tuple[Span, ...]:
    return tuple(Span(start, stop) for start, stop in data)


def _epoch_end(ledger: Ledger, position: int) -> int:
    return (position // ledger.samples + 1) * ledger.samples


def _oldest(ledger: Ledger) -> int:
    starts = [span.start for span in ledger.holes]
    starts += [span.start for given in ledger.leases for span in given.spans]
    return min(starts, default=ledger.cursor)


def _lease_end(ledger: Ledger) -> int:
    """First position that must not be leased yet: the passes over the data in work are bounded."""
    return min(ledger.total, (_oldest(ledger) // ledger.samples + OPEN_EPOCHS) * ledger.samples)


def _pieces(ledger: Ledger, span: Span) -> int:
    """Micro-batches that a span is cut into."""
    count, start = 0, span.start
    while start < span.stop:
        stop = min(span.stop, _epoch_end(ledger, start))
        count += -(-(stop - start) // ledger.batch_size)
        start = stop
    return count


def _take(ledger: Ledger, spans: Sequence[Span], count: int) -> tuple[list[Span], list[Span]]:
    """Split spans into their first ``count`` micro-batches and the rest."""
    taken: list[Span] = []
    rest: list[Span] = []
    for span in spans:
        cut = span.start
        while count and cut < span.stop:
            stop = min(span.stop, _epoch_end(ledger, cut))
            pieces = min(count, -(-(stop - cut) // ledger.batch_size))
            cut = min(stop, cut + pieces * ledger.batch_size)
            count -= pieces
        if cut > span.start:
            taken.append(Span(span.start, cut))
        if cut < span.stop:
            rest.append(Span(cut, span.stop))
    return taken, rest


def _normal(ledger: Ledger, holes: Iterable[Span]) -> Ledger:
    """Sort and join holes, and give a hole that touches the cursor back to it.

    Two ranks that reached the same state over different membership changes then hold equal books.
    """
    joined: list[Span] = []
    for span in sorted(holes):
        if joined and joined[-1].stop == span.start:
            joined[-1] = Span(joined[-1].start, span.stop)
        else:
            joined.append(span)
    cursor = ledger.cursor
    if joined and joined[-1].stop == cursor:
        cursor = joined.pop().start
    return replace(ledger, cursor=cursor, holes=tuple(joined))
