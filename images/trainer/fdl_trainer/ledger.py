"""Which samples are committed, leased or free: every sample of every pass exactly once.

Positions are places in the run's whole stream, ``0 .. samples * data_epochs - 1``; ``position // samples`` is the
data epoch and ``position % samples`` the place in its order (:mod:`fdl_trainer.permutation`). A position below the
cursor that is neither in a hole nor leased is consumed: committed, or skipped and counted. All functions are pure, and
all ranks apply the same ones to the same reduced numbers, so that nobody has to ask who trains what. The books take
memory for holes and leases only, never for samples.

Leases are of two windows: those of the window in work, and, where averaging overlaps with training, those of the
window after it (*ahead*). A commit closes the first and moves the second up.
"""

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

OPEN_EPOCHS = 2
"""Passes over the data that may be in work at once."""
RELEASES = 3
"""How often samples may be leased again after a rank died with them, or broke on them; then they are skipped."""


class Span(NamedTuple):
    """Positions ``start .. stop-1`` of the stream, and how often they were lost with a rank."""

    start: int
    stop: int
    losses: int = 0

    @property
    def size(self) -> int:
        """Number of samples."""
        return self.stop - self.start


class Lease(NamedTuple):
    """What a rank may train in a window."""

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
        holes: returned positions below the cursor, sorted; neighbours touch only when their losses differ.
        leases: leases of the window in work, in the order in which they were given; a rank has at most one.
        ahead: the same of the window after it; empty where averaging does not overlap with training.
        skipped: samples that are consumed without having been trained to any use.
    """

    samples: int
    batch_size: int
    data_epochs: int
    seed: int
    cursor: int = 0
    holes: tuple[Span, ...] = ()
    leases: tuple[Lease, ...] = ()
    ahead: tuple[Lease, ...] = ()
    skipped: int = 0

    @property
    def total(self) -> int:
        """Samples that the whole run commits."""
        return self.samples * self.data_epochs

    @cached_property
    def by_uid(self) -> Mapping[str, tuple[Span, ...]]:
        """Spans of the leases of the window in work, by rank."""
        return dict(self.leases)

    @cached_property
    def by_uid_ahead(self) -> Mapping[str, tuple[Span, ...]]:
        """Spans of the leases ahead, by rank."""
        return dict(self.ahead)

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


def lease(ledger: Ledger, quotas: Mapping[str, int], *, ahead: bool = False) -> Ledger:
    """Give each rank of ``quotas`` that many micro-batches, in the mapping's order: holes first, then new positions.

    Where less is left than is asked for, what is left is shared in proportion (largest remainder, zero allowed).
    Where so little of the run would be left over that the next window would be of crumbs (less than half of this one,
    or fewer batches than ranks), that is given out too: the last window is sized, never split.

    Args:
        ledger: the books.
        quotas: micro-batches by rank.
        ahead: lease for the window after the one in work.

    Raises:
        ValueError: if a rank has an open lease for that window already, or a quota is negative.
    """
    present = ledger.ahead if ahead else ledger.leases
    held = {given.uid for given in present}
    for uid, quota in quotas.items():
        if uid in held:
            raise ValueError(f"rank {uid} has an open lease; commit or drop it before it gets another")
        if quota < 0:
            raise ValueError(f"the quota of rank {uid} is {quota} batches; it must not be negative")
    end = _lease_end(ledger)
    rest = [*ledger.holes, *((Span(ledger.cursor, end),) if end > ledger.cursor else ())]
    available = sum(_pieces(ledger, span) for span in rest)
    shares = _shares(list(quotas.values()), available, end == ledger.total)
    given = list(present)
    left = deque(rest)
    for uid, share in zip(quotas, shares, strict=True):
        given.append(Lease(uid, tuple(_serve(ledger, left, share))))
    rest = list(left)
    cursor = rest[-1].start if rest and rest[-1].stop == end and end > ledger.cursor else max(end, ledger.cursor)
    holes = tuple(span for span in rest if span.start < ledger.cursor)
    books = replace(ledger, ahead=tuple(given)) if ahead else replace(ledger, leases=tuple(given))
    return _normal(replace(books, cursor=cursor), holes)


def batches(ledger: Ledger, uid: str, *, ahead: bool = False) -> list[Span]:
    """Micro-batches of a rank's lease in order; empty if it has none. None of them spans two data epochs."""
    result: list[Span] = []
    for span in leased(ledger, uid, ahead=ahead):
        start = span.start
        while start < span.stop:
            stop = min(start + ledger.batch_size, span.stop, _epoch_end(ledger, start))
            result.append(Span(start, stop))
            start = stop
    return result


def leased(ledger: Ledger, uid: str, *, ahead: bool = False) -> tuple[Span, ...]:
    """Spans of a rank's lease for the window in work, or ``ahead`` for the next; empty if it has none."""
    return (ledger.by_uid_ahead if ahead else ledger.by_uid).get(uid, ())


def quota(ledger: Ledger, uid: str, *, ahead: bool = False) -> int:
    """Micro-batches in a rank's lease."""
    return sum(_pieces(ledger, span) for span in leased(ledger, uid, ahead=ahead))


def samples(ledger: Ledger, uid: str, count: int) -> int:
    """Samples in the first ``count`` micro-batches of a rank's lease for the window in work."""
    return sum(span.size for span in _take(ledger, leased(ledger, uid), count)[0])


