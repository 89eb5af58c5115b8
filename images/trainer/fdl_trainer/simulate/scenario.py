"""What is simulated: ranks with their speeds, noise, costs, and a script of events."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

MAX_RANKS = 10_000


class Kind(StrEnum):
    """What can happen to a cohort."""

    DEATH = "death"
    """``death:RANK``: the rank dies in the middle of its window; what it did there is lost."""
    LEAVE = "leave"
    """``leave:RANK``: it finishes its window, is counted, and goes."""
    JOIN = "join"
    """``join:RATE``: a new rank of that rate joins at the next boundary."""
    STALL = "stall"
    """``stall:RANK:SECONDS``: it stands still for so long within its window."""
    SPEED = "speed"
    """``speed:RANK:FACTOR``: from now on it is so many times as fast as it was at the start."""
    SWAP = "swap"
    """``swap``: the ranks change speeds: the first gets the last one's, and so on."""


@dataclass(frozen=True)
class Event:
    """One line of the script.

    Args:
        kind: what happens.
        window: number of the window in which it happens; 0 when ``second`` says it.
        second: virtual second from which on it happens in the window that is then in work.
        rank: number of the rank, in the order of the rates, joiners after them; -1 where the kind needs none.
        value: rate, seconds or factor, as the kind says.
    """

    kind: Kind
    window: int = 0
    second: float = 0.0
    rank: int = -1
    value: float = 0.0


@dataclass(frozen=True)
class Scenario:
    """A cohort and what it meets.

    Args:
        ms: milliseconds a batch of each rank at the start.
        windows: windows to play.
        jitter: coefficient of variation of the time of a batch (lognormal, independent, mean one).
        window_jitter: the same of a factor that holds for a rank's whole window.
        wait_ms: milliseconds that a rank waits for the data of each batch.
        fill_ms: milliseconds by which the first batch of a window waits longer (loader fill).
        reduce_ms: cost of an averaging, milliseconds.
        reduce_ms_per_rank: added to it for each rank.
        detect_ms: from a death to the survivors' knowing it.
        reform_ms: pause of the cohort at each change of membership.
        divergence: D of a window of one batch; it grows with the square root of the batches. 0: not measured.
        batch_size: samples a batch.
        epoch_batches: batches in a data epoch; no window exceeds one. None: so many that it never binds.
        seed: of the noise.
        events: the script.
    """

    ms: Sequence[float]
    windows: int = 200
    jitter: float = 0.0
    window_jitter: float = 0.0
    wait_ms: float = 0.0
    fill_ms: float = 0.0
    reduce_ms: float = 10.0
    reduce_ms_per_rank: float = 0.0
    detect_ms: float = 50.0
    reform_ms: float = 100.0
    divergence: float = 0.0
    batch_size: int = 32
    epoch_batches: int | None = None
    seed: int = 0
    events: Sequence[Event] = field(default=())


def parse_rates(text: str, slowest_ms: float) -> list[float]:
    """Milliseconds a batch from relative rates.

    ``1:2.3`` are two ranks, the second 2.3 times as fast; ``1x3:4`` are three of rate 1 and one of rate 4. The slowest
    one takes ``slowest_ms`` a batch.

    Raises:
        ValueError: if the text is no such list.
    """
    rates: list[float] = []
    for part in text.split(":"):
        found = re.fullmatch(r"(\d+(?:\.\d+)?)(?:x(\d+))?", part.strip())
        if found is None or float(found[1]) <= 0.0 or int(found[2] or 1) < 1:
            raise ValueError(
                f"'{part}' in '{text}' is no rate; write rates like 1:2.3, or 1x3:4 for three of 1 and a 4"
            )
        rates += [float(found[1])] * int(found[2] or 1)
        if len(rates) > MAX_RANKS:
            raise ValueError(f"'{text}' is of more than {MAX_RANKS} ranks; write fewer")
    return [slowest_ms * min(rates) / rate for rate in rates]


def check_events(ranks: int, events: Sequence[Event]) -> None:
    """Refuse events of ranks that never exist.

    Args:
        ranks: how many the cohort starts with.
        events: the script; each join makes one more rank, which may only be named by events that come later.

    Raises:
        ValueError: an event names a rank that does not exist, or not yet.
    """
    joins = [event for event in events if event.kind is Kind.JOIN]
    for event in events:
        if event.rank < 0:
            continue
        there = ranks + sum(_may_precede(join, event) for join in joins)
        if event.rank < there:
            continue
        when = f"window {event.window}" if event.window else f"second {event.second:g}"
        joined = f" and {there - ranks} that joined" if there > ranks else ""
        raise ValueError(
            f"the event '{event.kind}' in {when} is of rank {event.rank}, and there are only {ranks} from the start"
            f"{joined} by then: ranks count from 0 in the order of the rates, joiners after them"
        )


def _may_precede(join: Event, event: Event) -> bool:
    """Whether a rank that joins may be there for an event; of a window and a second nobody knows which is earlier."""
    if join.window and event.window:
        return join.window < event.window
    if not join.window and not event.window:
        return join.second < event.second
    return True


ARGUMENTS = {Kind.DEATH: 1, Kind.LEAVE: 1, Kind.JOIN: 1, Kind.STALL: 2, Kind.SPEED: 2, Kind.SWAP: 0}
"""How many figures each kind of event takes."""


def parse_event(text: str) -> Event:
    """One event of the script: ``KIND[:FIGURE...]@wWINDOW`` or ``...@SECONDs``, as ``death:3@w40``, ``swap@12.5s``.

    Raises:
        ValueError: if the text is no event.
    """
    found = re.fullmatch(r"([a-z]+)((?::[0-9.]+)*)@(?:w(\d+)|(\d+(?:\.\d+)?)s)", text.strip())
    if found is None or found[1] not in set(Kind):
        kinds = ", ".join(Kind)
        raise ValueError(f"'{text}' is no event; write KIND:FIGURES@wWINDOW or @SECONDSs with a kind of {kinds}")
    kind = Kind(found[1])
    try:
        figures = [float(figure) for figure in found[2].split(":")[1:]]
    except ValueError:
        figures = []
    if len(figures) != ARGUMENTS[kind] or (kind is not Kind.JOIN and figures and figures[0] != int(figures[0])):
        raise ValueError(f"'{text}' does not have the figures of '{kind}'; see fdl simulate --help")
    has_rank = kind not in (Kind.JOIN, Kind.SWAP)
    value = figures[-1] if kind in (Kind.JOIN, Kind.STALL, Kind.SPEED) else 0.0
    if kind in (Kind.JOIN, Kind.SPEED) and value <= 0.0:
        raise ValueError(f"'{text}' needs a figure above zero")
    return Event(
        kind,
        window=int(found[3]) if found[3] else 0,
        second=float(found[4]) if found[4] else 0.0,
        rank=int(figures[0]) if has_rank else -1,
        value=value,
    )
