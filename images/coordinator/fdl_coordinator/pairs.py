"""Ways between two ranks that are broken: what the ranks say of their tests, put together and into words. Pure rules.

Each rank tests its own way to each other one, so that one report tells of one direction, and two of a pair.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from fdl_api.checks.pairs import PAIRS
from fdl_api.wire import BrokenPair, PairFault, PairsTested

NAMED = 3
"""Pairs that are named one by one."""
STAND_SECONDS = 10.0
"""A group with a broken pair that does not stand after so long is told of: without one it takes a second or two."""

WORDS: Mapping[PairFault, str] = {
    PairFault.TIMEOUT: "the connection timed out",
    PairFault.NO_ROUTE: "there is no way to it, or it is forbidden",
    PairFault.REFUSED: "the connection was refused",
    PairFault.CLOSED: "the connection was closed in the middle of the test",
    PairFault.SILENT: "the connection stands, and nobody answers",
    PairFault.FOREIGN: "another program answers there",
    PairFault.LARGE_OUT: "small packets arrive, and large ones on the way there do not (MTU)",
    PairFault.LARGE_BACK: "small packets arrive, and large ones on the way back do not (MTU)",
}


@dataclass(frozen=True)
class Pair:
    """A pair of ranks of which at least one does not reach the other.

    Attributes:
        source: UID of the rank that does not reach the other.
        target: UID of the rank that is not reached.
        fault: what happened.
        detail: the system's words, or empty.
        back: what happened on the target's way to the source; ``None``: it works.
        known: whether the target has tested its own way in the same epoch.
    """

    source: str
    target: str
    fault: PairFault
    detail: str = ""
    back: PairFault | None = None
    known: bool = True


@dataclass(frozen=True)
class Place:
    """A rank in words.

    Attributes:
        who: e.g. ``rank 0 of digits-cpu-1 on node b``.
        host: its node.
        reach: address and port at which it answers tests; may be empty.
    """

    who: str
    host: str
    reach: str = ""


def of(reports: Mapping[str, PairsTested]) -> list[Pair]:
    """The broken pairs, each once, in the order of the reports.

    Args:
        reports: the newest word of ranks on their tests, by UID.
    """
    ways = {(uid, way.peer): way for uid, report in reports.items() for way in report.broken}
    pairs: dict[tuple[str, str], Pair] = {}
    for (source, target), way in ways.items():
        if (target, source) in pairs:
            continue  # said from the other end already
        back, other = ways.get((target, source)), reports.get(target)
        pairs[source, target] = Pair(
            source,
            target,
            way.fault,
            way.detail,
            back=back.fault if back is not None else None,
            known=other is not None and other.epoch == reports[source].epoch and other.count <= len(other.broken),
        )
    return list(pairs.values())


def apart(reports: Mapping[str, PairsTested], uid: str) -> bool:
    """Whether a rank and one that it does not reach both say so of one epoch: no group of them can stand."""
    mine = reports[uid]

    def says_so(way: BrokenPair) -> bool:
        other = reports.get(way.peer)
        return other is not None and other.epoch == mine.epoch and any(back.peer == uid for back in other.broken)

    return any(map(says_so, mine.broken))


def sentences(pairs: Sequence[Pair], place: Callable[[str], Place]) -> str:
    """Which pairs are broken, how, and what they have in common.

    Args:
        pairs: at least one.
        place: a rank in words, by its UID.
    """
    named = " ".join(_sentence(pair, place) for pair in pairs[:NAMED])
    if len(pairs) == 1:
        return named
    more = f" So it is with {len(pairs) - NAMED} more pairs." if len(pairs) > NAMED else ""
    ends = [{place(pair.source).host, place(pair.target).host} for pair in pairs]
    common = sorted(set.intersection(*ends))
    if not common:
        return named + more
    where = f"between nodes {common[0]} and {common[1]}" if len(common) > 1 else f"with an end on node {common[0]}"
    return f"{named}{more} All {len(pairs)} broken pairs are {where}."


def remedies(pairs: Sequence[Pair]) -> str:
    """What to do about the pairs, by the catalogue of checks; for two kinds of faults at most."""
    faults = [fault for pair in pairs for fault in (pair.fault, pair.back) if fault is not None]
    texts = dict.fromkeys(PAIRS.finding(fault).remedy for fault in faults)
    return " ".join(list(texts)[:2])


def _sentence(pair: Pair, place: Callable[[str], Place]) -> str:
    source, target = place(pair.source), place(pair.target)
    where = f" at {target.reach}" if target.reach else ""
    detail = f" ({pair.detail})" if pair.detail else ""
    if pair.back is not None:
        other = f"nor the other way ({WORDS[pair.back]})" if pair.back is not pair.fault else "nor the other way"
        other = f", {other}"
    else:
        other = "; the other way works" if pair.known else ""
    return f"{_upper(source.who)} does not reach {target.who}{where}: {WORDS[pair.fault]}{detail}{other}."


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