def commit(ledger: Ledger, done: Mapping[str, int], *, spoiled: Collection[str] = (), skipped: int = 0) -> Ledger:
    """Close the window in work: of each lease, the first ``done[uid]`` micro-batches are consumed, the rest holes.

    Ranks that ``done`` does not name have committed nothing. The leases ahead become those of the window in work.

    Args:
        ledger: the books.
        done: micro-batches by rank.
        spoiled: ranks that trained their lease and lost it, as by a model that is not finite.
        skipped: samples among those done that were trained to no use.

    Raises:
        ValueError: if a rank claims more micro-batches than it holds.
    """
    for uid, count in done.items():
        if not 0 <= count <= quota(ledger, uid):
            raise ValueError(f"rank {uid} reports {count} batches of a lease of {quota(ledger, uid)}")
    undone: list[Span] = []
    lost: list[Span] = []
    for given in ledger.leases:
        _, rest = _take(ledger, given.spans, done.get(given.uid, 0))
        (lost if given.uid in spoiled else undone).extend(rest)
    books = replace(ledger, leases=ledger.ahead, ahead=(), skipped=ledger.skipped + skipped)
    return _lose(_normal(books, (*ledger.holes, *undone)), lost)


def drop(ledger: Ledger, uids: Iterable[str]) -> Ledger:
    """Turn the leases of ranks that are gone into holes; what was lost too often is skipped."""
    books, spans = _without(ledger, uids)
    return _lose(books, spans)


def release(ledger: Ledger, uids: Iterable[str]) -> Ledger:
    """Turn the leases of ranks that have not touched them into holes."""
    books, spans = _without(ledger, uids)
    return _normal(books, (*books.holes, *spans))


def free(ledger: Ledger) -> int:
    """Samples that are neither consumed nor leased."""
    return ledger.total - ledger.cursor + sum(span.size for span in ledger.holes)


def remaining(ledger: Ledger) -> int:
    """Samples that are not consumed yet, leased ones included."""
    return free(ledger) + sum(span.size for given in (*ledger.leases, *ledger.ahead) for span in given.spans)


def finished(ledger: Ledger) -> bool:
    """Whether every sample of every pass is consumed."""
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
        "holes": _spans_to_json(ledger.holes),
        "leases": [[given.uid, _spans_to_json(given.spans)] for given in ledger.leases],
        "ahead": [[given.uid, _spans_to_json(given.spans)] for given in ledger.ahead],
        "skipped": ledger.skipped,
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
        ahead=tuple(Lease(uid, _spans(spans)) for uid, spans in data["ahead"]),
        skipped=data["skipped"],
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
    wanted = sum(quotas)
    surplus = available - wanted
    working = sum(1 for quota in quotas if quota)
    crumbs = last and surplus > 0 and (surplus < working or 2 * surplus <= wanted)
    return apportion(quotas, available) if surplus < 0 or crumbs else list(quotas)


def _without(ledger: Ledger, uids: Iterable[str]) -> tuple[Ledger, list[Span]]:
    """Books without the leases of some ranks, and the spans that they held."""
    gone = set(uids)
    spans = [span for given in (*ledger.leases, *ledger.ahead) if given.uid in gone for span in given.spans]
    leases = tuple(given for given in ledger.leases if given.uid not in gone)
    ahead = tuple(given for given in ledger.ahead if given.uid not in gone)
    return replace(ledger, leases=leases, ahead=ahead), spans


def _lose(ledger: Ledger, spans: Iterable[Span]) -> Ledger:
    """Make holes of spans that a rank took with it, and skip those that were lost too often."""
    lost = [span._replace(losses=span.losses + 1) for span in spans]
    again = [span for span in lost if span.losses <= RELEASES]
    given_up = sum(span.size for span in lost if span.losses > RELEASES)
    return _normal(replace(ledger, skipped=ledger.skipped + given_up), (*ledger.holes, *again))


def _spans_to_json(spans: Iterable[Span]) -> list[list[int]]:
    return [[span.start, span.stop, span.losses] if span.losses else [span.start, span.stop] for span in spans]


def _spans(data: Iterable[Sequence[int]]) -> tuple[Span, ...]:
    return tuple(Span(*fields) for fields in data)


def _epoch_end(ledger: Ledger, position: int) -> int:
    return (position // ledger.samples + 1) * ledger.samples


def _oldest(ledger: Ledger) -> int:
    starts = [span.start for span in ledger.holes]
    starts += [span.start for given in (*ledger.leases, *ledger.ahead) for span in given.spans]
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
            taken.append(span._replace(stop=cut))
        if cut < span.stop:
            rest.append(span._replace(start=cut))
    return taken, rest


def _serve(ledger: Ledger, left: deque[Span], count: int) -> list[Span]:
    """Take ``count`` micro-batches off the front of what is left."""
    served: list[Span] = []
    while count and left:
        span = left.popleft()
        taken, remainder = _take(ledger, [span], count)
        count -= min(count, _pieces(ledger, span))
        served += taken
        left.extendleft(remainder)
    return served


def _normal(ledger: Ledger, holes: Iterable[Span]) -> Ledger:
    """Sort and join holes, and give a hole that touches the cursor back to it, unless it has a history.

    Two ranks that reached the same state over different membership changes then hold equal books.
    """
    joined: list[Span] = []
    for span in sorted(holes):
        if joined and (joined[-1].stop, joined[-1].losses) == (span.start, span.losses):
            joined[-1] = joined[-1]._replace(stop=span.stop)
        else:
            joined.append(span)
    cursor = ledger.cursor
    if joined and joined[-1].stop == cursor and not joined[-1].losses:
        cursor = joined.pop().start
    return replace(ledger, cursor=cursor, holes=tuple(joined))
